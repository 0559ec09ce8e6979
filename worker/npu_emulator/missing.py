"""Native names that nothing stands in for: they can be looked up, so that imports work, and not used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from warmrank.worker.errors import NotEmulated


class NotNative:
    """A native function, class or module that is not emulated: it can be looked up, and not used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> NotNative:
        if name.startswith("__"):
            raise AttributeError(name)
        return NotNative(f"{self._name}.{name}")

    def __mro_entries__(self, _: tuple[Any, ...]) -> tuple[type, ...]:
        """As a base class it makes classes of which no instance can be made."""
        return (type(self._name.rpartition(".")[2], (), {"__init__": self}),)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse.

        Raises:
            NotEmulated: always; it names what was used.
        """
        msg = (
            f"{self._name} is native code of the NPU, which the emulator does not stand in for. Run this on "
            "an NPU, or leave out what needs it."
        )
        raise NotEmulated(msg, name=self._name)

    def __repr__(self) -> str:
        return f"<not emulated: {self._name}>"


def missing_attributes(module: str, absent: tuple[str, ...] = ()) -> Callable[[str], NotNative]:
    """A module's ``__getattr__`` for native names."""

    def find(name: str) -> NotNative:
        if name.startswith("__") or name in absent:
            raise AttributeError(name)
        return NotNative(f"{module}.{name}")

    return find


def nothing(*_: Any, **__: Any) -> None:
    """What a native function does from which nothing follows here."""
