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


def test_context_gives_the_group_of_a_role() -> None:
    group: Any = Group()
    assert context(tp=group).group("tp") is group


def test_context_says_rank_and_known_roles_when_a_role_is_unknown() -> None:
    with pytest.raises(
        GroupError, match=r"rank 3 has no process group with role 'pp'; known roles: tp, world"
    ):
        context(world=Group(), tp=Group()).group("pp")


def test_context_without_groups_says_that_there_are_none() -> None:
    with pytest.raises(GroupError, match=r"known roles: none \(torch.distributed is not initialised\)"):
        context().group("tp")


def test_context_gives_size_and_rank_within_a_group() -> None:
    here = context(tp=Group())
    assert (here.group_size("tp"), here.group_rank("tp")) == (4, 2)


def test_context_without_the_group_is_a_group_of_one() -> None:
    assert (context().group_size("tp"), context().group_rank("tp")) == (1, 0)


def test_entrypoint_gets_context_and_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Plain()
    workload = Workload(model=model, calls=(Call(function=cache_compile(model.affine)),))
    given: list[Any] = []

    def entry(context: RankContext, **arguments: Any) -> Workload:
        given.extend((context, arguments))
        return workload

    monkeypatch.setattr("tests.support.small_models.entry", entry, raising=False)
    here = context()
    assert build_workload("tests.support.small_models:entry", here, {"layers": 2}) is workload
    assert given == [here, {"layers": 2}]


def test_arguments_that_the_entrypoint_does_not_take_are_told_as_the_config_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def entry(_context: RankContext, *, layers: int = 2) -> Workload:
        raise AssertionError("it was called")

    monkeypatch.setattr("tests.support.small_models.entry", entry, raising=False)
    expected = "workload.arguments: got an unexpected keyword argument 'nokey'. Given: nokey; it takes"
    with pytest.raises(WorkloadError, match=expected) as raised:
        build_workload("tests.support.small_models:entry", context(), {"nokey": 3})
    assert "layers: int = 2" in str(raised.value).replace("'", "")


def test_type_error_of_the_entrypoint_itself_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(_context: RankContext, layers: int) -> Workload:
        raise TypeError(f"{layers} layers are too few")

    monkeypatch.setattr("tests.support.small_models.entry", entry, raising=False)
    with pytest.raises(TypeError, match="3 layers are too few"):
        build_workload("tests.support.small_models:entry", context(), {"layers": 3})


@pytest.mark.parametrize("entrypoint", ["", "module", "module:", ":function"])
def test_entrypoint_of_another_form_is_refused(entrypoint: str) -> None:
    with pytest.raises(WorkloadError, match="is not 'module:function'") as raised:
        build_workload(entrypoint, context(), {})
    assert raised.value.entrypoint == entrypoint


def test_entrypoint_in_a_missing_module_is_refused_by_name() -> None:
    with pytest.raises(WorkloadError, match=r"module 'no_such_module' does not import: No module named"):
        build_workload("no_such_module:f", context(), {})


def test_entrypoint_whose_module_lacks_an_import_names_the_one_that_is_missing(write: Write) -> None:
    name = write("import no_such_dependency\n")
    with pytest.raises(WorkloadError, match="does not import: No module named 'no_such_dependency'"):
        build_workload(f"{name}:f", context(), {})


def test_entrypoint_whose_module_does_not_parse_is_refused_by_name(write: Write) -> None:
    name = write("def f(context:\n")
    with pytest.raises(WorkloadError, match=rf"module '{name}' does not import"):
        build_workload(f"{name}:f", context(), {})


@pytest.mark.parametrize("text", ["", "f = 3\n"], ids=["missing", "no function"])
def test_entrypoint_that_is_no_function_is_refused(write: Write, text: str) -> None:
    name = write(text)
    with pytest.raises(WorkloadError, match=rf"'{name}' has no function 'f'"):
        build_workload(f"{name}:f", context(), {})


def test_entrypoint_that_returns_something_else_is_told_what_to_return(
    returned: Callable[[object], str],
) -> None:
    with pytest.raises(
        WorkloadError, match=r"returns Plain; expected a function that returns a warmrank\.Workload"
    ):
        build_workload(returned(Plain()), context(), {})


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


def test_runtime_state_is_declared_for_the_model_and_the_modules_of_all_calls(
    returned: Callable[[object], str],
) -> None:
    model, other = Plain(), Plain()
    calls = (Call(function=cache_compile(model.affine)), Call(function=cache_compile(other.affine)))
    workload = Workload(model=model, calls=calls, runtime_state={"kv_cache_bytes": 1 << 33})
    build_workload(returned(workload), context(), {})
    assert declared_for(model) == declared_for(other) == {"kv_cache_bytes": str(1 << 33)}


def test_runtime_state_of_another_kind_is_refused_with_the_entrypoint(
    returned: Callable[[object], str],
) -> None:
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


def test_call_that_is_no_call_is_refused(returned: Callable[[object], str]) -> None:
    bad: Any = ("affine",)
    with pytest.raises(WorkloadError, match=r"calls\[0\] is tuple"):
        build_workload(returned(Workload(model=Plain(), calls=(bad,))), context(), {})
