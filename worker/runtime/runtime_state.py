"""Runtime state: values that graphs depend on unseen, declared by whoever knows them.

The number of blocks of a KV cache, say: it is measured after the model was built, steers what is compiled,
and appears in no argument and no traced line. A declaration belongs to a module and holds for the cached
functions of that module, of all modules within it, and of all modules that contain it.

Invariants: what is declared is part of every artifact's guards, whole (a name more or less is a difference);
a value is kept as its ``repr``, so 1, 1.0, True and "1" differ and floats are exact; modules are not kept
alive; `RuntimeStateGuard.holds` compares one number as long as nothing new is declared, and, where what was
declared for another module counts, looks whether that module is still where it was.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import BadRuntimeState

if TYPE_CHECKING:
    from torch.nn import Module

Scalar = int | float | str | bool | None

MAX_VALUES = 64  # of one module
MAX_NAME_CHARS = 128
MAX_TEXT_CHARS = 512
_SCALARS = (int, float, str, bool, type(None))
_INT_BITS = 64

# In a module, by these names, is that module.
_Link = tuple[weakref.ref["Module"], tuple[str, ...], weakref.ref["Module"]]
_ABSENT = "not declared"


class Declared:
    """All declarations of this process: a module, and name -> text of the value.

    ``version`` rises with each that changes something.
    """

    def __init__(self) -> None:
        self.version = 0
        self.all: tuple[tuple[weakref.ref[Module], Mapping[str, str]], ...] = ()
        self.lock = threading.Lock()


DECLARED = Declared()


def declared_for(module: Module) -> dict[str, str]:
    """State declared for the cached functions of a module now: name -> text of the value, sorted by name.

    Raises:
        BadRuntimeState: two modules, both of which concern this one, declare a name with different values.
    """
    found: dict[str, str] = {}
    for values, _ in _concerning(module):
        for name, text in values.items():
            if found.setdefault(name, text) != text:
                kind = type(module).__qualname__
                raise BadRuntimeState(
                    f"runtime state {name} is declared as {found[name]} for one module and as {text} for "
                    f"another, and both concern the cached functions of {kind}, since one contains the other "
                    f"or {kind} contains both; declare it for one of them, or give the values names of "
                    "their own"
                )
    return dict(sorted(found.items()))


def _concerning(module: Module) -> Iterator[tuple[Mapping[str, str], _Link | None]]:
    """Declarations of modules within and around a module, with their paths; None for its own."""
    if not DECLARED.all:
        return
    within = {id(part): name for name, part in module.named_modules()}
    for reference, values in DECLARED.all:
        owner = reference()
        if owner is None:
            continue
        if owner is module:
            yield values, None
        elif path := within.get(id(owner)):
            yield values, (weakref.ref(module), tuple(path.split(".")), weakref.ref(owner))
        elif path := next((name for name, part in owner.named_modules() if part is module), ""):
            yield values, (weakref.ref(owner), tuple(path.split(".")), weakref.ref(module))


def _lead(links: tuple[_Link, ...]) -> bool:
    """True if all modules still are where they were found."""
    for root, names, target in links:
        found, expected = root(), target()
        for name in names:
            if found is None:
                return False
            found = found.__dict__["_modules"].get(name)  # get_submodule takes ten times as long
        if found is None or found is not expected:
            return False
    return True


def differences(made_with: Mapping[str, str], present: Mapping[str, str]) -> tuple[str, ...]:
    """In words, where the state that an artifact was made with differs from what is declared."""
    return tuple(
        f"runtime state {name}: {made_with.get(name, _ABSENT)} -> {present.get(name, _ABSENT)}"
        for name in sorted(made_with.keys() | present.keys())
        if made_with.get(name) != present.get(name)
    )


def in_words(state: Mapping[str, str]) -> str:
    """A state in one line, such as ``kv_cache_blocks 512, kv_cache_dtype 'fp16'``."""
    return ", ".join(f"{name} {text}" for name, text in state.items())


class RuntimeStateGuard:
    """Compares the state declared for a module with an artifact's; asked on every call."""

    __slots__ = ("_known", "_made_with", "_module")

    def __init__(self, module: Module, made_with: Mapping[str, str]) -> None:
        self._module = module
        self._made_with = made_with
        # Version of the declarations, answer, and where modules have to be for it. Read and written whole:
        # threads may ask while another one declares.
        self._known: tuple[int, bool, tuple[_Link, ...]] = (-1, False, ())

    def holds(self) -> bool:
        """True if they are equal now."""
        version, answer, links = self._known
        if version == DECLARED.version and (not links or _lead(links)):
            return answer
        version = DECLARED.version  # before the look: what is declared meanwhile is looked at again
        links = tuple(link for _, link in _concerning(self._module) if link)
        answer = declared_for(self._module) == self._made_with
        self._known = version, answer, links
        return answer


def declare_runtime_state(module: Module, values: Mapping[str, Scalar]) -> None:
    """Declare values that the graphs of a module's cached functions depend on beside their arguments.

    They count from the next call on: artifacts that were made with other values are not used. Names that
    were declared for the module before keep their value, or take the new one. Declare the same names before
    the first call in every process: a name more or less is a difference too.

    Args:
        module: whose cached functions are concerned, with those of modules within it and around it.
        values: by name, numbers, strings, booleans and None.

    Raises:
        BadRuntimeState: no module, too many values, or a name or value of another kind.
    """
    from torch.nn import Module  # here, because drivers import this without torch

    texts = checked(values)
    if not isinstance(module, Module):
        raise BadRuntimeState(
            f"runtime state was declared for a {type(module).__qualname__}; expected the torch.nn.Module "
            "whose cached functions depend on it, as in "
            "warmrank.declare_runtime_state(model, {'kv_cache_blocks': 512})"
        )
    with DECLARED.lock:
        alive = [entry for entry in DECLARED.all if entry[0]() is not None]
        before = next((known for owner, known in alive if owner() is module), {})
        after = {**before, **texts}
        if after == before:
            return
        _check_number(len(after))
        others = (entry for entry in alive if entry[0]() is not module)
        DECLARED.all = (*others, (weakref.ref(module), after))
        DECLARED.version += 1


def checked(values: Mapping[str, Scalar]) -> dict[str, str]:
    """The values as text, by name."""
    if not isinstance(values, Mapping):
        kind = type(values).__qualname__
        raise BadRuntimeState(f"runtime state is a {kind}; expected a mapping of names to values")
    _check_number(len(values))
    for name, value in values.items():
        if not (type(name) is str and name.isidentifier() and name.isascii() and len(name) <= MAX_NAME_CHARS):
            shown = f"runtime state has the name {repr(name)[:MAX_NAME_CHARS]}"
            raise BadRuntimeState(f"{shown}; expected an identifier in ASCII, such as 'kv_cache_blocks'")
        if fault := _fault(value):
            raise BadRuntimeState(f"runtime state {name} is {fault}")
    return {name: repr(value) for name, value in values.items()}


def _check_number(count: int) -> None:
    if count > MAX_VALUES:
        raise BadRuntimeState(
            f"{count} values of runtime state for one module, at most {MAX_VALUES}; declare what graphs "
            "depend on only, or one digest of it all as a string"
        )


def _fault(value: Any) -> str:
    if type(value) not in _SCALARS:  # exactly: the repr of a subclass may say less, or other things
        kind = type(value).__qualname__
        return f"a {kind}; expected int, float, str, bool or None: convert it, as in int(value)"
    if type(value) is int and value.bit_length() > _INT_BITS:
        return f"an int of {value.bit_length()} bits; expected at most {_INT_BITS}"
    if type(value) is float and not math.isfinite(value):
        return f"{value!r}; expected a finite number"
    if type(value) is str and len(repr(value)) > MAX_TEXT_CHARS:
        return f"a string of {len(value)} characters; expected a short one, such as a digest"
    return ""
