"""Frozen values that cost microseconds to define.

`dataclasses` compiles six methods for each class, half a millisecond or more; the forty values of a warm load
would take longer than the load itself (docs/decisions/0019-values.md). All values share `Value`'s methods.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, field, make_dataclass
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

V = TypeVar("V", bound="Value")


class _Fields:
    """A class's fields as `dataclasses` describes them, made only for those who ask."""

    def __init__(self) -> None:
        self._made: dict[type, dict[str, Field[Any]]] = {}

    def __get__(self, instance: object, owner: type[Value]) -> dict[str, Field[Any]]:
        if owner not in self._made:
            described = []
            for name, default in owner.value_fields.items():
                one = default if isinstance(default, Field) else field(default=default)
                described.append((name, owner.__annotations__.get(name, Any), one))
            made: Any = make_dataclass(owner.__name__, described, kw_only=True)
            self._made[owner] = made.__dataclass_fields__
        return self._made[owner]


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Value:
    """Base of values; annotated names are fields, as in ``dataclass(frozen=True, kw_only=True)``.

    Equal by class and fields, hashable if they are, picklable; `dataclasses.replace`, `asdict` and `fields`
    take them. The module of a value needs ``from __future__ import annotations``.

    Attributes:
        value_fields: name -> default, or ``field(default_factory=...)``, or MISSING.
    """

    value_fields: ClassVar[dict[str, Any]] = {}
    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    else:
        __dataclass_fields__ = _Fields()

    def __init_subclass__(cls) -> None:
        own = {}
        for name, kind in get_annotations(cls).items():
            if not kind.startswith("ClassVar"):
                own[name] = given = cls.__dict__.get(name, MISSING)
                if isinstance(given, Field):
                    delattr(cls, name)
        cls.value_fields = {**cls.value_fields, **own}

    def __init__(self, /, *unnamed: Any, **given: Any) -> None:
        if unnamed:
            known = ", ".join(self.value_fields)
            raise TypeError(f"{type(self).__qualname__} takes its fields by name; its fields: {known}")
        for name, default in self.value_fields.items():
            if name in given:
                self.__dict__[name] = given.pop(name)
            elif isinstance(default, Field) and default.default_factory is not MISSING:
                self.__dict__[name] = default.default_factory()
            elif default is MISSING:
                raise TypeError(f"{type(self).__qualname__} needs a value for its field {name}")
            else:
                self.__dict__[name] = default
        if given:
            unknown, known = ", ".join(sorted(given)), ", ".join(self.value_fields)
            raise TypeError(f"{type(self).__qualname__} has no field {unknown}; its fields: {known}")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={self.__dict__[name]!r}" for name in self.value_fields)
        return f"{type(self).__qualname__}({values})"

    def __eq__(self, other: object) -> bool:
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.__dict__[name] for name in self.value_fields))

    def __setattr__(self, name: str, value: object) -> None:
        kind = type(self).__qualname__
        raise FrozenInstanceError(f"cannot assign to field {name!r} of a {kind}; make another with replace()")


def replace(value: V, /, **changes: Any) -> V:
    """A value with other fields; as `dataclasses.replace`, without making fields first."""
    return type(value)(**{**{name: value.__dict__[name] for name in value.value_fields}, **changes})
