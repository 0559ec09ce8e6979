"""Names of process groups that reach somebody's own code, which may use them for anything.

A collective's group counts by its role; a name that traced code outside torch holds counts literally.

Facts relied upon (``tests/unit/test_group_names.py``), of torch 2.11 to 2.15: every value that traced code
computes passes ``InstructionTranslatorBase.push``, the same object as was read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from warmrank.worker.torch_private.patching import wrapped

FACTS = {"torch._dynamo.symbolic_convert:InstructionTranslatorBase": "push(val) f_code"}

_TORCH = str(Path(torch.__file__).parent)


class HeldNames:
    """Names of groups as they are read, and those of them that code outside torch holds.

    Attributes:
        held: groups by their names.
    """

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}
        self._read: dict[int, tuple[Any, Any]] = {}  # by address, kept alive with the variable

    def read(self, variable: Any, name: str, answer: Any) -> None:
        """Note a variable that holds a group's name."""
        if name == "group_name" and (group := real_group(variable)) is not None:
            self._read[id(answer)] = (answer, group)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Look at what traced code computes within the context."""
        from torch._dynamo.symbolic_convert import InstructionTranslatorBase

        def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
            def push(translator: Any, variable: Any) -> None:
                if id(variable) in self._read and not translator.f_code.co_filename.startswith(_TORCH):
                    group = self._read[id(variable)][1]
                    self.held[str(group.group_name)] = group
                original(translator, variable)

            return push

        with wrapped(InstructionTranslatorBase, "push", wrap):
            yield


def real_group(variable: Any) -> Any:
    """The process group that a variable stands for; None if it is another object."""
    import torch.distributed as dist

    value = getattr(variable, "value", None)
    value = getattr(value, "real_obj", value)  # of a group that Dynamo takes for an opaque object
    return value if dist.is_available() and isinstance(value, dist.ProcessGroup) else None
