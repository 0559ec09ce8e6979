"""The backend for ``torch.compile``: the engine and capture of a cached function, in memory only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import warmrank
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


def test_input_that_requires_gradients_is_an_error_with_the_remedy() -> None:
    with pytest.raises(
        BackendCompilerFailed, match=r"requires gradients; call the compiled model under torch.no_grad\(\)"
    ) as raised:
        compiled(lambda x: x * 2)(ROWS.clone().requires_grad_())
    assert isinstance(raised.value.inner_exception, BackwardNotSupported)


@pytest.mark.usefixtures("no_grad")
def test_nothing_is_written_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compiled(Plain().affine)(ROWS)
    assert list(tmp_path.iterdir()) == []
