"""Orders of sets and hashes of strings, for a process that hashes otherwise.

It does not load what relied on them, and compiles the rest to the same bytes.
"""

from __future__ import annotations

import json
import keyword
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.checkout import printed_by
from tests.support.small_models import Cached
from tests.support.tracing import compiled, in_mode, misfits, since
from warmrank.inference import cache_compile
from warmrank.worker.rank.units import print_of
from warmrank.worker.runtime.artifact import parse
from warmrank.worker.runtime.files import to_bytes

X = torch.ones(2)
GLOBAL = {"a", "b", "c", "dd", "ee"}


def weighed(members: Any) -> int:
    return sum(place * ord(member[0]) for place, member in enumerate(members))


def less_one(members: list[str]) -> set[str]:
    made = set(members)
    made.add("q")
    made.remove("q")
    return made


ORDERED: dict[str, Callable[[Any], Any]] = {
    "iterated": lambda self: weighed(self.members),
    "of a module": lambda self: ord(next(iter(GLOBAL))[0]),
    "taken apart": lambda self: weighed([*self.members]),
    "printed": lambda self: ord(str(self.members)[2]),
    "joined": lambda self: ord("".join(self.members)[0]),
    "with more": lambda self: weighed(self.members | {"q"}),
    "popped": lambda self: ord(set(self.members).pop()[0]),
    "sorted by a key": lambda self: weighed(sorted(self.members, key=len)),
    "made here": lambda self: weighed({"a", "b", "c", "dd", "ee"}),
    "made of a list": lambda self: weighed(set(["a", "b", "c", "dd", "ee"])),  # noqa: C405 - as said
    "made of a list, less one": lambda self: weighed(less_one(["a", "b"])),
}
HASHED: dict[str, Callable[[Any], Any]] = {
    "hash": lambda self: hash("abc") % 1000,
    "method": lambda self: "abc".__hash__() % 1000,
}
INDIFFERENT: dict[str, Callable[[Any], Any]] = {
    "sorted": lambda self: weighed(sorted(self.members)),
    "asked": lambda self: 2 if "a" in self.members else 3,
    "counted": lambda self: len(self.members),
    "numbers": lambda self: sum(place * number for place, number in enumerate({5, 9, 1})),
    "hash of a number": lambda self: hash(7),
}


class Asks(nn.Module):
    """Multiplies by what a function makes of a set of strings."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        super().__init__()
        self.ask = ask
        self.members: set[Any] = {"a", "b", "c", "dd", "ee"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, self.ask(self))


CASES = ORDERED | HASHED | INDIFFERENT


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """For each case, True if a process with other hashes may load what another one compiled."""
    directory = tmp_path_factory.mktemp("artifacts")
    for seed in ("1", "2"):
        printed = printed_by("tests.unit.test_evaluated_sets", "sets", str(directory), PYTHONHASHSEED=seed)
    found: dict[str, bool] = json.loads(printed.splitlines()[-1])
    return found


@since("2.13", "Dynamo traces neither hash nor pop of a set")
def test_frame_and_graph_are_equal_bytes_in_both_processes(fits: dict[str, bool]) -> None:
    assert fits["equal bytes"]


@since("2.13", "Dynamo traces neither hash nor pop of a set")
def test_audit_finds_no_difference_between_traces_of_both_processes(fits: dict[str, bool]) -> None:
    assert fits["equal prints"]


@since("2.13", "Dynamo traces neither hash nor pop of a set")
@pytest.mark.parametrize("name", ORDERED | HASHED)
def test_what_relies_on_order_or_hash_does_not_fit_another_process(fits: dict[str, bool], name: str) -> None:
    assert not fits[name]


@since("2.13", "Dynamo traces neither hash nor pop of a set")
@pytest.mark.parametrize("name", INDIFFERENT)
def test_what_relies_on_neither_fits_another_process(fits: dict[str, bool], name: str) -> None:
    assert fits[name]


@pytest.mark.parametrize("members", [["a", "b", "c", "dd", "ee"], (0, "a", 8, 16, b"b")])
def test_set_made_of_a_sequence_is_traced_in_the_order_that_it_has(members: Any, tmp_path: Path) -> None:
    module = Asks(lambda self: float("".join(str(members.index(each)) for each in set(members))))
    assert torch.equal(cache_compile(module.forward, cache_dir=tmp_path)(X), module(X))


def test_set_of_the_same_members_in_another_order_does_not_fit() -> None:
    module = Asks(lambda self: sum(place * number for place, number in enumerate(self.members)))
    module.members = {0, 8}  # the order of numbers follows from how they came in
    made = compiled(module.forward, X)
    module.members = {8, 0}
    assert list({0, 8}) != list({8, 0})
    assert "order of self.members: [0, 8] -> [8, 0]" in misfits(made, module.forward, X)


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
        return self.split(x).sum(1), products, *einops.unpack(packed, shapes, "b *")


@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="einops marks itself allow_in_graph there, which is refused"
)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_einops_is_loaded_by_a_process_that_hashes_otherwise(mode: str, tmp_path: Path) -> None:
    """It goes over sets of names."""
    pytest.importorskip("einops", reason="einops comes with pip install 'warmrank[test]'")
    for seed, environment, outcome in (("1", {}, "compiled"), ("2", {"WARMRANK_NO_COMPILE": "1"}, "loaded")):
        printed = printed_by(
            "tests.unit.test_evaluated_sets", mode, str(tmp_path), PYTHONHASHSEED=seed, **environment
        )
        assert printed == f"{outcome}\n"


def _compile_or_look(directory: Path) -> None:
    """Compile each case, or, where that is done, look at what fits."""
    fits = {}
    for number, (name, ask) in enumerate(CASES.items()):
        module, file = Asks(ask), directory / str(number)
        if file.exists():
            fits[name] = not misfits(parse(file.read_bytes(), name), module.forward, X)
        else:
            file.write_bytes(to_bytes(compiled(module.forward, X)))
    stored, written = directory / "stored", to_bytes(compiled(Cached().store, torch.ones(2, 4)))
    fits["equal bytes"] = stored.exists() and stored.read_bytes() == written
    stored.write_bytes(written)
    asks = Asks(lambda self: len("if") if keyword.iskeyword("if") else 1)  # a method of a constant set
    parts, printed = print_of(compiled(asks.forward, X)).parts, directory / "printed"
    fits["equal prints"] = printed.exists() and printed.read_text() == json.dumps(parts)
    printed.write_text(json.dumps(parts))
    sys.stdout.write(json.dumps(fits) + "\n")


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
    _compile_or_look(Path(where)) if what == "sets" else _call_einops(what, where)
