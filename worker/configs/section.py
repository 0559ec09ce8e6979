"""The frame of `CompilerConfig`: sections of options that check what is assigned, and what each option does.

A section holds options and other sections, and nothing else: any other name is refused, with the nearest
known one. Values are kept as they were given, never converted, so equal configurations have equal values.
Each option declares its effect, so that none is accepted and then ignored in silence: `CompilerConfig.check`
says which have none, and engine torchair hands the others to TorchAir, or refuses them.
"""

from __future__ import annotations

import copy
import difflib
import enum
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Generic, Self, TypeVar, overload

from warmrank.worker.errors import BadConfig, UnknownOption
from warmrank.worker.values import Value

MODES = ("max-autotune", "reduce-overhead", "npugraph_ex")


TORCHAIR = "torchair"
_CAPTURED = ("reduce-overhead", "npugraph_ex")


class Scope(enum.Enum):
    """Which engines do something about an option."""

    HERE = "every engine"
    ASCEND = "engine torchair only"
    NOWHERE = "no engine"


class Effect(Value):
    """What a value other than the default does.

    Attributes:
        scope: which engines do something about it.
        modes: in which modes they do; an option of another mode has no effect, as in TorchAir.
        torchair_modes: in which modes engine torchair does, where these differ from `modes`.
        why: why it does nothing where it does nothing; empty for an option that always does.
    """

    scope: Scope = Scope.HERE
    modes: tuple[str, ...] = MODES
    torchair_modes: tuple[str, ...] | None = None
    why: str = ""

    def modes_of(self, engine: str) -> tuple[str, ...]:
        """The modes in which an engine does something about it."""
        return self.modes if engine != TORCHAIR or self.torchair_modes is None else self.torchair_modes


EVERY_MODE = Effect()
CAPTURE = Effect(modes=("reduce-overhead",), torchair_modes=_CAPTURED)
FROZEN = replace(CAPTURE, torchair_modes=MODES)
ASCEND = Effect(scope=Scope.ASCEND, why="it belongs to engine torchair")
ASCEND_ENGINE = replace(ASCEND, modes=("max-autotune",))
ASCEND_CAPTURE = replace(ASCEND, modes=_CAPTURED)
ASCEND_FLAT = replace(ASCEND, modes=("npugraph_ex",))


def torchair_only(why: str, *, modes: tuple[str, ...] = MODES) -> Effect:
    """The effect of an option that only TorchAir's graphs know; `why` says why those of others do not."""
    return Effect(scope=Scope.ASCEND, torchair_modes=modes, why=why)


def captured_by_torchair(why: str) -> Effect:
    """As `torchair_only`, of the graphs that TorchAir captures."""
    return torchair_only(why, modes=_CAPTURED)


def nowhere(why: str) -> Effect:
    """The effect of an option that changes nothing in warmrank, whatever the engine."""
    return Effect(scope=Scope.NOWHERE, why=why)


class Verdict(enum.Enum):
    """What comes of a value that somebody set."""

    WORKS = "works"
    NO_EFFECT = "no effect"


def verdict(effect: Effect, *, mode: str, engine: str = "") -> tuple[Verdict, str]:
    """What comes of an effect in a mode with an engine, and why where it does not work.

    Args:
        effect: what the option declares.
        mode: of the configuration.
        engine: name of the engine that compiles; empty for the one of warmrank's own that the mode means.
    """
    engine = engine or (TORCHAIR if mode == "npugraph_ex" else "")
    modes = effect.modes_of(engine)
    if mode not in modes:
        return Verdict.NO_EFFECT, f"it belongs to mode {' and '.join(modes)}"
    if effect.scope is Scope.HERE or (effect.scope is Scope.ASCEND and engine == TORCHAIR):
        return Verdict.WORKS, ""
    return Verdict.NO_EFFECT, effect.why


T = TypeVar("T")
S = TypeVar("S", bound="Section")


class Option(Generic[T]):
    """A checked value with a default; the kinds of options stand in `worker.configs.options`.

    Attributes:
        default: the value while nobody has set one; always allowed.
        effect: what any other value does; the section's, where the option does not say.
        name: the attribute's name, set by Python.
        words: the allowed values, for an error message.
    """

    words: str = ""

    def __init__(self, default: T, *, effect: Effect | None = None) -> None:
        self.default = default
        self._effect = effect
        self.name = ""

    def __set_name__(self, owner: type[Section], name: str) -> None:
        self.name = name
        self._owner = owner

    @property
    def effect(self) -> Effect:
        """What a value other than the default does."""
        return self._effect or self._owner.effect_of_options()

    @overload
    def __get__(self, section: None, owner: type[Section]) -> Self: ...
    @overload
    def __get__(self, section: Section, owner: type[Section]) -> T: ...
    def __get__(self, section: Section | None, owner: type[Section]) -> Self | T:
        if section is None:
            return self
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

    def effect_of(self, value: object) -> Effect:
        """What this value does; the same for every value but for the kinds that say otherwise."""
        del value
        return self.effect

    def canonical(self, value: T) -> str:
        """`value` as text that is the same in every process."""
        return json.dumps(value, sort_keys=True, separators=(",", ":"))


class Part(Generic[S]):
    """A section within a section; every instance of the outer one has its own."""

    def __init__(self, kind: type[S]) -> None:
        self.kind = kind
        self.name = ""

    def __set_name__(self, owner: type[Section], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, section: None, owner: type[Section]) -> Self: ...
    @overload
    def __get__(self, section: Section, owner: type[Section]) -> S: ...
    def __get__(self, section: Section | None, owner: type[Section]) -> Self | S:
        if section is None:
            return self
        if self.name not in section.__dict__:
            section.__dict__[self.name] = self.kind()
        part: S = section.__dict__[self.name]
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

    A subclass says where it stands, and what its options do where they do not say so themselves:
    ``class AclGraphDebug(Section, at="debug.aclgraph", effect=CAPTURE)``.
    """

    _at: ClassVar[str] = ""
    _effect: ClassVar[Effect] = EVERY_MODE

    def __init_subclass__(cls, *, at: str, effect: Effect = EVERY_MODE) -> None:
        cls._at = at
        cls._effect = effect

    @classmethod
    def effect_of_options(cls) -> Effect:
        """What options of this section do that do not say so themselves."""
        return cls._effect

    def __init__(self, *args: Any, **given: Any) -> None:
        if args or given:
            kind = type(self).__name__
            example = f"config.{dotted(self, next(iter(given)))}" if given else "config.mode"
            msg = f"{kind}() takes no arguments; options are attributes: make it, then set {example} = ..."
            raise TypeError(msg)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in names(type(self)):
            raise _unknown(self, name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name not in names(type(self)):
            raise _unknown(self, name)
        declared = vars(type(self))[name]
        remedy = f"its default is {declared.default!r}" if isinstance(declared, Option) else "set its options"
        place = dotted(self, name)
        msg = f"config.{place} cannot be deleted, only set; {remedy}"
        raise BadConfig(msg, option=place)

    def __getattr__(self, name: str) -> Any:
        # Python asks for protocol methods that may be missing (copy, pickle); that is no misspelt option.
        if name.startswith("__"):
            raise AttributeError(name)
        raise _unknown(self, name)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            same(value, value_there)
            for (_, _, value), (_, _, value_there) in zip(options(self), options(other), strict=True)
        )

    __hash__ = None  # type: ignore[assignment] # mutable

    def __copy__(self) -> Self:
        # A shallow copy would share its parts with the original, and so its options.
        return copy.deepcopy(self)

    def __repr__(self) -> str:
        changed = (
            f"{name}={value!r}" for name, option, value in options(self) if not same(value, option.default)
        )
        return f"{type(self).__name__}({', '.join(changed)})"


def same(one: object, other: object) -> bool:
    """Equal in type and value; ``True == 1`` is not enough."""
    return type(one) is type(other) and one == other


def names(kind: type[Section]) -> tuple[str, ...]:
    """Names of the options and parts that a kind of section declares, in their order."""
    return tuple(name for name, value in vars(kind).items() if isinstance(value, Option | Part))


def options(section: Section) -> Iterator[tuple[str, Option[Any], Any]]:
    """Every option of a section and of its parts: dotted name, declaration, present value."""
    for name, declared in vars(type(section)).items():
        if isinstance(declared, Option):
            yield dotted(section, name), declared, section.__dict__.get(name, declared.default)
        elif isinstance(declared, Part):
            yield from options(getattr(section, name))


def changed(section: Section) -> Iterator[tuple[str, Option[Any], Any]]:
    """As `options`, but only those whose value is not the default; looks at nothing that was never set."""
    for name, value in section.__dict__.items():
        declared = getattr(type(section), name)
        if isinstance(declared, Part):
            yield from changed(value)
        elif not same(value, declared.default):
            yield dotted(section, name), declared, value


def dotted(section: Section, name: str) -> str:
    """The name of an option as seen from the configuration, such as ``debug.aclgraph.clone_input``."""
    at = section._at  # noqa: SLF001 - the two form one module
    return f"{at}.{name}" if at else name


def _unknown(section: Section, name: str) -> UnknownOption:
    """The error for a name that a section does not have, with the nearest one that it or a part has."""
    place = dotted(section, name)
    known = names(type(section))
    near = [dotted(section, found) for found in difflib.get_close_matches(name, known, n=1)]
    if not near:
        deeper = {option.name: full for full, option, _ in options(section)}
        near = [deeper[found] for found in difflib.get_close_matches(name, deeper, n=1)]
    hint = f"did you mean config.{near[0]}? " if near else ""
    msg = f"CompilerConfig has no option config.{place}; {hint}Known here: {', '.join(known)}"
    return UnknownOption(msg, option=place, nearest=near[0] if near else "", known=known)
