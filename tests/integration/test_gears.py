"""The seed's gears and `mark_static`, cold and warm in fresh processes, and through ``torch.compile``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import warmrank
from tests.support.checkout import printed_by
from tests.support.gears_child import Model
from warmrank.inference import set_dim_gears
from warmrank.worker.errors import GearError


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one process found: modules that a load must not import, and calls by name of the case."""

    imported: list[str]
    found: Mapping[str, list[dict[str, Any]]]


def run(cache: Path, mark: str) -> Ran:
    return Ran(**json.loads(printed_by("tests.support.gears_child", str(cache), mark)))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gears")


@pytest.fixture(scope="module")
def cold(cache: Path) -> Ran:
    return run(cache, "mark")


@pytest.fixture(scope="module")
def warm(cache: Path, cold: Ran) -> Ran:
    return run(cache, "plain")


@pytest.mark.slow
@pytest.mark.parametrize("policy", [pytest.param("zip", marks=pytest.mark.slow), "product"])
def test_seed_gears_compile_once_and_load_without_a_trace(policy: str, cold: Ran, warm: Ran) -> None:
    for ran, first in ((cold, "compiled"), (warm, "loaded")):
        calls = ran.found[f"{policy}-error"]
        outcomes = [call.get("outcome") for call in calls[:-1]]
        assert outcomes == [first, "ran", "GearError", "GearError", "ran", "ran"]
        assert [call["equal"] for call in calls if "equal" in call] == [True] * 4
        assert calls[-1] == {"captures": 2}
        assert "allowed combinations: (4, 4), (2, 2)" in calls[2]["text"]


@pytest.mark.slow
def test_seed_gears_padded_give_eagers_answer_cold_and_warm(cold: Ran, warm: Ran) -> None:
    for ran, first in ((cold, "compiled"), (warm, "loaded")):
        calls = ran.found["zip-pad"]
        outcomes = [call.get("outcome") for call in calls[:-1]]
        assert outcomes == [first, "ran", "ran", "GearError", "ran", "ran"]
        assert [call["equal"] for call in calls if "equal" in call] == [True] * 5


@pytest.mark.slow
def test_mark_static_makes_each_size_a_variant_cold_and_warm(cold: Ran, warm: Ran) -> None:
    for ran, first in ((cold, "compiled"), (warm, "loaded")):
        assert [call["outcome"] for call in ran.found["marked"]] == [first, first, "ran"]
        assert all(call["equal"] for call in ran.found["marked"])


@pytest.mark.slow
def test_warm_process_imports_no_tracer(warm: Ran) -> None:
    assert warm.imported == []


class _Counting:
    """The backend, and how often ``torch.compile`` asked it."""

    def __init__(self, policy: str) -> None:
        config = warmrank.CompilerConfig()
        config.inference_config.dynamic_gears_merge_policy = policy
        self._backend = warmrank.get_npu_backend(compiler_config=config)
        self.compiles = 0

    def __call__(self, graph: Any, inputs: list[Any]) -> Callable[..., Any]:
        self.compiles += 1
        compiled: Callable[..., Any] = self._backend(graph, inputs)
        return compiled


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("policy", ["zip", "product"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.usefixtures("fresh_dynamo")
def test_seed_gears_through_torch_compile(policy: str, dynamic: bool | None) -> None:
    counting = _Counting(policy)
    model: Any = torch.compile(Model(), fullgraph=True, backend=counting, dynamic=dynamic)
    input1, input2 = torch.ones(2, 2), torch.ones(2, 2)
    set_dim_gears(input1, dim_gears={0: [2, 4]})
    set_dim_gears(input2, dim_gears={0: [2, 4]})
    assert torch.equal(model(input1, input2), torch.full((2, 2), 2.0))
    input1, input2 = torch.ones(4, 2), torch.ones(4, 2)
    assert torch.equal(model(input1, input2), torch.full((4, 2), 2.0))
    with pytest.raises(GearError, match="x1 dimension 0 is 3"):
        model(torch.ones(3, 2), torch.ones(3, 2))
    assert counting.compiles == 1


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_gear_of_one_through_torch_compile_is_right() -> None:
    counting = _Counting("zip")
    model: Any = torch.compile(Model(), fullgraph=True, backend=counting)
    for rows in (1, 4, 1):
        inputs = [torch.rand(rows, 2) for _ in range(2)]
        for tensor in inputs:
            set_dim_gears(tensor, {0: [1, 4]})
        assert torch.equal(model(*inputs), inputs[0] + inputs[1])
    assert counting.compiles == 2
