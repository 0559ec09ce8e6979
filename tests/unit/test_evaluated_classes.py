"""Classes that answer for themselves: what a registry says is a condition, any other answer is refused."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import pytest
import torch
from torch import nn

from tests.support.tracing import compiled, misfits
from warmrank.worker.errors import NotPortable

X = torch.ones(3)


class Registry(abc.ABC):  # noqa: B024 - nothing but a registry
    """What classes may be registered as."""


@runtime_checkable
class Later(Protocol):
    """Whatever has an attribute."""

    later: int


class Answering(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return hasattr(instance, "factor")


class Answered(metaclass=Answering):
    """Whatever its metaclass says."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # torch's has no types
def constant() -> int:
    return 3


class Asks(nn.Module):
    """Asks an object that it keeps."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner = owner

    def registered(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if isinstance(self.owner, Registry) else x

    def registered_class(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if issubclass(type(self.owner), (Registry, int)) else x

    def protocol(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if isinstance(self.owner, Later) else x

    def answered(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if isinstance(self.owner, Answered) else x

    def constant(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, constant())


def add_attribute(owner: Any) -> None:
    owner.later = 1


CHANGES: dict[str, Callable[[Any], Any]] = {
    "registered": lambda owner: Registry.register(type(owner)),
    "registered_class": lambda owner: Registry.register(type(owner)),
    "protocol": add_attribute,
}


@pytest.mark.parametrize("method", CHANGES)
def test_class_that_becomes_another_kind_is_noticed(method: str) -> None:
    class Owner:
        """Registered by one test only."""

    module = Asks(Owner())
    artifact = compiled(getattr(module, method), X)
    assert misfits(artifact, getattr(module, method), X) == ()
    CHANGES[method](module.owner)
    assert misfits(artifact, getattr(module, method), X)


@pytest.mark.parametrize(
    ("method", "named"), [("answered", "__instancecheck__"), ("constant", "assume_constant_result")]
)
def test_answer_that_nothing_can_check_is_refused(method: str, named: str) -> None:
    class Owner:
        """Has no attributes."""

    with pytest.raises(NotPortable, match=named):
        compiled(getattr(Asks(Owner()), method), X)
