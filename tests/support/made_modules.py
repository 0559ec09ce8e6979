"""Modules written to disk by a test, imported, and written again."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any


class MadeModule:
    """One module file; the name begins with ``made_``, so that `forget_modules` takes it away."""

    def __init__(self, directory: Path, name: str = "made_module") -> None:
        self.path = directory / f"{name}.py"
        self.name = name

    def write(self, text: str) -> ModuleType:
        """Write the file and import it anew, as a later process would."""
        self.path.write_text(textwrap.dedent(text))
        sys.modules.pop(self.name, None)
        importlib.invalidate_caches()
        # A new file of equal size within the same second would be taken from the bytecode cache.
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            return importlib.import_module(self.name)
        finally:
            sys.dont_write_bytecode = before


def code_of(function: Any) -> CodeType:
    assert isinstance(function, FunctionType)
    return function.__code__
