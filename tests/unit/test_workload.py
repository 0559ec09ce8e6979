"""What a user's entrypoint gets and returns, and what is said when it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.small_models import Plain
from warmrank.inference import cache_compile
from warmrank.worker.errors import GroupError, WorkloadError
from warmrank.worker.rank.workload import Call, RankContext, Workload, build_workload
from warmrank.worker.runtime.runtime_state import declared_for

pytestmark = pytest.mark.usefixtures("forget_modules")

Write = Callable[[str], str]


class Group:
    """Stands for a process group: size and rank are all that is asked for."""

    def size(self) -> int:
        return 4

    def rank(self) -> int:
        return 2


def context(**groups: Any) -> RankContext:
    return RankContext(
        rank=3, world_size=8, local_rank=1, device_kind="cpu", device=torch.device("cpu"), groups=groups
    )


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module that can be imported, and gives its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def written(text: str) -> str:
        name = f"made_{len(list(tmp_path.iterdir()))}_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return written


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], str]:
    """An entrypoint that returns a given value."""

    def entrypoint(value: object) -> str:
        monkeypatch.setattr("tests.support.small_models.entry", lambda context: value, raising=False)
        return "tests.support.small_models:entry"

    return entrypoint


def test_context_says_rank_and_known_roles_when_a_role_is_unknown() -> None:
    with pytest.raises(
        GroupError, match=r"rank 3 has no process group with role 'pp'; known roles: tp, world"
    ):
        context(world=Group(), tp=Group()).group("pp")


def test_context_without_the_group_is_a_group_of_one() -> None:
    assert (context().group_size("tp"), context().group_rank("tp")) == (1, 0)


def test_arguments_that_the_entrypoint_does_not_take_are_told_as_the_config_s(monkeypatch):
    def entry(_context: RankContext, *, layers: int = 2) -> Workload:
        raise AssertionError("it was called")

    monkeypatch.setattr("tests.support.small_models.entry", entry, raising=False)
    expected = "workload.arguments: got an unexpected keyword argument 'nokey'. Given: nokey; it takes"
    with pytest.raises(WorkloadError, match=expected) as raised:
        build_workload("tests.support.small_models:entry", context(), {"nokey": 3})
    assert "layers: int = 2" in str(raised.value).replace("'", "")


def test_entrypoint_whose_module_lacks_an_import_names_the_one_that_is_missing(write: Write) -> None:
    name = write("import no_such_dependency\n")
    with pytest.raises(WorkloadError, match="does not import: No module named 'no_such_dependency'"):
        build_workload(f"{name}:f", context(), {})


def test_entrypoint_that_returns_no_calls_is_refused(returned: Callable[[object], str]) -> None:
    with pytest.raises(WorkloadError, match="returned no calls to warm up with"):
        build_workload(returned(Workload(model=Plain(), calls=())), context(), {})


def test_call_of_a_plain_method_is_refused_with_its_position(returned: Callable[[object], str]) -> None:
    model = Plain()
    good = Call(function=cache_compile(model.affine))
    bad: Any = Call(function=model.affine)  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match=r"calls\[1\] is method; expected warmrank.Call") as raised:
        build_workload(returned(Workload(model=model, calls=(good, bad))), context(), {})
    assert raised.value.position == 1


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
