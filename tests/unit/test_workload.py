"""What a user's entrypoint gets and returns, and what is said when it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support.small_models import Plain
from warmrank.examples import llama
from warmrank.examples.llama_model import build_model
from warmrank.examples.llama_weights import LlamaSizes, full_weights
from warmrank.inference import cache_compile
from warmrank.worker.errors import WorkloadError
from warmrank.worker.rank.workload import Call, RankContext, Workload, build_workload
from warmrank.worker.runtime.runtime_state import declared_for

pytestmark = pytest.mark.usefixtures("forget_modules")


def context(**groups: Any) -> RankContext:
    return RankContext(
        rank=3, world_size=8, local_rank=1, device_kind="cpu", device=torch.device("cpu"), groups=groups
    )


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], str]:
    """An entrypoint that returns a given value."""

    def entrypoint(value: object) -> str:
        monkeypatch.setattr("tests.support.small_models.entry", lambda context: value, raising=False)
        return "tests.support.small_models:entry"

    return entrypoint


def test_arguments_that_the_entrypoint_does_not_take_are_told_as_the_config_s(monkeypatch):
    def entry(_context: RankContext, *, layers: int = 2) -> Workload:
        raise AssertionError("it was called")

    monkeypatch.setattr("tests.support.small_models.entry", entry, raising=False)
    expected = "workload.arguments: got an unexpected keyword argument 'nokey'. Given: nokey; it takes"
    with pytest.raises(WorkloadError, match=expected) as raised:
        build_workload("tests.support.small_models:entry", context(), {"nokey": 3})
    assert "layers: int = 2" in str(raised.value).replace("'", "")


def test_runtime_state_is_declared_for_the_model_and_the_modules_of_all_calls(returned):
    model, other = Plain(), Plain()
    calls = (Call(function=cache_compile(model.affine)), Call(function=cache_compile(other.affine)))
    workload = Workload(model=model, calls=calls, runtime_state={"kv_cache_bytes": 1 << 33})
    build_workload(returned(workload), context(), {})
    assert declared_for(model) == declared_for(other) == {"kv_cache_bytes": str(1 << 33)}


def test_runtime_state_of_another_kind_is_refused_with_the_entrypoint(returned):
    model = Plain()
    values: Any = {"kv_cache_bytes": torch.tensor(3)}
    workload = Workload(
        model=model, calls=(Call(function=cache_compile(model.affine)),), runtime_state=values
    )
    expected = (
        "small_models:entry returned a Workload whose runtime state kv_cache_bytes is a Tensor; expected int"
    )
    with pytest.raises(WorkloadError, match=expected):
        build_workload(returned(workload), context(), {})


SMALL = LlamaSizes(layers=2, dim=32, heads=4, kv_heads=2, hidden=48, batch=2, max_seq=32)


def small_model(sizes: LlamaSizes = SMALL) -> Any:
    return build_model(sizes, full_weights(sizes), cached=False)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_generated_logits_equal_the_reference(batch: int, kv_heads: int) -> None:
    sizes = LlamaSizes(layers=2, dim=32, heads=4, kv_heads=kv_heads, hidden=48, batch=batch, max_seq=32)
    result = llama.check(small_model(sizes), full_weights(sizes), (5, 9), 6, None)
    assert result.ok
    assert result.max_error < llama.TOLERANCE / 10


def test_check_fails_when_a_weight_is_wrong() -> None:
    model = small_model()
    model.layers[1].attention.wv.weight[0, 0] += 1
    result = llama.check(model, full_weights(SMALL), (5,), 2, None)
    assert not result.ok


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"dim": 30, "heads": 4}, "dim = 30 is no multiple of heads = 4"),
        ({"heads": 8, "kv_heads": 3}, "heads = 8 is no multiple of kv_heads = 3"),
        ({"layers": 0}, "layers = 0; expected an int of 1 or more"),
        ({"batch": "2"}, "batch = '2'; expected an int"),
        ({"dim": 24, "heads": 8}, "dim / heads = 3 is odd"),
        ({"seed": -1}, "seed = -1; expected an int of 0 or more"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LlamaSizes(**sizes)


def test_script_generates_eagerly(capsys: Any, monkeypatch: Any) -> None:
    sizes = ["--layers=1", "--dim=32", "--heads=4", "--kv-heads=2", "--hidden=48", "--batch=1"]
    monkeypatch.setattr("sys.argv", ["llama.py", "--prompt-len=5", "--num-tokens=3", *sizes])
    llama.main()
    out = capsys.readouterr().out
    assert out.startswith("b'Alice' -> [")
    assert "3 tokens for 1 prompts in" in out
