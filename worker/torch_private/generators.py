"""Generators that a function makes and does not run to their end.

Python closes a generator when nobody holds it any more, and so runs what follows in its ``finally``, its
``with`` and its handlers of ``GeneratorExit``. Dynamo never does (up to torch 2.14), or at the end of the
function. One that leaves the function would come out as the iterator of a list, its code run ahead.

Relied on (``tests/fuzz/parts/evaluated.py``): a generator's frame is the ``inline_tracer`` of its variable,
and the last instruction that ran there its ``current_instruction``, with the handler that it is under as
``exn_tab_entry``.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch._dynamo.variables.functions import LocalGeneratorObjectVariable

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import is_pinned_module
from warmrank.worker.torch_private.patching import steps_in

_GENERATOR = "torch._dynamo.variables.functions:LocalGeneratorObjectVariable"


class Generators:
    """Refuses what the module's docstring says."""

    def __init__(self) -> None:
        self._made: list[Any] = []

    @steps_in(_GENERATOR, "__init__(code, f_globals, inline_tracer)")
    def _make(self, original: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
        original(variable, *args, **kwargs)
        self._made.append(variable)

    @steps_in(_GENERATOR, "reconstruct")
    def _keep(self, _original: Any, variable: Any, *_: Any) -> NoReturn:
        _refuse(variable, "hands on or keeps", "pass a list on")

    @steps_in(
        "torch._dynamo.symbolic_convert:InstructionTranslator",
        "replace_tos_if_return_is_generator",
        is_optional=True,
    )
    def _return(self, original: Any, tx: Any) -> None:
        if isinstance(tx.stack[-1] if tx.stack else None, LocalGeneratorObjectVariable):
            self._keep(None, tx.stack[-1])
        original(tx)

    @steps_in("torch._dynamo.output_graph:OutputGraph", "compile_subgraph")
    def _end(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        for variable in self._made:
            last = getattr(variable.inline_tracer, "current_instruction", None)
            handler = last.exn_tab_entry if last is not None and last.opname == "YIELD_VALUE" else None
            if is_pinned_module(variable.f_globals.get("__name__")):
                continue  # those of Python's own (``Sequence.__iter__``) have nothing to put back
            # From Python 3.12 on, all of a generator lies under one that only renames StopIteration.
            if handler is not None and handler.target.opname != "CALL_INTRINSIC_1":
                _refuse(variable, "leaves, within `try` or `with`,", "run it to its end, or close it")
        return original(*args, **kwargs)


def _refuse(variable: Any, does: str, instead: str) -> NoReturn:
    name = variable.get_code().co_qualname
    raise NotPortable(
        f"the function {does} the generator {name}, which no trace follows; {instead}", what=name
    )
