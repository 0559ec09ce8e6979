"""One module of the zoo, and what is expected of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A module and its calls.

    Attributes:
        build: makes the module.
        calls: makes the calls, anew for eager and for cached.
        cold: per call, ``compiled``, or ``ran`` where something loaded already fits.
        options: parameters of `cache_compile`.
        settings: options of the configuration, by dotted name.
        context: expression of the context manager that the calls run under.
        tolerance: largest absolute difference; zero means equal to the bit.
    """

    build: Callable[[], nn.Module]
    calls: Callable[[], list[Call]]
    cold: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    context: str = "torch.no_grad()"
    tolerance: float = 0.0

    @property
    def warm(self) -> tuple[str, ...]:
        """What a later process does instead."""
        return tuple("loaded" if outcome == "compiled" else outcome for outcome in self.cold)


def call(*args: Any, **kwargs: Any) -> Call:
    return Call(args, kwargs)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same random tensor in every process."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 4, shape, generator=generator, dtype=dtype)


CASES: dict[str, Case] = {}
REFUSED: dict[str, Case] = {}


_OPTIONS = frozenset(field.name for field in fields(Case))


def case(calls: Callable[[], list[Call]], cold: str, **more: Any) -> Callable[[Any], type[nn.Module]]:
    """Enter a module class into the zoo under its own name.

    Or a function, which is the ``forward`` of a class of its own; ``more`` are what makes its attributes, and
    fields of `Case`.
    """
    return partial(_enter, CASES, calls, cold, more)


def refused(calls: Callable[[], list[Call]], error: str, **more: Any) -> Callable[[Any], type[nn.Module]]:
    """Enter one that must be refused with an error of this type."""
    return partial(_enter, REFUSED, calls, error, more)


def _enter(
    zoo: dict[str, Case], calls: Callable[[], list[Call]], cold: str, more: dict[str, Any], made: Any
) -> type[nn.Module]:
    options = {name: value for name, value in more.items() if name in _OPTIONS}
    cls = made if isinstance(made, type) else _class_of(made, {**more, **dict.fromkeys(options)})
    assert cls.__name__ not in zoo, cls.__name__
    zoo[cls.__name__] = Case(build=cls, calls=calls, cold=tuple(cold.split()), **options)
    return cls


def _class_of(forward: Any, attributes: dict[str, Callable[[], Any] | None]) -> type[nn.Module]:
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, make in attributes.items():
                if make is not None:
                    setattr(self, name, make())

    Made.__module__, Made.__name__, Made.__qualname__ = forward.__module__, forward.__name__, forward.__name__
    Made.__doc__, Made.forward = forward.__doc__, forward
    forward.__name__, forward.__qualname__ = "forward", f"{Made.__qualname__}.forward"
    return Made
