"""Ranks and groups that a function asks for, and what tells processes apart beside a change of the model."""

from __future__ import annotations

import functools
import itertools
import json
import keyword
import os
import socket
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn

from tests.support import observed_operator
from tests.support.checkout import printed_by
from tests.support.devices import fake_world
from tests.support.launching import rank_spec
from tests.support.small_models import Cached
from tests.support.tracing import cached, compiled, in_mode, misfits, not_in_2_12, since, traces_more
from warmrank.inference import cache_compile
from warmrank.worker import groups
from warmrank.worker.errors import GroupError, NotPortable, PortInUse
from warmrank.worker.rank.rank_worker import start_groups
from warmrank.worker.rank.units import print_of
from warmrank.worker.runtime.artifact import parse
from warmrank.worker.runtime.files import to_bytes

X = torch.ones(3)
FOUR = torch.arange(1.0, 5.0)


class Model(nn.Module):
    """Multiplies by what it makes of a group."""

    def __init__(self, way: Callable[[Any], Any], group: Any) -> None:
        super().__init__()
        self.way = way
        self.group = group

    def forward(self, x: torch.Tensor) -> Any:
        return torch.mul(x, self.way(self.group))


def reasons(way: Callable[[Any], Any], *ranks: int) -> list[tuple[str, ...]]:
    """Why what rank 0 of 4 compiled does not fit on other ranks, which are in pairs."""
    found, artifact = [], None
    for rank in (0, *ranks):
        with fake_world(rank=rank, world_size=4):
            pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
            groups.declare_groups({"tp": pairs[rank // 2]})
            model = Model(way, pairs[rank // 2])
            if artifact is None:
                artifact = compiled(model.forward, FOUR)
            else:
                found.append(misfits(artifact, model.forward, FOUR))
    return found


@pytest.mark.parametrize(
    "way", [lambda group: group.rank(), lambda group: dist.get_rank(group=group)], ids=["method", "function"]
)
def test_rank_in_a_group_is_shared_by_equal_places_of_other_groups(way: Callable[[Any], Any]) -> None:
    assert reasons(way, 2) == [()]


def test_rank_that_a_fake_kernel_reads_is_a_condition() -> None:
    library = observed_operator.register()

    def way(_group: Any) -> Any:
        return torch.ops.observed.part(torch.ones(4)).sum()

    try:
        reasons(way)  # what an earlier trace asked the kernel is asked anew
        same, other = reasons(way, 0, 1)
    finally:
        library._destroy()
    assert same == ()
    assert "get_rank(world): 0 -> 1" in other


INSTALLED = {"factor": 3}


@functools.lru_cache
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # torch's has no types
def kept(name: str) -> int:
    return INSTALLED[name]


@dataclass(frozen=True)
class Key:
    name: str


class Counted:
    """A class that counts."""

    number: float = 3


class Asks(nn.Module):
    """Asks for what outlasts a call."""

    by_key = {Key("a"): 3}  # noqa: RUF012 - never written to

    def kept(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, kept("factor"))

    def counts(self, x: torch.Tensor) -> torch.Tensor:
        Counted.number += 1
        return x * Counted.number

    def keyed(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by_key[Key("a")]


def test_constant_that_is_kept_for_the_process_is_asked_for_again_by_a_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    artifact = compiled(Asks().kept, X)
    assert misfits(artifact, Asks().kept, X) == ()
    monkeypatch.setitem(INSTALLED, "factor", 4)
    assert misfits(artifact, Asks().kept, X) == ()  # as eager has it still
    kept.cache_clear()
    (reason,) = misfits(artifact, Asks().kept, X)
    assert reason.endswith("kept, ('factor',), {}): 3 -> 4")
    kept.cache_clear()


@traces_more
@not_in_2_12
def test_trace_writes_nothing_to_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "number", 3)
    artifact = compiled(Asks().counts, X)
    assert Counted.number == 3
    for number, fits in ((3, True), (4, True), (4.5, False)):
        Counted.number = number
        assert (misfits(artifact, Asks().counts, X) == ()) is fits


@torch.no_grad()
def test_keys_of_dicts_do_not_hang_on_the_hash_seed(cache: Path) -> None:
    function = cached(Asks().keyed, cache)
    function(X)
    (variant,) = function.variants
    assert not variant.stored.artifact.guards.asked


class CallsFunctionally(nn.Module):
    """Calls its layer with other parameters, by names of which torch makes sets."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        doubled = {name: 2 * value for name, value in self.layer.named_parameters()}
        called: torch.Tensor = torch.func.functional_call(self.layer, doubled, (x,))
        return called


@torch.no_grad()
def test_sets_of_torch_s_own_code_do_not_hang_on_the_hash_seed(cache: Path) -> None:
    model = CallsFunctionally()
    function = cached(model.forward, cache)
    torch.testing.assert_close(function(PAIR), model(PAIR))
    (variant,) = function.variants
    assert not variant.stored.artifact.guards.asked


PAIR = torch.ones(2)


def weighed(members: Any) -> int:
    return sum(place * ord(member[0]) for place, member in enumerate(members))


ORDERED: dict[str, Callable[[Any], Any]] = {
    "printed": lambda self: ord(str(self.members)[2]),
    "made here": lambda self: weighed({"a", "b", "c", "dd", "ee"}),
    "made of sets": lambda self: weighed(({"a", "b"} | set(["c", "dd"])) - {"b"} ^ {"ee", "f"}),  # noqa: C405 - made so by users
}


class AsksSet(nn.Module):
    """Multiplies by what a function makes of a set of strings."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        super().__init__()
        self.ask = ask
        self.members: Any = {"a", "b", "c", "dd", "ee"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, self.ask(self))


@since("2.13", "Dynamo traces neither pop of a set nor methods of a constant one")
def test_another_process_fits_no_order_makes_equal_bytes_and_passes_an_audit(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        fitting = printed_by("tests.unit.test_evaluated", "traces", str(tmp_path), PYTHONHASHSEED=seed)
    assert fitting == "\n"
    for name in ("stored", "printed"):
        assert (tmp_path / f"1.{name}").read_bytes() == (tmp_path / f"2.{name}").read_bytes()


@pytest.mark.parametrize("members", [["a", "b", "c", "dd", "ee"], (0, "a", 8, 16, b"b")])
def test_set_made_of_a_sequence_is_traced_in_the_order_that_it_has(members: Any, tmp_path: Path) -> None:
    module = AsksSet(lambda self: float("".join(str(members.index(each)) for each in set(members))))
    assert torch.equal(cache_compile(module.forward, cache_dir=tmp_path)(PAIR), module(PAIR))


def changed(members: set[Any]) -> set[Any]:
    members.update(["q", "ff"], {"g"})
    members.discard("a")
    members -= {"q"}
    return members


MADE: dict[str, Callable[[Any], Any]] = {
    "union": lambda self: weighed({"a", "b"} | set("cde")),
    "intersection": lambda self: weighed(set("abcdefgh").intersection([*"hgf"], {"g", "h"})),
    "difference": lambda self: weighed(frozenset("abcdefgh") - set("bd")),
    "of numbers": lambda self: weighed(str(each) for each in {9, 17} ^ {4, 33}.copy()),
    "changed": lambda self: weighed(changed(set("abc"))),
    "lost its first": lambda self: ord(set("abcd").pop()),
    "only asked": lambda self: len({"a", self} - {self}) + 2 * ({"a", PAIR.dtype} == {PAIR.dtype, "a"}),
}


@since("2.13", "Dynamo traces fewer methods of sets")
@pytest.mark.parametrize("ask", MADE.values(), ids=MADE)
def test_set_made_of_sets_is_traced_in_the_order_that_it_has(ask: Any, tmp_path: Path) -> None:
    module = AsksSet(ask)
    for outcome in ("compiled", "loaded"):
        function = cache_compile(module.forward, cache_dir=tmp_path)
        assert torch.equal(function(PAIR), module(PAIR))
        assert function.last_result is not None
        assert function.last_result.outcome == outcome


@pytest.mark.parametrize(
    "ask", [lambda self: self.members | {"f"}, lambda self: changed(self.members)], ids=["made", "changed"]
)
def test_order_of_a_set_that_hangs_on_one_from_before_the_call_is_refused(ask: Any, tmp_path: Path) -> None:
    module = AsksSet(lambda self: weighed(ask(self)))
    with pytest.raises(NotPortable, match=r"order of a set .* sorted"):
        cache_compile(module.forward, cache_dir=tmp_path)(PAIR)


def appended(members: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    found += members
    return found


class Listed(list[Any]):
    pass


def each(ways: dict[str, Any], *refused: str) -> list[Any]:
    """Parameters of a test; those ``refused`` are graph breaks, by name, up to torch 2.12."""
    old = pytest.mark.skipif(torch.__version__ < "2.13", reason="a graph break there")
    return [pytest.param(way, id=name, marks=old if name in refused else ()) for name, way in ways.items()]


WAYS: dict[str, Callable[[Iterable[Any]], Iterable[Any]]] = {
    "a loop": iter, "added to a list": appended, "a new list": Listed, "keys": dict.fromkeys,
    "keys in order": OrderedDict.fromkeys, "counted": Counter,
}  # fmt: skip


@pytest.mark.parametrize("kind", [set, frozenset])
@pytest.mark.parametrize("way", each(WAYS, "keys", "keys in order"))
def test_set_of_the_same_members_in_another_order_does_not_fit(way: Any, kind: Any) -> None:
    module = AsksSet(lambda self: sum(place * number for place, number in enumerate(way(self.members))))
    module.members = kind([0, 8])  # the order of numbers follows from how they came in
    made = compiled(module.forward, PAIR)
    module.members = kind([8, 0])
    assert list({0, 8}) != list({8, 0})
    assert "order of self.members: [0, 8] -> [8, 0]" in misfits(made, module.forward, PAIR)


def error_of(given: Any) -> str:
    try:
        raise ValueError(given)  # noqa: TRY301 - as users write it
    except ValueError as error:
        return str(error)


TEXTS: dict[str, Callable[[Any], str]] = {
    "str": str, "repr": repr, "f-string": lambda members: f"{members}",
    "within a list": lambda members: str([members]), "percent": lambda members: "%s" % (members,),  # noqa: UP031 - as users write it
    "format": "{}".format, "within a format": lambda members: f"{[members]}",
    "method": lambda members: members.__repr__(), "deep": lambda members: repr({"a": ([members], 1)}),
    "by name": lambda members: "{a}".format_map({"a": members}),
    "error": error_of, "within an error": lambda members: error_of([members]),
}  # fmt: skip


class Tells(nn.Module):
    """Returns the text of a set, or of what it makes of one."""

    def __init__(self, text: Callable[[Any], str], members: Any) -> None:
        super().__init__()
        self.text = text
        self.members = members

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        return x + 1, self.text(self.members)


def is_never_the_same(members: Any) -> bool:
    """True if a set that is made of this one has another order, and so has one that is made of that."""
    order = [*members]
    another = [*set(order)]
    return another != order != [*set(another)]


@pytest.mark.parametrize("kind", [set, frozenset])
@pytest.mark.parametrize("text", each(TEXTS, "format", "method"))
def test_text_of_a_set_from_before_the_call_has_its_order(text: Any, kind: Any, tmp_path: Path) -> None:
    made = map(kind, itertools.permutations(range(0, 99, 9), 4))
    module = Tells(text, next(filter(is_never_the_same, made)))
    assert cache_compile(module.forward, cache_dir=tmp_path)(PAIR)[1] == text(module.members)
    module.members = next(
        other for other in made if {*other} == {*module.members} and [*other] != [*module.members]
    )
    assert cache_compile(module.forward, cache_dir=tmp_path)(PAIR)[1] == text(module.members)


class Rearranges(nn.Module):
    """Splits and merges axes in all of the package's ways."""

    def __init__(self) -> None:
        super().__init__()
        from einops.layers.torch import Rearrange

        self.split = Rearrange("b (h d) -> b h d", h=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import einops

        heads = einops.rearrange(x, "b (h d) -> h b d", h=4)
        mean = einops.reduce(heads, "h b d -> b d", "mean")
        packed, shapes = einops.pack([mean, einops.repeat(mean, "b d -> b (d k)", k=3)], "b *")
        products = einops.einsum(mean, mean, "b d, c d -> b c")
        products = products + einops.rearrange(products, "... c -> c ...")
        tiled = einops.repeat(x, "b (h w d) -> (k b) 2 d (n w) h", h=2, w=2, d=2, k=3, n=2)
        return self.split(x).sum(1), products, tiled, *einops.unpack(packed, shapes, "b *")


@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="einops marks itself allow_in_graph there, which is refused"
)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_einops_is_loaded_by_a_process_that_hashes_otherwise(mode: str, tmp_path: Path) -> None:
    """It goes over sets of names."""
    pytest.importorskip("einops", reason="einops comes with pip install 'warmrank[test]'")
    for seed in ("1", "2", "3", "4"):  # in which the axes stand in several orders
        environment = {"WARMRANK_NO_COMPILE": "1"} if seed != "1" else {}
        outcome = "loaded" if environment else "compiled"
        printed = printed_by(
            "tests.unit.test_evaluated", mode, str(tmp_path), PYTHONHASHSEED=seed, **environment
        )
        assert printed == f"{outcome}\n"


class Repeats(nn.Module):
    """Has a parameter rearranged, and an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import einops

        return einops.repeat(self.token, "a b -> b a") + einops.rearrange(x, "a b -> b a")


@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="einops marks itself allow_in_graph there, which is refused"
)
def test_classes_that_einops_has_met_and_their_order_are_no_condition(tmp_path: Path) -> None:
    einops = pytest.importorskip("einops", reason="einops comes with pip install 'warmrank[test]'")
    met, model, x = einops._backends._type2backend, Repeats(), torch.rand(2, 3)
    first, later = cached(model.forward, tmp_path), cached(model.forward, tmp_path)
    assert torch.equal(first(x), model(x))
    others = dict(reversed(met.items()))
    met.clear()
    met.update(others)
    assert torch.equal(later(x), model(x))
    assert later.last_result is not None
    assert later.last_result.outcome == "loaded"
    met[type("Array", (), {})] = met[torch.Tensor]
    assert torch.equal(later(x), model(x))
    assert len(later.results) == 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, timedelta]:
    """Time-outs that torch is asked for, by what is made; nothing is made."""
    found: dict[str, timedelta] = {}

    def world(backend: str, *, timeout: timedelta, **_: Any) -> None:
        found["world"] = timeout

    def group(ranks: list[int], *, timeout: timedelta, use_local_synchronization: bool) -> str:
        assert use_local_synchronization, "all ranks of the world would meet for each group"
        found[str(ranks)] = timeout
        return "a group"

    monkeypatch.setattr(dist, "init_process_group", world)
    monkeypatch.setattr(dist, "new_group", group)
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD="the world"))
    for name in ("HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT"):
        monkeypatch.setenv(name, "")
    return found


SPEC = rank_spec(Path("cache"), groups={"world": (0,), "tp": (0,)}, timeout_s=200.0)


def test_rank_makes_its_own_groups_only_and_roles_in_one_order(asked: dict[str, timedelta]) -> None:
    spec = rank_spec(
        Path("cache"),
        rank=2,
        world_size=4,
        groups={"world": (0, 1, 2, 3), "tp": (2, 3), "dp": (0, 2)},
    )
    assert list(start_groups(spec, "gloo")) == ["world", "dp", "tp"]
    assert list(asked) == ["world", "[0, 2]", "[2, 3]"]


def test_hccl_times_out_by_the_launch_and_torch_s_watchdog_after_it(asked: dict[str, timedelta]) -> None:
    start_groups(SPEC, "hccl")
    assert (os.environ["HCCL_CONNECT_TIMEOUT"], os.environ["HCCL_EXEC_TIMEOUT"]) == ("200", "200")
    assert asked == {"world": timedelta(seconds=260), "[0]": timedelta(seconds=260)}


def test_port_that_another_process_has_taken_is_told_as_such(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spec = rank_spec(tmp_path, master_addr="127.0.0.1", master_port=taken.getsockname()[1])
        with pytest.raises(PortInUse, match="another process's now"):
            start_groups(spec, "gloo")


World = tuple[dist.ProcessGroup, dist.ProcessGroup, dist.ProcessGroup]


@pytest.fixture
def world() -> Iterator[World]:
    """Rank 1 of 4: the world, its own group of two, and a group of one."""
    with fake_world(rank=1, world_size=4) as everyone:
        pair = dist.new_group([0, 1])
        dist.new_group([2, 3])  # this rank is not in it
        alone = dist.new_group([1])
        yield everyone, pair, alone


def test_unknown_name_is_refused_with_the_known_ones(world: World) -> None:
    with pytest.raises(GroupError, match=r"no process group named 'nobody'; known: \['") as raised:
        groups.role_of("nobody")
    assert raised.value.name == "nobody"


@pytest.mark.parametrize(("role", "position"), [("world", 0), ("tp", 1), ("group2", 2)])
def test_resolve_gives_name_and_group_of_a_role(world: World, role: str, position: int) -> None:
    groups.declare_groups({"tp": world[1]})
    assert groups.resolve(role) == (world[position].group_name, world[position])


class Grouped(nn.Module):
    def __init__(self, group: Any) -> None:
        super().__init__()
        self.group = group

    def reduces(self, x: torch.Tensor) -> Any:
        return collectives.all_reduce(x, "sum", self.group)

    def tells(self, x: torch.Tensor) -> Any:
        told = x * 1
        dist.broadcast(told, group_src=1, group=self.group)
        return told

    def measures(self, x: torch.Tensor) -> Any:
        return x * len(self.group.group_name)

    def does_both(self, x: torch.Tensor) -> Any:
        return collectives.all_reduce(x, "sum", self.group) * len(self.group.group_name)


@pytest.fixture
def pair() -> Iterator[list[Any]]:
    """Two groups of equal size, both of this rank."""
    with fake_world(rank=0, world_size=4):
        yield [dist.new_group([0, 1]), dist.new_group([0, 1])]


def fits(pair: list[Any], name: str) -> bool:
    """Whether what was compiled with one group may be used with the other, where that has the role."""
    first, second = (Grouped(group) for group in pair)
    x = torch.ones(2)
    groups.declare_groups({"tp": pair[0]})
    artifact = compiled(getattr(first, name), x)
    groups.declare_groups({"tp": pair[1]})
    return misfits(artifact, getattr(second, name), x) == ()


@pytest.mark.parametrize("name", ["reduces", "tells"])
def test_group_of_a_collective_is_any_of_its_role(pair: list[Any], name: str) -> None:
    assert fits(pair, name)


@pytest.mark.parametrize("name", ["measures", "does_both"])
def test_name_that_serves_for_more_is_a_condition(pair: list[Any], name: str) -> None:
    assert pair[0].group_name != pair[1].group_name
    assert not fits(pair, name)


def _trace(directory: Path) -> None:
    """Print which orders fit that another process compiled, or compile them; and write what two compare."""
    fitting, own = [], directory / os.environ["PYTHONHASHSEED"]
    for name, ask in ORDERED.items():
        module, file = AsksSet(ask), directory / name
        if not file.exists():
            file.write_bytes(to_bytes(compiled(module.forward, PAIR)))
        elif not misfits(parse(file.read_bytes(), name), module.forward, PAIR):
            fitting.append(name)
    sys.stdout.write(f"{' '.join(fitting)}\n")
    own.with_suffix(".stored").write_bytes(to_bytes(compiled(Cached().store, torch.ones(2, 4))))
    asks = AsksSet(lambda self: len("if") if keyword.iskeyword("if") else 1)  # a method of a constant set
    own.with_suffix(".printed").write_text(json.dumps(print_of(compiled(asks.forward, PAIR)).parts))


def _call_einops(mode: str, directory: str) -> None:
    config = in_mode(mode)
    module = Rearranges()
    cached = cache_compile(
        module.forward, cache_dir=directory, config=config, ge_cache=mode == "max-autotune"
    )
    for rows in (3, 5, 3):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(cached(x), module(x))
    assert cached.last_result is not None
    sys.stdout.write(f"{cached.last_result.outcome}\n")


if __name__ == "__main__":
    what, where = sys.argv[1:]
    _trace(Path(where)) if what == "traces" else _call_einops(what, where)
