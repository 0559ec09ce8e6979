"""The backend for ``torch.compile``: the engine and capture of a cached function, in memory only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed

import warmrank
from tests.support.devices import fake_world
from tests.support.small_models import Cached, Plain, Unfit
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.errors import BackwardNotSupported

ROWS = torch.arange(8.0).reshape(2, 4)


@pytest.fixture(autouse=True)
def forget_compiled() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def compiled(function: Any, config: CompilerConfig | None = None, **options: Any) -> Any:
    return torch.compile(function, backend=warmrank.get_npu_backend(compiler_config=config), **options)


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_model_equals_eager(dynamic: bool) -> None:
    model = Plain()
    run = compiled(model, dynamic=dynamic)
    for rows in (2, 3, 5):
        x = torch.randn(rows, 4)
        assert torch.equal(run(x), model(x))


@pytest.mark.usefixtures("no_grad")
def test_compiled_method_that_writes_in_place_equals_eager() -> None:
    model, reference = Cached(), Cached()
    reference.load_state_dict(model.state_dict())
    run = compiled(model.accumulate, dynamic=False)
    for value in (1.0, 2.0):
        assert torch.equal(run(ROWS * value), reference.accumulate(ROWS * value))
    assert torch.equal(model.cache, reference.cache)


@pytest.mark.usefixtures("no_grad")
def test_compiled_function_with_several_graphs_equals_eager() -> None:
    model = Unfit().eval()
    run = compiled(model.breaks)
    assert torch.equal(run(ROWS), ROWS + 1)
    assert torch.equal(run(-ROWS), -ROWS - 1)


@pytest.mark.usefixtures("no_grad")
def test_output_is_overwritten_by_the_next_call_of_its_shape() -> None:
    run = compiled(Plain().affine, dynamic=False)
    run(ROWS)  # the first call of a shape runs uncaptured
    first = run(ROWS)
    second = run(ROWS * 2)
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.usefixtures("no_grad")
def test_parameters_that_were_moved_are_followed() -> None:
    model = Plain()
    run = compiled(model.affine, dynamic=False)
    run(ROWS)
    model.linear.weight.data = torch.zeros(4, 4)
    assert torch.equal(run(ROWS), model.affine(ROWS))


@pytest.mark.usefixtures("no_grad")
def test_collective_runs_on_the_group_of_this_process() -> None:
    class Sums(nn.Module):
        def __init__(self, group: dist.ProcessGroup) -> None:
            super().__init__()
            self.group = group

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            dist.all_reduce(y, group=self.group)
            return y

    with fake_world(rank=0, world_size=2):
        group = dist.new_group([0, 1])
        assert torch.equal(compiled(Sums(group), dynamic=False)(ROWS), ROWS * 2)


def test_input_that_requires_gradients_is_an_error_with_the_remedy() -> None:
    with pytest.raises(
        BackendCompilerFailed, match=r"requires gradients; call the compiled model under torch.no_grad\(\)"
    ) as raised:
        compiled(lambda x: x * 2)(ROWS.clone().requires_grad_())
    assert isinstance(raised.value.inner_exception, BackwardNotSupported)


def test_parameters_that_require_gradients_are_weights_as_in_a_cached_function() -> None:
    plain = Plain()
    with torch.enable_grad():
        result = compiled(plain)(ROWS)
    assert not result.requires_grad
    torch.testing.assert_close(result, plain(ROWS).detach(), rtol=0, atol=0)


@pytest.mark.usefixtures("no_grad")
def test_nothing_is_written_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compiled(Plain().affine)(ROWS)
    assert list(tmp_path.iterdir()) == []
