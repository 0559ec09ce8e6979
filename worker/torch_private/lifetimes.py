"""Ends of objects while the function runs: generators, objects with a ``__del__``, weak references.

Python closes a generator when nobody holds it any more, and so runs what follows in its ``finally``, its
``with`` and its handlers of ``GeneratorExit``. Dynamo never does (up to torch 2.14), or at the end of the
function. One that leaves the function would come out as the iterator of a list, its code run ahead. Likewise
Python calls ``__del__`` of an object, and ends what refers to it weakly; in a trace no object ends, and those
that the call replaces end with it.

Relied on (``tests/fuzz/parts/evaluated.py``): a generator's frame is the ``inline_tracer`` of its variable,
and the last instruction that ran there its ``current_instruction``, with the handler that it is under as
``exn_tab_entry``; ``store_attr_mutations`` holds the attributes that a call writes, by objects' variables.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torch._dynamo.variables.functions import LocalGeneratorObjectVariable

from warmrank.worker.errors import NotPortable
from warmrank.worker.keys.code import is_pinned_module, is_users_function
from warmrank.worker.torch_private.patching import steps_in

_EFFECTS = "torch._dynamo.side_effects:SideEffects"
_WEAK = "torch._dynamo.variables.misc:WeakRefVariable"
_GENERATOR = "torch._dynamo.variables.functions:LocalGeneratorObjectVariable"


class Lifetimes:
    """Refuses what the module's docstring says."""

    def __init__(self) -> None:
        self._made: list[Any] = []
        self._referents: list[Any] = []  # of weak references that the function looks at

    @steps_in(_GENERATOR, "__init__(code, f_globals, inline_tracer)")
    def _make(self, original: Any, variable: Any, *args: Any, **kwargs: Any) -> None:
        original(variable, *args, **kwargs)
        self._made.append(variable)

    @steps_in(_EFFECTS, "track_new_user_defined_object(base_cls_vt, cls_vt)")
    def _make_object(self, original: Any, effects: Any, base: Any, made: Any, *args: Any, **more: Any) -> Any:
        if _has_finalizer(made.value):
            _refuse_end(f"makes a {made.value.__qualname__}, whose __del__ no trace calls")
        return original(effects, base, made, *args, **more)

    @steps_in(_WEAK, "__init__(referent_vt, callback_vt)")
    def _refer(self, original: Any, variable: Any, referent: Any, *args: Any, **more: Any) -> None:
        if referent.source is None:
            _refuse_end("refers weakly to an object that it makes, which ends in no trace")
        original(variable, referent, *args, **more)

    @steps_in(_WEAK, "build(tx, weakref_value)")
    def _build_reference(self, original: Any, tx: Any, reference: Any, *args: Any, **more: Any) -> Any:
        self._referents.append(reference())
        return original(tx, reference, *args, **more)

    @steps_in(_EFFECTS, "codegen_update_mutated")
    def _write(self, original: Any, effects: Any, *args: Any, **more: Any) -> None:
        for variable, names in effects.store_attr_mutations.items():
            held = getattr(vars(variable).get("value"), "__dict__", {})
            for replaced in (held[name] for name in names if name in held):
                is_referent = replaced is not None and any(replaced is one for one in self._referents)
                if is_referent or _has_finalizer(type(replaced)):
                    kind = type(replaced).__qualname__
                    _refuse_end(f"puts another object in place of a {kind}, whose end may count")
        original(effects, *args, **more)

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


def _has_finalizer(kind: type) -> bool:
    return is_users_function(getattr(kind, "__del__", None))


def _refuse_end(does: str) -> NoReturn:
    raise NotPortable(
        f"the function {does}; do that before or after the call, or end the object by a method of its own",
        what="__del__",
    )


def _refuse(variable: Any, does: str, instead: str) -> NoReturn:
    name = variable.get_code().co_qualname
    raise NotPortable(
        f"the function {does} the generator {name}, which no trace follows; {instead}", what=name
    )
