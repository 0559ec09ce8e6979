"""Launches that go on until a round finds nothing new."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tests.support.checkout import printed_by
from tests.support.in_process import InProcessLauncher
from tests.support.stored import store_config
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.errors import CompileForbidden, LaunchFailed
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.report import Report


@pytest.fixture(autouse=True)
def modules_as_before() -> Iterator[None]:
    """Transformers leaves a function in `nn.Module`, which is a condition of all that is compiled later."""
    yield
    if "smart_apply" in vars(nn.Module):
        delattr(nn.Module, "smart_apply")


class House:
    """A store, and a new node for every launch."""

    def __init__(self, root: Path, entrypoint: str, arguments: dict[str, Any]) -> None:
        self.root, self.num_nodes = root, 0
        self.workload = {"entrypoint": f"tests.support.workloads:{entrypoint}", "arguments": arguments}

    def launch(self, num_ranks: int, *, no_compile: bool = False) -> Report:
        self.num_nodes += 1
        config = parse(
            {
                "name": "stateful",
                "workload": self.workload,
                "ranks": num_ranks,
                "parallel": {"dp": num_ranks},
                "cache_dir": str(self.root / f"node{self.num_nodes}"),
                "store": store_config(self.root / "store"),
            }
        )
        return launch(config, no_compile=no_compile, launcher=InProcessLauncher())


@pytest.mark.parametrize(
    ("entrypoint", "arguments", "num_variants"),
    [
        ("lazy", {}, 2),
        ("counting", {"limit": 100}, 1),
        pytest.param("marking", {"limit": 2}, 3, marks=pytest.mark.slow),
        pytest.param("growing", {}, 3, marks=pytest.mark.slow),
        pytest.param("decoder", {"cache": "static"}, 4, marks=pytest.mark.slow),
        pytest.param("decoder", {"cache": "dynamic"}, 4, marks=pytest.mark.slow),
        pytest.param("within", {}, 4, marks=pytest.mark.slow),
        pytest.param("grown", {}, 2, marks=pytest.mark.slow),
        ("elsewhere", {"place": "dict"}, 2),
        pytest.param("elsewhere", {"place": "check"}, 2, marks=pytest.mark.slow),
        pytest.param("elsewhere", {"place": "thread"}, 2, marks=pytest.mark.slow),
    ],
)
def test_an_empty_node_needs_no_compile_after_a_launch(tmp_path, entrypoint, arguments, num_variants):
    house = House(tmp_path, entrypoint, arguments)
    cold = house.launch(2)
    assert (cold.totals.num_compiled, cold.totals.num_adopted) == (num_variants, num_variants)
    for num_ranks in (2, 3, 1):
        warm = house.launch(num_ranks, no_compile=True)
        assert warm.totals.num_compiled == 0
        assert {len({each.digest for each in rank.functions}) for rank in warm.ranks} == {num_variants}


def test_function_that_keeps_its_artifacts_elsewhere_is_refused(tmp_path: Path) -> None:
    own = str(tmp_path / "own")
    with pytest.raises(LaunchFailed, match=r"Within.tripled keeps its cache in .*own, but the launch in"):
        House(tmp_path, "outside", {"cache_dir": own}).launch(1)


def test_call_that_misses_after_others_ran_is_forbidden_too(tmp_path: Path) -> None:
    house = House(tmp_path, "lazy", {})
    house.launch(1)
    house.workload = {**house.workload, "entrypoint": "tests.support.workloads:grown"}
    with pytest.raises(CompileForbidden, match=r"Grown\.prefill"):
        house.launch(1, no_compile=True)


def test_calls_that_never_settle_end_the_launch(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match=r"Marking.forward.*self.marks: '\.*' -> '\.*'") as failed:
        House(tmp_path, "marking", {"limit": 100}).launch(2)
    assert "keep what changes from call to call in a tensor" in str(failed.value)
    assert not list((tmp_path / "store").rglob("launches/*/*"))


@pytest.mark.parametrize(
    ("what", "printed"), [("collectives", "equal"), pytest.param("llama", "heads=2", marks=pytest.mark.slow)]
)
def test_two_ranks_equal_eager(tmp_path: Path, what: str, printed: str) -> None:
    said = printed_by("tests.support.two_ranks", str(tmp_path / "store"), what, OMP_NUM_THREADS="1")
    assert said.split() == [printed] * 2
