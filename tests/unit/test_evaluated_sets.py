"""Orders of sets, and processes that hash strings otherwise.

`tests.integration.test_fuzz` has a table of such programs; here are those that Dynamo computes otherwise.
"""

from __future__ import annotations

import json
import keyword
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.checkout import printed_by
from tests.support.small_models import Cached
from tests.support.tracing import compiled, in_mode, misfits, since
from warmrank.inference import cache_compile
from warmrank.worker.errors import NotPortable
from warmrank.worker.rank.units import print_of
from warmrank.worker.runtime.artifact import parse
from warmrank.worker.runtime.files import to_bytes

X = torch.ones(2)


def weighed(members: Any) -> int:
    return sum(place * ord(member[0]) for place, member in enumerate(members))


ORDERED: dict[str, Callable[[Any], Any]] = {
    "printed": lambda self: ord(str(self.members)[2]),
    "made here": lambda self: weighed({"a", "b", "c", "dd", "ee"}),
}


def added(members: Iterable[Any]) -> set[Any]:
    made = set()
    for member in members:
        made.add(member)
    return made


def with_more(members: set[Any], member: Any) -> set[Any]:
    members.add(member)
    return members


def without(members: set[Any], member: Any) -> set[Any]:
    members.discard(member)
    return members


def placed(numbers: Iterable[int]) -> int:
    return sum(place * number for place, number in enumerate(numbers))


# Dynamo goes over sets that it makes as they were filled; Python does not.
MADE: dict[str, Callable[[], Any]] = {
    "literal": lambda: placed({3 + len(ORDERED), 1, len(ORDERED)}),
    "literal of constants": lambda: placed({9, 4, 2, 17, 33}),
    "comprehension": lambda: placed({number % 7 for number in (9, 4, 2)}),
    "of a list": lambda: placed(set([3, 1, 2])),  # noqa: C405 - a call
    "added": lambda: placed(added([9, 4, 2, 17])),
    "more than a literal": lambda: placed(with_more({9, 4, 2, 17}, 25)),
    "printed": lambda: sum(map(ord, str({9, 4, 2, 17})[:3])),
    "popped": lambda: {30, 10, 20}.pop() + 1,
    "in no order": lambda: max({9, 4} | {17}) + len({9, 4} | {17}) + sum(sorted({9, 4} | {17})),
    "algebra": lambda: len(({9, 4} | {17}) - {4} ^ {9, 3}) + ({9} <= {9, 4} | {2}),
}
FROM_SETS: dict[str, Callable[[], Any]] = {
    "union": lambda: placed({9, 4} | {17, 2}),
    "copy": lambda: placed(set({9, 4, 2, 17})),
    "updated": lambda: placed(updated({9, 4}, {17, 2})),
    "lost": lambda: placed(without(added([9, 4, 2, 17]), 4)),
    "popped": lambda: ({9, 4} | {17, 2}).pop() + 1,
}


def updated(members: set[Any], more: set[Any]) -> set[Any]:
    members.update(more)
    return members


class Makes(nn.Module):
    """Multiplies by what a function makes."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, self.make())


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_set_made_in_the_trace_has_the_order_that_python_gives_it(
    make: Callable[[], Any], tmp_path: Path
) -> None:
    module = Makes(make)
    assert torch.equal(cache_compile(module.forward, cache_dir=tmp_path)(X), module(X))


@pytest.mark.parametrize("make", FROM_SETS.values(), ids=FROM_SETS)
def test_order_of_a_set_made_of_sets_is_refused(make: Callable[[], Any], tmp_path: Path) -> None:
    with pytest.raises(NotPortable, match=r"order of a set .* sorted"):
        cache_compile(Makes(make).forward, cache_dir=tmp_path)(X)


class Asks(nn.Module):
    """Multiplies by what a function makes of a set of strings."""

    def __init__(self, ask: Callable[[Any], Any]) -> None:
        super().__init__()
        self.ask = ask
        self.members: set[Any] = {"a", "b", "c", "dd", "ee"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, self.ask(self))


@since("2.13", "Dynamo traces neither pop of a set nor methods of a constant one")
def test_another_process_fits_no_order_makes_equal_bytes_and_passes_an_audit(tmp_path: Path) -> None:
    for seed in ("1", "2"):
        fitting = printed_by("tests.unit.test_evaluated_sets", "traces", str(tmp_path), PYTHONHASHSEED=seed)
    assert fitting == "\n"
    for name in ("stored", "printed"):
        assert (tmp_path / f"1.{name}").read_bytes() == (tmp_path / f"2.{name}").read_bytes()


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


def _trace(directory: Path) -> None:
    """Print which orders fit that another process compiled, or compile them; and write what two compare."""
    fitting, own = [], directory / os.environ["PYTHONHASHSEED"]
    for name, ask in ORDERED.items():
        module, file = Asks(ask), directory / name
        if not file.exists():
            file.write_bytes(to_bytes(compiled(module.forward, X)))
        elif not misfits(parse(file.read_bytes(), name), module.forward, X):
            fitting.append(name)
    sys.stdout.write(f"{' '.join(fitting)}\n")
    own.with_suffix(".stored").write_bytes(to_bytes(compiled(Cached().store, torch.ones(2, 4))))
    asks = Asks(lambda self: len("if") if keyword.iskeyword("if") else 1)  # a method of a constant set
    own.with_suffix(".printed").write_text(json.dumps(print_of(compiled(asks.forward, X)).parts))


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
