"""Functions of torch replaced while it works, and operators seen as they are called.

Relies on ``TorchDispatchMode.__init_subclass__`` leaving ``__torch_dispatch__`` as it is where
``_should_skip_dynamo`` says no; otherwise it would wrap it, which imports Dynamo.
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode


@contextlib.contextmanager
def wrapped(
    owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replace one function of a class or a module within the context, for the whole process."""
    original = vars(owner)[name]
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


class Hook(NamedTuple):
    """A function of a class, module or dict to step in for: ``step(original, *arguments)``."""

    owner: Any
    name: str
    step: Callable[..., Any]


def with_subclasses(cls: type[Any]) -> list[type[Any]]:
    """A class and all below it, each once."""
    found: dict[type[Any], None] = {cls: None}
    for one in cls.__subclasses__():
        found.update(dict.fromkeys(with_subclasses(one)))
    return list(found)


def having(variables: Iterable[type[Any]], name: str, step: Callable[..., Any]) -> Iterator[Hook]:
    """A hook for each class of variables that defines a method itself."""
    return (Hook(cls, name, step) for cls in variables if name in vars(cls))


@contextlib.contextmanager
def intercepted(hooks: Iterable[Hook]) -> Iterator[None]:
    """Put hooks in place within the context; of two on one function the later is the outer."""
    replaced: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, step in hooks:
            original = owner[name] if isinstance(owner, dict) else vars(owner)[name]
            replaced.append((owner, name, original))
            _put(owner, name, _around(original, step))
        yield
    finally:
        for owner, name, original in reversed(replaced):
            _put(owner, name, original)


def _put(owner: Any, name: str, function: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = function
    else:
        setattr(owner, name, function)


def _around(original: Any, step: Callable[..., Any]) -> Any:
    function = original.__func__ if isinstance(original, staticmethod) else original

    @functools.wraps(function)  # torch looks at signatures
    def call(*args: Any, **kwargs: Any) -> Any:
        return step(function, *args, **kwargs)

    return staticmethod(call) if isinstance(original, staticmethod) else call


class Watch(TorchDispatchMode, ABC):
    """Sees every operator that is called within it; may be part of a warm load, for it imports no Dynamo."""

    supports_higher_order_operators = True  # to refuse them with our own words

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No wrapper around `__torch_dispatch__`: it would import Dynamo."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        return self.called(func, args, kwargs or {})

    @abstractmethod
    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run or replace the call of an operator, and return its result."""
