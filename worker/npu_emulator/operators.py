"""Operators of namespace ``npu``: all of torch_npu's schemas, its own meta registrations, kernels for some.

The schemas come from the list that lies in the package, so passes that look an operator up find it. Which
results an operator gives is the real package's own knowledge (``torch_npu.op_plugin.meta``). An operator
without a kernel here is refused by torch when it runs, by its name.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from warmrank.worker.npu_emulator.kernels import KERNELS
from warmrank.worker.torch_private import emulated_device

_LIST = Path("csrc", "aten", "npu_native_functions_by_codegen.yaml")
_METAS = ("_meta_registrations", "_fake_registrations")


def schemas_in(text: str) -> list[str]:
    """The operators that torch_npu adds, from its list; each once."""
    custom = text.partition("\ncustom:")[2]
    body = re.split(r"^\w+:", custom, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"^(?:- |  )func: ((\w+(?:\.\w+)?)\(.*)$", body, re.MULTILINE)
    return list({name: schema for schema, name in found}.values())


def define(home: Path) -> None:
    """Define the operators of the package that lies in ``home``."""
    schemas = schemas_in((home / _LIST).read_text("utf-8"))
    emulated_device.define("npu", schemas)
    emulated_device.implement("npu", KERNELS, "CPU")
    for name in _METAS:
        importlib.import_module(f"torch_npu.op_plugin.meta.{name}")
