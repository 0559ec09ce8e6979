"""The kinds of options: what each accepts, how it says so, and how its value is written into a key."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from warmrank.worker.configs.section import ASCEND, Effect, Option, Section, same

Word = TypeVar("Word", bound=str | None)
Bool = TypeVar("Bool", bound=bool | None)
Int = TypeVar("Int", bound=int | None)

INT64_MAX = 2**63 - 1


class Choice(Option[Word]):
    """One of a few words; of those, some may mean something to the Ascend toolchain only."""

    def __init__(
        self,
        default: Word,
        choices: Sequence[str],
        *,
        of_ascend: Sequence[str] = (),
        effect: Effect | None = None,
    ) -> None:
        super().__init__(default, effect=effect)
        self.choices = tuple(choices)
        self.of_ascend = tuple(of_ascend)
        self.words = ", ".join((*map(repr, choices), *(("None",) if default is None else ())))

    def effect_of(self, value: object) -> Effect:
        """That of the option, or none for a word of the Ascend toolchain."""
        return ASCEND if value in self.of_ascend else self.effect

    def _allows(self, value: object) -> bool:
        return any(same(value, choice) for choice in self.choices)


class Named(str):  # noqa: SLOT000 - it knows its option
    """A word as TorchAir's options are read and set too: ``config.mode.value``."""

    _section: Section
    _name: str

    def __new__(cls, word: str, section: Section, name: str) -> Self:
        """A word that knows the option that it is of."""
        made = super().__new__(cls, word)
        made._section, made._name = section, name
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)

    @property
    def value(self) -> str:
        """The word."""
        return str(self)

    @value.setter
    def value(self, word: str) -> None:
        """Set the option."""
        setattr(self._section, self._name, word)


class NamedChoice(Choice[str]):
    """A `Choice` whose value has an attribute ``value``, as TorchAir's options have."""

    def __get__(self, section: Any, owner: Any) -> Any:
        found = super().__get__(section, owner)
        return found if section is None else Named(found, section, self.name)

    def __set__(self, section: Section, value: str) -> None:
        super().__set__(section, str(value) if isinstance(value, Named) else value)


class Directory(Option[str | None]):
    """Where something is written to; it is made when it is needed."""

    words = "the path of a directory, as a str, None"

    def _allows(self, value: object) -> bool:
        return isinstance(value, str) and bool(value) and "\0" not in value

    def canonical(self, value: str | None) -> str:
        """Only whether there is one: where a dump goes changes nothing that is compiled."""
        return "null" if value is None else '"given"'


class Flag(Option[Bool]):
    """True or False; 0 and 1 are refused, because they may be meant as a number."""

    words = "True, False"

    def _allows(self, value: object) -> bool:
        return isinstance(value, bool)


class IntRange(Option[Int]):
    """A whole number between two bounds, both of them allowed."""

    def __init__(
        self, default: Int, minimum: int, maximum: int = INT64_MAX, *, effect: Effect | None = None
    ) -> None:
        super().__init__(default, effect=effect)
        self.minimum = minimum
        self.maximum = maximum
        self.words = f"an int from {minimum} to {maximum}"

    def _allows(self, value: object) -> bool:
        return type(value) is int and self.minimum <= value <= self.maximum


class IntList(Option[Sequence[int] | None]):
    """A list or tuple of whole numbers."""

    words = "a list or tuple of ints"

    def _allows(self, value: object) -> bool:
        return isinstance(value, list | tuple) and all(type(element) is int for element in value)


class Text(Option[Word]):
    """Any text, or only text of a certain form."""

    def __init__(
        self, default: Word, *, form: str = "", example: str = "", effect: Effect | None = None
    ) -> None:
        super().__init__(default, effect=effect)
        self.form = form
        self.words = f"a str such as {example!r}" if example else "a str"

    def _allows(self, value: object) -> bool:
        return isinstance(value, str) and (not self.form or re.fullmatch(self.form, value) is not None)


class Number(Option[str | int | None]):
    """A number that the Ascend engine reads as text: an int, or a str that it knows how to read."""

    words = "an int or a str"

    def _allows(self, value: object) -> bool:
        return type(value) in {str, int}


class ExistingDirectory(Option[str]):
    """A directory that is there when the option is set."""

    words = "the path of an existing directory, as a str"

    def _allows(self, value: object) -> bool:
        return isinstance(value, str) and Path(value).is_dir()

    def canonical(self, value: str) -> str:
        """Only whether it is another than the default: where something is written changes no compile."""
        return json.dumps(value) if value == self.default else '"given"'


class ExistingFile(Option[str | None]):
    """A file that is there when the option is set."""

    def __init__(self, *, suffix: str = "") -> None:
        super().__init__(None)
        self.suffix = suffix
        self.words = f"the path of an existing {suffix}{' ' if suffix else ''}file, as a str"

    def _allows(self, value: object) -> bool:
        return isinstance(value, str) and value.endswith(self.suffix) and Path(value).is_file()

    def canonical(self, value: str | None) -> str:
        """The digest of what stands in it: the same path may hold something else tomorrow."""
        if value is None:
            return "null"
        return json.dumps(hashlib.sha256(Path(value).read_bytes()).hexdigest())


class PlainMapping(Option[Mapping[str, Any] | None]):
    """A dict that JSON can hold, so that it can be part of a key whatever the order of its literal."""

    words = "a dict with str keys that holds only str, numbers, bools, None, lists and dicts"

    def _allows(self, value: object) -> bool:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            return False
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return False
        return True


class PoolHandle(Option[tuple[Any, ...] | None]):
    """The handle of a memory pool."""

    words = "the pair of ints that warmrank.graph_pool_handle() returns"

    def _allows(self, value: object) -> bool:
        return isinstance(value, tuple) and len(value) == 2 and all(type(part) is int for part in value)

    def canonical(self, value: tuple[Any, ...] | None) -> str:
        """Only whether there is one: the handle differs in every process and changes no compile."""
        return "null" if value is None else '"given"'


class Function(Option[Callable[..., Any] | None]):
    """A function."""

    words = "a callable"

    def _allows(self, value: object) -> bool:
        return callable(value)

    def canonical(self, value: Callable[..., Any] | None) -> str:
        """Its name, and a digest of what it does and of all that it reaches; never an address."""
        if value is None:
            return "null"
        # Only for who sets such an option: it looks at modules and source files.
        from warmrank.worker.keys.reachable import reachable_digest

        kind = value if hasattr(value, "__qualname__") else type(value)
        return json.dumps(f"{kind.__module__}:{kind.__qualname__}#{reachable_digest(value)}")
