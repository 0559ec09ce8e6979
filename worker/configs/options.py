"""The frame of `CompilerConfig`: checked options in sections, which take no other names.

Each option declares its effect: `CompilerConfig.check` warns of options that have none, and engine torchair
hands the others to TorchAir or refuses them. The sections are imported where one of them is read or set.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, overload

from warmrank.worker.errors import BadConfig, UnknownOption

if TYPE_CHECKING:
    from typing import Generic

    from warmrank.worker.configs.sections import Effect
else:

    class Generic:
        """For type checkers alone: typing's own takes longer than the definition of all options."""

        def __class_getitem__(cls, item: object) -> type:
            return cls


MODES = ("max-autotune", "reduce-overhead", "npugraph_ex")
TORCHAIR = "torchair"
_SECTIONS = "warmrank.worker.configs.sections"
T = TypeVar("T")
S = TypeVar("S", bound="Section")
Word = TypeVar("Word", bound=str | None)


class Declared(Generic[T]):
    """Declaration of a section under a name."""

    name = ""

    def __set_name__(self, owner: type[Section], name: str) -> None:
        self.name = name
        self._owner = owner

    @overload
    def __get__(self, section: None, owner: type[Section]) -> Self: ...
    @overload
    def __get__(self, section: Section, owner: type[Section]) -> T: ...
    def __get__(self, section: Section | None, owner: type[Section]) -> Self | T:
        return self if section is None else self._held(section)

    def _held(self, section: Section) -> T:
        raise NotImplementedError


class Option(Declared[T]):
    """A checked value with a default, which is always allowed."""

    words: str = ""  # the allowed values, for an error message
    is_of_process: ClassVar[bool] = False  # another value changes nothing that is compiled

    def __init__(self, default: T, *, effect: Effect | None = None) -> None:
        self.default = default
        self._effect = effect

    @property
    def effect(self) -> Effect | None:
        """Its own effect, or else the section's; None in all modes."""
        return self._effect or self._owner._effect  # noqa: SLF001 - the two form one frame

    def _held(self, section: Section) -> T:
        value: T = section.__dict__.get(self.name, self.default)
        return value

    def __set__(self, section: Section, value: T) -> None:
        if not (same(value, self.default) or self._allows(value)):
            place = dotted(section, self.name)
            msg = (
                f"config.{place} = {value!r} ({type(value).__name__}) is not allowed; "
                f"allowed: {self.words}; default: {self.default!r}"
            )
            raise BadConfig(msg, option=place, value=repr(value), allowed=self.words)
        # A caller that goes on to change its list or dict must not change the configuration unchecked.
        section.__dict__[self.name] = copy.deepcopy(value) if isinstance(value, list | dict) else value

    def _allows(self, value: object) -> bool:
        raise NotImplementedError

    def canonical(self, value: T) -> str:
        """`value` as text, equal in every process."""
        if self.is_of_process and value != self.default:
            return '"given"'
        return json.dumps(value, sort_keys=True, separators=(",", ":"))


class Part(Declared[S]):
    """A section within a section; every instance of the outer one has its own.

    ``kind`` is its class, or the name of that in `worker.configs.sections`.
    """

    def __init__(self, kind: type[S] | str) -> None:
        self._kind = kind

    @property
    def kind(self) -> type[S]:
        """The section's class."""
        kind = self._kind
        if isinstance(kind, str):  # read once: another thread may be at it, too
            kind = self._kind = getattr(importlib.import_module(_SECTIONS), kind)
        return kind

    def _held(self, section: Section) -> S:
        part: S = section.__dict__.get(self.name) or section.__dict__.setdefault(self.name, self.kind())
        return part

    def __set__(self, section: Section, value: S) -> None:
        if type(value) is not self.kind:
            place = dotted(section, self.name)
            msg = (
                f"config.{place} holds options ({', '.join(names(self.kind))}); "
                f"set one of them, not the whole to {value!r} ({type(value).__name__})"
            )
            raise BadConfig(msg, option=place, value=repr(value), allowed=self.kind.__name__)
        section.__dict__[self.name] = copy.deepcopy(value)


class Section:
    """Options and parts, declared as class attributes.

    A subclass names its place, and the effect of options that do not declare their own:
    ``class AclGraphDebug(Section, at="debug.aclgraph", effect=CAPTURE)``.
    """

    _at: ClassVar[str] = ""
    _effect: ClassVar[Effect | None] = None

    def __init_subclass__(cls, *, at: str, effect: Effect | None = None) -> None:
        cls._at = at
        cls._effect = effect

    def __init__(self, *args: Any, **given: Any) -> None:
        if args or given:
            example = dotted(self, next(iter(given), "mode"))
            msg = f"{type(self).__name__}() takes no arguments; make it, then set config.{example} = ..."
            raise TypeError(msg)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in names(type(self)):
            raise _unknown(self, name)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        # Python asks for protocol methods that may be missing (copy, pickle); that is no misspelt option.
        if name.startswith("__"):
            raise AttributeError(name)
        raise _unknown(self, name)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        pairs = zip(options(self), options(other), strict=True)
        return all(same(value, other_value) for (_, _, value), (_, _, other_value) in pairs)

    __hash__ = None  # type: ignore[assignment] # mutable

    def __copy__(self) -> Self:
        # A shallow copy would share its parts with the original, and so its options.
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, _, value in changed(self))})"


def same(one: object, other: object) -> bool:
    """Equal in type and value; ``True == 1`` is not enough."""
    return type(one) is type(other) and one == other


def names(kind: type[Section]) -> tuple[str, ...]:
    """Names of a section's options and parts, in their order."""
    return tuple(name for name, value in vars(kind).items() if isinstance(value, Option | Part))


def options(section: Section) -> Iterator[tuple[str, Option[Any], Any]]:
    """Every option of a section and its parts: dotted name, declaration, present value."""
    for name, declared in vars(type(section)).items():
        if isinstance(declared, Option):
            yield dotted(section, name), declared, section.__dict__.get(name, declared.default)
        elif isinstance(declared, Part):
            yield from options(getattr(section, name))


def changed(section: Section) -> Iterator[tuple[str, Option[Any], Any]]:
    """`options` without those at their default; looks at nothing that was never set."""
    for name, value in section.__dict__.items():
        declared = getattr(type(section), name)
        if isinstance(declared, Part):
            yield from changed(value)
        elif not same(value, declared.default):
            yield dotted(section, name), declared, value


def dotted(section: Section, name: str) -> str:
    """An option's full name, such as ``debug.aclgraph.clone_input``."""
    at = section._at  # noqa: SLF001 - the two form one frame
    return f"{at}.{name}" if at else name


def _unknown(section: Section, name: str) -> UnknownOption:
    """The error for an unknown name, with the nearest known one of the section or its parts."""
    import difflib

    place = dotted(section, name)
    known = names(type(section))
    near = [dotted(section, found) for found in difflib.get_close_matches(name, known, n=1)]
    if not near:
        deeper = {option.name: full for full, option, _ in options(section)}
        near = [deeper[found] for found in difflib.get_close_matches(name, deeper, n=1)]
    hint = f"did you mean config.{near[0]}? " if near else ""
    msg = f"CompilerConfig has no option config.{place}; {hint}Known here: {', '.join(known)}"
    return UnknownOption(msg, option=place, nearest=near[0] if near else "", known=known)


class Choice(Option[Word]):
    """One of a few words; those of ``of_ascend`` mean something to engine torchair only."""

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

    def _allows(self, value: object) -> bool:
        return any(same(value, choice) for choice in self.choices)


class _Named(str):  # noqa: SLOT000 - it knows its option
    """A word that also has ``.value``, to read and to set: ``config.mode.value``, as TorchAir's options."""

    _section: Section
    _name: str

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)

    @property
    def value(self) -> str:
        """The word."""
        return str(self)

    @value.setter
    def value(self, word: str) -> None:
        setattr(self._section, self._name, word)


class NamedChoice(Choice[str]):
    """A `Choice` whose value has an attribute ``value``, as TorchAir's options have."""

    def _held(self, section: Section) -> str:
        found = _Named(super()._held(section))
        found._section, found._name = section, self.name  # noqa: SLF001 - of this module
        return found

    def __set__(self, section: Section, value: str) -> None:
        super().__set__(section, str(value) if isinstance(value, _Named) else value)


class Function(Option[Callable[..., Any] | None]):
    """A function."""

    words = "a callable"

    def _allows(self, value: object) -> bool:
        return callable(value)

    def canonical(self, value: Callable[..., Any] | None) -> str:
        """Its name, and a digest of its code and all that it reaches."""
        if value is None:
            return "null"
        # Only where such an option is set: it looks at modules and source files.
        from warmrank.worker.keys.reachable import reachable_digest

        kind = value if hasattr(value, "__qualname__") else type(value)
        return json.dumps(f"{kind.__module__}:{kind.__qualname__}#{reachable_digest(value)}")
