"""The state of the process that a trace depends on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from worker.errors import NotPortable
from worker.guards.ambient import NAMES, differences, encode, snapshot

pytestmark = pytest.mark.usefixtures("torch_state")


class Mode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def switched(module: Any, name: str, value: object) -> Any:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextlib.contextmanager
def called(function: Callable[..., Any], value: object, before: object) -> Any:
    function(value)
    try:
        yield
    finally:
        function(before)


@contextlib.contextmanager
def warn_only() -> Any:
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def global_hook() -> Any:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    try:
        yield
    finally:
        handle.remove()


CHANGES: list[tuple[str, Callable[[], AbstractContextManager[Any]]]] = [
    ("default dtype", lambda: called(torch.set_default_dtype, torch.float64, torch.float32)),
    ("default device", lambda: torch.device("meta")),
    ("deterministic algorithms", lambda: called(torch.use_deterministic_algorithms, True, False)),
    ("deterministic warn only", warn_only),
    (
        "fill uninitialized memory",
        lambda: switched(torch.utils.deterministic, "fill_uninitialized_memory", False),
    ),
    (
        "float32 matmul precision",
        lambda: called(torch.set_float32_matmul_precision, "medium", "highest"),
    ),
    ("autocast cpu", lambda: torch.autocast("cpu")),
    ("autocast cpu dtype", lambda: torch.autocast("cpu", dtype=torch.float16)),
    ("tf32 cudnn", lambda: switched(torch.backends.cudnn, "allow_tf32", False)),
    ("flash attention", lambda: called(torch.backends.cuda.enable_flash_sdp, False, True)),
    ("memory-efficient attention", lambda: called(torch.backends.cuda.enable_mem_efficient_sdp, False, True)),
    ("math attention", lambda: called(torch.backends.cuda.enable_math_sdp, False, True)),
    ("mkldnn", lambda: switched(torch.backends.mkldnn, "enabled", False)),
    ("mkldnn deterministic", lambda: switched(torch.backends.mkldnn, "deterministic", True)),
    ("global module hooks", global_hook),
    ("torch function modes", Mode),
]


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=[name for name, _ in CHANGES])
def test_change_of_state_is_named(name: str, change: Callable[[], AbstractContextManager[Any]]) -> None:
    traced = encode(snapshot("cpu"))
    with change():
        found = differences(traced, snapshot("cpu"))
    assert name in [item.partition(":")[0] for item in found]


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=[name for name, _ in CHANGES])
def test_change_of_state_ends_with_its_context(
    name: str, change: Callable[[], AbstractContextManager[Any]]
) -> None:
    before = snapshot("cpu")
    with change():
        pass
    assert snapshot("cpu") == before


@pytest.mark.parametrize(
    "change",
    [
        lambda: called(torch.set_num_threads, 1, torch.get_num_threads()),
        lambda: torch.random.fork_rng(devices=[]),
    ],
    ids=["threads", "random state"],
)
def test_state_that_changes_no_result_does_not_count(
    change: Callable[[], AbstractContextManager[Any]],
) -> None:
    before = snapshot("cpu")
    with change():
        assert snapshot("cpu") == before


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_grad_and_inference_mode_do_not_count(mode: Callable[[], AbstractContextManager[Any]]) -> None:
    before = snapshot("cpu")
    with mode():
        assert snapshot("cpu") == before


def test_snapshot_has_a_value_for_every_name() -> None:
    assert len(snapshot("cpu")) == len(NAMES)


def test_snapshot_can_be_hashed() -> None:
    assert hash(snapshot("cpu")) == hash(snapshot("cpu"))


def test_autocast_of_the_accelerator_counts_on_it_only() -> None:
    traced_cpu, traced_cuda = encode(snapshot("cpu")), encode(snapshot("cuda"))
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        assert differences(traced_cpu, snapshot("cpu")) == ()
        assert differences(traced_cuda, snapshot("cuda")) == (
            "autocast accelerator dtype: torch.float16 -> torch.bfloat16",
        )
    finally:
        torch.set_autocast_dtype("cuda", before)


def test_difference_gives_both_values() -> None:
    traced = encode(snapshot("cpu"))
    with called(torch.set_default_dtype, torch.float64, torch.float32):
        found = differences(traced, snapshot("cpu"))
    assert found == ("default dtype: torch.float32 -> torch.float64",)


def test_state_that_an_older_artifact_lacks_is_a_difference() -> None:
    traced = encode(snapshot("cpu"))
    del traced["mkldnn"]
    assert differences(traced, snapshot("cpu")) == ("mkldnn: None -> True",)


@pytest.mark.parametrize(
    ("name", "change"), [("global module hooks", global_hook), ("torch function modes", Mode)]
)
def test_state_that_no_other_process_can_have_is_refused_by_name(
    name: str, change: Callable[[], AbstractContextManager[Any]]
) -> None:
    with change():
        values = snapshot("cpu")
    with pytest.raises(NotPortable, match=f"{name} are active while a cached function is traced") as raised:
        encode(values)
    assert raised.value.what == name


CUDA_CHANGES: list[tuple[str, Any, str]] = [
    ("cudnn", torch.backends.cudnn, "enabled"),
    ("cudnn deterministic", torch.backends.cudnn, "deterministic"),
    ("cudnn benchmark", torch.backends.cudnn, "benchmark"),
    ("fp16 reduced precision", torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    ("bf16 reduced precision", torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    ("fp16 accumulation", torch.backends.cuda.matmul, "allow_fp16_accumulation"),
]


@pytest.mark.parametrize(("name", "place", "switch"), CUDA_CHANGES, ids=[name for name, *_ in CUDA_CHANGES])
def test_switches_of_cuda_libraries_count_on_cuda_only(name: str, place: Any, switch: str) -> None:
    traced = {kind: encode(snapshot(kind)) for kind in ("cpu", "cuda")}
    before = getattr(place, switch)
    setattr(place, switch, not before)
    try:
        assert [item.partition(":")[0] for item in differences(traced["cuda"], snapshot("cuda"))] == [name]
        assert differences(traced["cpu"], snapshot("cpu")) == ()
    finally:
        setattr(place, switch, before)


def test_attention_by_cudnn_counts_on_cuda() -> None:
    traced = encode(snapshot("cuda"))
    with called(torch.backends.cuda.enable_cudnn_sdp, False, True):
        assert differences(traced, snapshot("cuda")) == ("cudnn attention: True -> False",)
