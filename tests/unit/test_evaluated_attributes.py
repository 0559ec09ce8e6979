"""Attributes that were asked for and not there: whatever appears later is noticed by a load."""

from __future__ import annotations

import abc
import functools
import operator
import re
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, Protocol, runtime_checkable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed import get_rank as position

from tests.support import observed_operator, small_models
from tests.support.devices import fake_world
from tests.support.tracing import cached, compiled, misfits, traces_more
from warmrank.worker import groups
from warmrank.worker.errors import NotPortable

X = torch.ones(3)


def by_hasattr(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if hasattr(owner, "later") else x + 1


def by_default(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, getattr(owner, "later", 3))


def by_exception(owner: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.mul(x, owner.later)
    except AttributeError:
        return x + 1


class Asks(nn.Module):
    """Asks an object for an attribute."""

    def __init__(self, owner: Any, ask: Callable[[Any, torch.Tensor], torch.Tensor] = by_hasattr) -> None:
        super().__init__()
        self.owner = owner
        self.ask = ask

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ask(self.owner, x)


class Slots:
    __slots__ = ("later",)


def function(x: torch.Tensor) -> torch.Tensor:
    return x


class Owner:
    """An object of the user's, and a class."""


class Falls:
    """Has what nobody gave it."""

    def __getattr__(self, name: str) -> int:
        if name != "later":
            raise AttributeError(name)
        return 3


OWNERS: dict[str, Callable[[], Any]] = {
    "module of Python": lambda: small_models,
    "function": lambda: function,
    "partial": lambda: functools.partial(function),
    "cached function": lambda: functools.lru_cache(function),
    "class": lambda: Owner,
    "object": Owner,
    "object with slots": Slots,
    "namespace": types.SimpleNamespace,
    "layer": lambda: nn.Linear(3, 3),
}


def after_adding(owner: Any, module: Asks) -> tuple[tuple[str, ...], tuple[str, ...]]:
    artifact = compiled(module.forward, X)
    before = misfits(artifact, module.forward, X)
    owner.later = 7
    try:
        return before, misfits(artifact, module.forward, X)
    finally:
        del owner.later


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=traces_more if kind == "cached function" else ()) for kind in OWNERS]
)
def test_attribute_that_appears_is_noticed(kind: str) -> None:
    owner = OWNERS[kind]()
    before, after = after_adding(owner, Asks(owner))
    assert before == ()
    assert any("no attr 'later'" in reason for reason in after)


@pytest.mark.parametrize("ask", [by_default, by_exception])
def test_every_way_to_ask_is_noticed(ask: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    before, after = after_adding(small_models, Asks(small_models, ask))
    assert before == ()
    assert any("no attr 'later'" in reason for reason in after)


def test_attribute_of_a_bound_method_that_appears_is_noticed() -> None:
    module = Asks(None)
    module.owner = module.method
    before, after = after_adding(Asks.method, module)
    assert before == ()
    assert any("no attr 'later'" in reason for reason in after)


def test_attribute_whose_presence_alone_was_asked_for_is_noticed_when_it_goes() -> None:
    small_models.later = 1  # type: ignore[attr-defined]
    module = Asks(small_models)
    artifact = compiled(module.forward, X)
    del small_models.later  # type: ignore[attr-defined]
    assert any("has attr 'later'" in reason for reason in misfits(artifact, module.forward, X))


class Mapped(dict[str, int]):
    """A dict with attributes."""

    def __getattr__(self, name: str) -> int:
        if name not in self:
            raise AttributeError(name)
        return self[name]


class FallsBack(nn.Module):
    """Multiplies by an attribute that a fallback of its class has."""

    def __getattr__(self, name: str) -> Any:
        return 3 if name == "later" else super().__getattr__(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, self.later)


class Layered(nn.Module):
    """A layer's answer, scaled."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(self.layer(x), self.scale)


def set_in_dict(owner: Any, name: str, value: Any) -> None:
    owner.__dict__[name] = value


HIDDEN: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], None]]] = {
    "object": (lambda: Asks(Falls(), by_default), lambda m: setattr(m.owner, "later", 8)),
    "dict": (lambda: Asks(Mapped(later=2), by_default), lambda m: set_in_dict(m.owner, "later", 8)),
    "module": (FallsBack, lambda m: set_in_dict(m, "later", 9)),
    "parameter": (Layered, lambda m: set_in_dict(m.layer, "weight", torch.zeros(3, 3))),
    "buffer": (Layered, lambda m: set_in_dict(m, "scale", torch.zeros(3))),
    "layer": (Layered, lambda m: set_in_dict(m, "layer", nn.Identity())),
    "buffer by a parameter": (Layered, lambda m: m._parameters.update(scale=nn.Parameter(torch.zeros(3)))),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_attribute_of_its_own_that_hides_what_getattr_gave_is_noticed(case: str) -> None:
    make, hide = HIDDEN[case]
    module = make()
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    hide(module)
    assert misfits(artifact, module.forward, X) != ()


class Scale:
    """An object that hangs on another one."""

    def __init__(self, later: int) -> None:
        self.later = later


def of_its_scale(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.mul(x, getattr(owner, "scale", Scale(7)).later)


def with_scale(owner: Any) -> Any:
    owner.scale = Scale(3)
    return owner


def test_attribute_of_a_partial_is_found_and_its_change_noticed(cache: Path) -> None:
    owner = with_scale(functools.partial(function))
    module = Asks(owner, of_its_scale)
    with torch.no_grad():
        assert torch.equal(cached(module.forward, cache)(X), X * 3)
    artifact = compiled(module.forward, X)
    assert misfits(artifact, module.forward, X) == ()
    owner.scale.later = 4
    assert any("self.owner.scale" in reason for reason in misfits(artifact, module.forward, X))
    del owner.scale
    assert misfits(artifact, module.forward, X) != ()


class Loud(functools.partial):  # type: ignore[type-arg]
    """Adds to what is called."""

    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args) + 1


def by_call(owner: Any, x: torch.Tensor) -> Any:
    return owner(x) * 2


def by_qualname(owner: Any, x: torch.Tensor) -> torch.Tensor:
    name = owner.__qualname__
    return x * (len(name) if isinstance(name, str) else 0)


def by_builtins(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return x * len(owner.__builtins__)


def by_class(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return x * len(owner.__class__.__name__)


def by_self(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if hasattr(owner, "__self__") else x + 1


def by_wrapped(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return x * len(owner.__wrapped__.__name__)


def by_dict(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return x * len(owner.__dict__)


def by_size_of_globals(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return x * len(owner.__globals__)


def by_names_of_globals(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return x * sum(1 for name in owner.__globals__ if name.startswith("_"))


def by_global(owner: Any, x: torch.Tensor) -> torch.Tensor:
    return x * len(owner.__globals__["__name__"])


def test_name_of_a_function_is_what_it_is_and_its_change_noticed(cache: Path) -> None:
    module = Asks(types.FunctionType(function.__code__, globals()), by_qualname)
    with torch.no_grad():
        assert torch.equal(cached(module.forward, cache)(X), X * len("function"))
    artifact = compiled(module.forward, X)
    module.owner.__qualname__ = "other"
    assert any("__qualname__" in reason for reason in misfits(artifact, module.forward, X))


OVERLOOKED = [
    (Loud(function), by_call),
    (function, by_builtins),
    (functools.partial(function), by_dict),
    (functools.partial(function), by_class),
    (Asks(None).method, by_self),
    (functools.lru_cache(function), by_wrapped),
    (function, by_size_of_globals),
    (function, by_names_of_globals),
    (function, by_global),
]


@pytest.mark.parametrize(("owner", "ask"), OVERLOOKED, ids=lambda value: getattr(value, "__name__", "of"))
def test_what_dynamo_may_mistake_is_right_or_refused(
    owner: Any, ask: Callable[[Any, torch.Tensor], torch.Tensor], cache: Path
) -> None:
    module = Asks(owner, ask)
    with torch.no_grad():
        eager = module(X)
        try:
            result = cached(module.forward, cache)(X)
        except NotPortable as refusal:
            result = str(refusal)
    if isinstance(result, str):
        reasons = "is not what traced code takes it for|subclass of functools.partial|adds names to those of"
        assert re.search(reasons, result)
    else:
        assert torch.equal(result, eager)


FOUR = torch.arange(1.0, 5.0)


def ask(group: Any) -> Any:
    return group.rank()


def closed_over(group: Any) -> Callable[[], Any]:
    def rank() -> Any:
        return group.rank()

    return rank


class Holder:
    """Keeps a group, and says its rank in words of its own."""

    def __init__(self, group: Any) -> None:
        self.group = group

    @property
    def place(self) -> Any:
        return self.group.rank()


class Model(nn.Module):
    """Asks for its rank in one way."""

    def __init__(self, way: Callable[[Any], Any], group: Any) -> None:
        super().__init__()
        self.way = way
        self.group = group
        self.groups = [group]
        self.by_name = {"tp": group}
        self.holder = Holder(group)
        self.function = dist.get_rank
        self.partial = functools.partial(dist.get_rank, group)
        self.closure = closed_over(group)
        self.method = "rank"

    def forward(self, x: torch.Tensor) -> Any:
        return torch.mul(x, self.way(self))


IN_GROUP: dict[str, Callable[[Any], Any]] = {
    "method of a group": lambda model: model.group.rank(),
    "function under another name": lambda model: position(model.group),
    "function as an attribute": lambda model: model.function(model.group),
    "partial": lambda model: model.partial(),
    "closure": lambda model: model.closure(),
    "group in a list": lambda model: model.groups[0].rank(),
    "group in a dict": lambda model: model.by_name["tp"].rank(),
    "property of another object": lambda model: model.holder.place,
    "function of a module": lambda model: ask(model.group),
    "name of the method computed": lambda model: getattr(model.group, model.method)(),
    "keyword": lambda model: dist.get_rank(group=model.group),
    "rank in the group of a rank in the world": lambda model: dist.get_process_group_ranks(model.group).index(
        dist.get_rank()
    ),
}
IN_WORLD: dict[str, Callable[[Any], Any]] = {
    "function under another name": lambda model: position(),
    "function looked up": lambda model: getattr(dist, "get_" + "rank")(),
    "function as an attribute": lambda model: model.function(),
    "method of the world": lambda model: dist.group.WORLD.rank(),  # type: ignore[union-attr]
    "ranks of a group": lambda model: dist.get_process_group_ranks(model.group)[0] + 1,
    "operator": lambda model: operator.methodcaller("rank")(dist.group.WORLD),
}
EQUAL_ON_ALL: dict[str, Callable[[Any], Any]] = {
    "size of a group": lambda model: model.group.size(),
    "size by a function": lambda model: dist.get_world_size(model.group),
    "size of the world": lambda model: dist.get_world_size(),
    "initialized": lambda model: 2 if dist.is_initialized() else 3,
    "collective": lambda model: collectives.all_reduce(torch.ones(4), "sum", model.group),
    "gather": lambda model: collectives.all_gather_tensor(torch.ones(2), 0, model.group),
}


@contextmanager
def on_rank(rank: int, way: Callable[[Any], Any], world_size: int = 4) -> Iterator[Model]:
    with fake_world(rank=rank, world_size=world_size):
        made = [dist.new_group([first, first + 1]) for first in range(0, world_size, 2)]
        groups.declare_groups({"tp": made[rank // 2]})
        yield Model(way, made[rank // 2])


def reasons(way: Callable[[Any], Any], *ranks: int) -> list[tuple[str, ...]]:
    """Why what rank 0 compiled does not fit on other ranks."""
    with on_rank(0, way) as model:
        artifact = compiled(model.forward, FOUR)
    found = []
    for rank in ranks:
        with on_rank(rank, way) as model:
            found.append(misfits(artifact, model.forward, FOUR))
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", IN_GROUP.values(), ids=IN_GROUP)
def test_rank_in_a_group_is_a_condition(way: Callable[[Any], Any]) -> None:
    same, other = reasons(way, 0, 1)
    assert same == ()
    assert any("0 -> 1" in reason for reason in other)


@pytest.mark.parametrize("name", ["method of a group", "function under another name", "keyword"])
def test_rank_in_a_group_is_shared_by_equal_places_of_other_groups(name: str) -> None:
    assert reasons(IN_GROUP[name], 2) == [()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", IN_WORLD.values(), ids=IN_WORLD)
def test_rank_in_the_world_is_a_condition(way: Callable[[Any], Any]) -> None:
    same, other = reasons(way, 0, 2)
    assert same == ()
    assert other


@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", EQUAL_ON_ALL.values(), ids=EQUAL_ON_ALL)
def test_what_is_equal_on_all_ranks_is_shared(way: Callable[[Any], Any]) -> None:
    assert reasons(way, 0, 1, 2, 3) == [(), (), (), ()]


def test_rank_that_a_fake_kernel_reads_is_a_condition() -> None:
    library = observed_operator.register()

    def way(_model: Model) -> Any:
        return torch.ops.observed.part(torch.ones(4)).sum()

    try:
        reasons(way)  # what an earlier trace asked the kernel is asked anew
        same, other = reasons(way, 0, 1)
    finally:
        library._destroy()
    assert same == ()
    assert "get_rank(world): 0 -> 1" in other


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


class AsksClass(nn.Module):
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

    def union(self, x: torch.Tensor) -> torch.Tensor:
        x = x if isinstance(self.owner, UnionType) else x * 2
        return x * 2 if isinstance(self.owner, Registry | None) else x

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
    "union": lambda owner: Registry.register(type(owner)),
}


@pytest.mark.parametrize("method", CHANGES)
def test_class_that_becomes_another_kind_is_noticed(method: str) -> None:
    class Owner:
        """Registered by one test only."""

    module = AsksClass(Owner())
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
        compiled(getattr(AsksClass(Owner()), method), X)
