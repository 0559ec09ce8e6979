"""Functions of torch replaced while it works."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

_VARIABLES = "torch._dynamo.variables.base:VariableTracker"
Step = TypeVar("Step", bound=Callable[..., Any])


class Target(NamedTuple):
    """Functions of torch that a method is declared a step in for, which are facts about torch (`facts`)."""

    owner: str  # ``module``, ``module:Class`` or ``module:mapping``
    # of its functions, or its keys; in brackets, parameters that one takes: ``mutation(var)``
    names: tuple[str, ...]
    is_optional: bool  # not every release has them
    # None; or which of the classes of Dynamo's variables count, where they define a function
    among: Callable[[str], bool] | None

    def places(self) -> Iterator[tuple[Any, str]]:
        """Owner and name of each function that is there."""
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
                    yield one, name


def steps_in(
    owner: str, *names: str, is_optional: bool = False, among: Callable[[str], bool] | None = None
) -> Callable[[Step], Step]:
    """Declare a method a step in for functions of torch: it is called with the original and its arguments."""

    def declare(step: Step) -> Step:
        target = Target(owner, names, is_optional, among)
        vars(step).setdefault("targets", []).append(target)
        return step

    return declare


def steps_in_variables(
    *names: str, is_optional: bool = False, only: str = "", without: str = ""
) -> Callable[[Step], Step]:
    """The same for methods of Dynamo's variables, but lazy ones, which only forward to what they become."""

    def among(kind: str) -> bool:
        return kind not in ("LazyVariableTracker", without) and only in ("", kind)

    return steps_in(_VARIABLES, *names, is_optional=is_optional, among=among)


def targets_of(value: Any) -> Sequence[Target]:
    """The targets that a member of a class is declared a step in."""
    return vars(value).get("targets", ()) if isinstance(value, FunctionType) else ()


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
def replaced(owner: Any, name: Any, function: Any) -> Iterator[Any]:
    """Replace a function of a class, module or dict within the context, for the whole process."""
    put = owner.__setitem__ if isinstance(owner, dict) else functools.partial(setattr, owner)
    original = (owner if isinstance(owner, dict) else vars(owner))[name]
    put(name, function)
    try:
        yield
    finally:
        put(name, original)


@contextlib.contextmanager
def intercepted(*holders: Any) -> Iterator[None]:
    """Let objects' methods step in within the context; of two for one function the later is the outer."""
    with contextlib.ExitStack() as stack:
        for holder in holders:
            for name, method in vars(type(holder)).items():
                for owner, function in (place for target in targets_of(method) for place in target.places()):
                    original = (owner if isinstance(owner, dict) else vars(owner))[function]
                    around = _around(original, getattr(holder, name))
                    stack.enter_context(replaced(owner, function, around))
        yield


def _around(original: Any, step: Callable[..., Any]) -> Any:
    function = original.__func__ if isinstance(original, staticmethod) else original

    @functools.wraps(function)  # torch looks at signatures
    def call(*args: Any, **kwargs: Any) -> Any:
        return step(function, *args, **kwargs)

    return staticmethod(call) if isinstance(original, staticmethod) else call
