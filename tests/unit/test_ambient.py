"""The state of the process that a trace depends on."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from warmrank.worker.errors import NotPortable
from warmrank.worker.runtime import ambient
from warmrank.worker.runtime.ambient import differences, encode, snapshot
from warmrank.worker.torch_private import warm

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


@contextlib.contextmanager
def kernel_in_python() -> Any:
    with torch.library._scoped_library("aten", "IMPL") as library, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is another one
        library.impl("special_bessel_j0", lambda x: x, "CPU")
        yield


CHANGES: list[tuple[str, Callable[[], AbstractContextManager[Any]]]] = [
    ("default dtype", lambda: called(torch.set_default_dtype, torch.float64, torch.float32)),
    ("default device", lambda: torch.device("meta")),
    ("kernels in Python", kernel_in_python),
    ("deterministic algorithms", lambda: called(torch.use_deterministic_algorithms, True, False)),
    ("deterministic warn only", warn_only),
    (
        "fill uninitialized memory",
        lambda: switched(torch.utils.deterministic, "fill_uninitialized_memory", False),
    ),
    ("float32 matmul precision", lambda: called(torch.set_float32_matmul_precision, "medium", "highest")),
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
def test_change_of_state_is_named_and_ends_with_its_context(name, change):
    before = snapshot("cpu")
    with change():
        found = differences(encode(before), snapshot("cpu"))
    assert name in [item.partition(":")[0] for item in found]
    assert snapshot("cpu") == before


@pytest.mark.parametrize(
    "change",
    [
        lambda: called(torch.set_num_threads, 1, torch.get_num_threads()),
        lambda: torch.random.fork_rng(devices=[]),
        torch.no_grad,
        torch.inference_mode,
    ],
    ids=["threads", "random state", "no_grad", "inference_mode"],
)
def test_state_that_changes_no_result_does_not_count(change):
    before = snapshot("cpu")
    with change():
        assert snapshot("cpu") == before


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("global module hooks", global_hook),
        ("torch function modes", Mode),
        ("kernels in Python", kernel_in_python),
    ],
)
def test_state_that_no_other_process_can_have_is_refused_by_name(name, change):
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
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_switches_of_cuda_libraries_count_on_every_device(name, place, switch, kind):
    traced = encode(snapshot(kind))
    before = getattr(place, switch)
    setattr(place, switch, not before)
    try:
        assert [item.partition(":")[0] for item in differences(traced, snapshot(kind))] == [name]
    finally:
        setattr(place, switch, before)


class NativeNpu:
    """Answers as ``torch_npu._C`` does."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}
        self.level = 0

    def _npu_getOption(self, name: str) -> bytes | None:  # noqa: N802 - torch_npu's name
        value = self.options.get(name)
        return None if value is None else value.encode()

    def _npu_get_deterministic_level(self) -> int:
        return self.level


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> NativeNpu:
    """A torch_npu that is loaded."""
    made = NativeNpu()
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(_C=made))
    monkeypatch.setattr(ambient, "_ACCELERATOR", {})  # torch itself knows no NPU here
    return made


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("ALLOW_MATMUL_HF32", "enable", "npu hf32 matmul: False -> True"),
        ("ALLOW_CONV_HF32", "disable", "npu hf32 convolution: True -> False"),
        ("ALLOW_INTERNAL_FORMAT", "enable", "npu internal format: False -> True"),
        ("jitCompile", "enable", "npu jit compile: by model -> enable"),
        ("CUBE_MATH_TYPE", "1", "npu cube math type: default -> 1"),
        ("TORCH_NPU_USE_COMPATIBLE_IMPL", "1", "npu compatible implementation: False -> True"),
    ],
)
def test_switch_of_torch_npu_counts_on_npu_only(native, option, value, expected):
    traced = {kind: encode(snapshot(kind)) for kind in ("cpu", "npu")}
    native.options[option] = value
    assert differences(traced["npu"], snapshot("npu")) == (expected,)
    assert differences(traced["cpu"], snapshot("cpu")) == ()


def test_deterministic_level_of_npu_counts_with_torch_s_own_switch(native: NativeNpu) -> None:
    native.level = 2
    traced = encode(snapshot("npu"))
    assert traced["npu deterministic level"] == "0"
    with called(torch.use_deterministic_algorithms, True, False):
        found = differences(traced, snapshot("npu"))
    assert "npu deterministic level: 0 -> 2" in found


PROPERTIES: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "mkldnn_enabled": (warm.mkldnn_enabled, torch.backends.mkldnn, "enabled"),
    "mkldnn_deterministic": (warm.mkldnn_deterministic, torch.backends.mkldnn, "deterministic"),
}
CALLS: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[bool], Any]]] = {
    "flash_attention": (
        warm.flash_attention, torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp,
    ),
    "memory_efficient_attention": (
        warm.memory_efficient_attention,
        torch.backends.cuda.mem_efficient_sdp_enabled,
        torch.backends.cuda.enable_mem_efficient_sdp,
    ),
    "math_attention": (
        warm.math_attention, torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp,
    ),
}  # fmt: skip


@pytest.fixture(params=PROPERTIES)
def switched_switches(request: pytest.FixtureRequest) -> Iterator[tuple[Callable[[], Any], Any, str]]:
    getter, section, name = PROPERTIES[request.param]
    before = getattr(section, name)
    setattr(section, name, not before)
    yield getter, section, name
    setattr(section, name, before)


def test_getter_reads_what_the_property_says(switched_switches: tuple[Callable[[], Any], Any, str]) -> None:
    getter, section, name = switched_switches
    for value in (True, False):
        setattr(section, name, value)
        assert getter() is getattr(section, name) is value


@pytest.mark.parametrize("name", CALLS)
def test_getter_reads_what_the_function_says(name: str) -> None:
    getter, public, enable = CALLS[name]
    before = public()
    try:
        for value in (True, False):
            enable(value)
            assert getter() is public() is value
    finally:
        enable(before)
