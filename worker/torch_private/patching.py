"""Functions of torch replaced while it works, and operators seen as they are called.

Relies on ``TorchDispatchMode.__init_subclass__`` leaving ``__torch_dispatch__`` as it is where
``_should_skip_dynamo`` says no; otherwise it would wrap it, which imports Dynamo.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

from torch.utils._python_dispatch import TorchDispatchMode


class Hook(NamedTuple):
    """A function of a class, module or dict to step in for: ``step(original, *arguments)``."""

    owner: Any
    name: str
    step: Callable[..., Any]


_VARIABLES = "torch._dynamo.variables.base:VariableTracker"
Step = TypeVar("Step", bound=Callable[..., Any])


class Target(NamedTuple):
    """Functions of torch that a method is declared a step in for, which are facts about torch (`facts`)."""

    owner: str  # ``module``, ``module:Class`` or ``module:mapping``
    # of its functions, or its keys; in brackets, parameters that one takes: ``mutation(var)``
    names: tuple[str, ...]
    is_optional: bool = False  # not every release has them
    # None; or which of the classes of Dynamo's variables count, where they define a function
    among: Callable[[str], bool] | None = None

    def hooks(self, step: Callable[..., Any]) -> Iterator[Hook]:
        """A hook for each function that is there."""
        try:
            owner = named(self.owner)
        except (AttributeError, ImportError):
            if self.is_optional:
                return
            raise
        among = self.among
        owners = [owner] if among is None else [one for one in with_subclasses(owner) if among(one.__name__)]
        for one in owners:
            known = one if isinstance(one, dict) else vars(one)
            for name in (text.partition("(")[0] for text in self.names):
                if name in known or not (self.is_optional or among):
                    yield Hook(one, name, step)


def steps_in(owner: str, *names: str, is_optional: bool = False) -> Callable[[Step], Step]:
    """Declare a method a step in for functions of torch; see `Target`."""
    return _declaring(Target(owner, names, is_optional=is_optional))


def steps_in_variables(
    *names: str, is_optional: bool = False, only: str = "", without: str = ""
) -> Callable[[Step], Step]:
    """The same for methods of Dynamo's variables, but lazy ones, which only forward to what they become."""

    def among(kind: str) -> bool:
        return kind not in ("LazyVariableTracker", without) and only in ("", kind)

    return _declaring(Target(_VARIABLES, names, is_optional=is_optional, among=among))


def _declaring(target: Target) -> Callable[[Step], Step]:
    def declare(step: Step) -> Step:
        vars(step).setdefault("targets", []).append(target)
        return step

    return declare


def targets_of(value: Any) -> Sequence[Target]:
    """The targets that a member of a class is declared a step in."""
    return vars(value).get("targets", ()) if isinstance(value, FunctionType) else ()


def hooks_of(*holders: Any) -> Iterator[Hook]:
    """The hooks that the methods of objects are declared for."""
    for holder in holders:
        for name, method in vars(type(holder)).items():
            for target in targets_of(method):
                yield from target.hooks(getattr(holder, name))


def named(path: str) -> Any:
    """An object by its path: ``module``, ``module:Class.member``, or ``module:Class()`` for an instance."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    if name:
        found = functools.reduce(getattr, name.removesuffix("()").split("."), found)
    return found() if name.endswith("()") else found


def with_subclasses(cls: type[Any]) -> dict[type[Any], None]:
    """A class and all below it, each once."""
    found: dict[type[Any], None] = {cls: None}
    for one in cls.__subclasses__():
        found |= with_subclasses(one)
    return found


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Any) -> Iterator[None]:
    """Replace a function of a class, module or dict within the context, for the whole process."""
    original = owner[name] if isinstance(owner, dict) else vars(owner)[name]
    _put(owner, name, function)
    try:
        yield
    finally:
        _put(owner, name, original)


@contextlib.contextmanager
def intercepted(hooks: Iterable[Hook]) -> Iterator[None]:
    """Put hooks in place within the context; of two on one function the later is the outer."""
    with contextlib.ExitStack() as stack:
        for owner, name, step in hooks:
            original = owner[name] if isinstance(owner, dict) else vars(owner)[name]
            stack.enter_context(replaced(owner, name, _around(original, step)))
        yield


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
