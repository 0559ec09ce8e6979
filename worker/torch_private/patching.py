"""Stepping in between while torch works: functions of its own replaced, operators seen as they are called.

Relies on ``TorchDispatchMode.__init_subclass__`` leaving ``__torch_dispatch__`` as it is where
``_should_skip_dynamo`` says no; otherwise it would wrap it, which imports Dynamo.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


@contextlib.contextmanager
def wrapped(
    owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Replaces one function of a class or a module within the context, for the whole process."""
    original = vars(owner)[name]
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


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
        """What a call of an operator returns."""
