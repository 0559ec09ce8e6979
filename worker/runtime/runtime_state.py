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

import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.nn import Module

# In a module, by these names, is that module.
_Link = tuple[weakref.ref["Module"], tuple[str, ...], weakref.ref["Module"]]
_ABSENT = "not declared"
_NEVER = -1  # no version


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
    """What holds for the cached functions of a module now: name -> text of the value, sorted by name.

    Raises:
        BadRuntimeState: two modules, both of which concern this one, declare a name with different values.
    """
    found: dict[str, str] = {}
    for values, _ in _concerning(module) if DECLARED.all else ():
        for name, text in values.items():
            if found.setdefault(name, text) != text:
                from warmrank.worker.runtime.declare import conflict

                raise conflict(module, name, found[name], text)
    return dict(sorted(found.items()))


def _concerning(module: Module) -> Iterator[tuple[Mapping[str, str], _Link | None]]:
    """What modules within and around a module declare, with where they are; None for its own."""
    within = {id(part): name for name, part in module.named_modules()}
    for reference, values in DECLARED.all:
        owner = reference()
        if owner is None:
            continue
        if owner is module:
            yield values, None
        elif id(owner) in within:
            yield values, _link(module, within[id(owner)], owner)
        elif around := next((name for name, part in owner.named_modules() if part is module), ""):
            yield values, _link(owner, around, module)


def _link(root: Module, path: str, target: Module) -> _Link:
    return weakref.ref(root), tuple(path.split(".")), weakref.ref(target)


def _lead(links: tuple[_Link, ...]) -> bool:
    """Whether all modules still are where they were found."""
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
    """Whether what is declared for a module is what an artifact was made with; asked on every call."""

    __slots__ = ("_known", "_linked", "_made_with", "_module")

    def __init__(self, module: Module, made_with: Mapping[str, str]) -> None:
        self._module = module
        self._made_with = made_with
        # Version of the declarations and answer; with links in the second tuple, which alone counts then.
        # Each is read and written whole: threads may ask while another one declares.
        self._known = (_NEVER, False)
        self._linked: tuple[int, bool, tuple[_Link, ...]] = (_NEVER, False, ())

    def holds(self) -> bool:
        """Whether they are equal now."""
        version, answer = self._known
        return answer if version == DECLARED.version else self._looked()

    def _looked(self) -> bool:
        """The answer where something was declared anew, or modules have to be where they were."""
        version, answer, links = self._linked
        if version == DECLARED.version and _lead(links):
            return answer
        version = DECLARED.version  # before the look: what is declared meanwhile is looked at again
        links = tuple(link for _, link in _concerning(self._module) if link) if DECLARED.all else ()
        answer = declared_for(self._module) == self._made_with
        self._linked = version, answer, links
        self._known = (_NEVER if links else version), answer
        return answer
