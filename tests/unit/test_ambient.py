"""The state of the process that a trace depends on: torch's own, and what is declared for modules."""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tests.support.small_models import Plain
from tests.support.tracing import ROWS, cached, outcome, reason
from warmrank.worker.errors import BadRuntimeState, CompileForbidden, NotPortable
from warmrank.worker.runtime.runtime_state import (
    MAX_TEXT_CHARS,
    MAX_VALUES,
    RuntimeStateGuard,
    checked,
    declare_runtime_state,
    declared_for,
)
from warmrank.worker.torch_private import warm
from warmrank.worker.torch_private.warm import ambient, ambient_differences, portable_ambient


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


def off(section: Any, name: str) -> Callable[[], AbstractContextManager[Any]]:
    """The other value of a switch."""
    return lambda: switched(section, name, not getattr(section, name))


MATMUL, CUDNN, MKLDNN = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
CHANGES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "default dtype": lambda: called(torch.set_default_dtype, torch.float64, torch.float32),
    "default device": lambda: torch.device("meta"),
    "kernels in Python": kernel_in_python,
    "deterministic algorithms": lambda: called(torch.use_deterministic_algorithms, True, False),
    "deterministic warn only": warn_only,
    "fill uninitialized memory": off(torch.utils.deterministic, "fill_uninitialized_memory"),
    "float32 matmul precision": lambda: called(torch.set_float32_matmul_precision, "medium", "highest"),
    "autocast cpu": lambda: torch.autocast("cpu"),
    "autocast cpu dtype": lambda: torch.autocast("cpu", dtype=torch.float16),
    "flash attention": lambda: called(torch.backends.cuda.enable_flash_sdp, False, True),
    "memory-efficient attention": lambda: called(torch.backends.cuda.enable_mem_efficient_sdp, False, True),
    "math attention": lambda: called(torch.backends.cuda.enable_math_sdp, False, True),
    "mkldnn": off(MKLDNN, "enabled"),
    "mkldnn deterministic": off(MKLDNN, "deterministic"),
    "global module hooks": global_hook,
    "torch function modes": Mode,
    # Switches of CUDA's libraries count on every device.
    "tf32 cudnn": off(CUDNN, "allow_tf32"),
    "cudnn": off(CUDNN, "enabled"),
    "cudnn deterministic": off(CUDNN, "deterministic"),
    "cudnn benchmark": off(CUDNN, "benchmark"),
    "fp16 reduced precision": off(MATMUL, "allow_fp16_reduced_precision_reduction"),
    "bf16 reduced precision": off(MATMUL, "allow_bf16_reduced_precision_reduction"),
    "fp16 accumulation": off(MATMUL, "allow_fp16_accumulation"),
}
OF_THIS_PROCESS = {"global module hooks", "torch function modes", "kernels in Python"}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_change_of_state_is_named_and_ends_with_its_context(name: str, kind: str) -> None:
    before = ambient(kind)
    traced = portable_ambient(kind)
    with CHANGES[name]():
        found = ambient_differences(traced, ambient(kind))
        if name in OF_THIS_PROCESS:  # no other process can have it
            with pytest.raises(NotPortable, match=f"{name} are active while a cached function is traced"):
                portable_ambient(kind)
    assert name in [item.partition(":")[0] for item in found]
    assert ambient(kind) == before


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
    monkeypatch.setattr(warm, "_ACCELERATORS", ())  # torch itself knows no NPU here
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
    traced = {kind: portable_ambient(kind) for kind in ("cpu", "npu")}
    native.options[option] = value
    assert ambient_differences(traced["npu"], ambient("npu")) == (expected,)
    assert ambient_differences(traced["cpu"], ambient("cpu")) == ()


def test_deterministic_level_of_npu_counts_with_torch_s_own_switch(native: NativeNpu) -> None:
    native.level = 2
    traced = portable_ambient("npu")
    assert traced["npu deterministic level"] == "0"
    with called(torch.use_deterministic_algorithms, True, False):
        found = ambient_differences(traced, ambient("npu"))
    assert "npu deterministic level: 0 -> 2" in found


class Blocks(IntEnum):
    MANY = 512


@pytest.fixture
def model() -> Plain:
    return Plain().requires_grad_(requires_grad=False)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (torch.tensor(3), r"x is a Tensor; expected int, float, str, bool or None: convert it"),
        ([1], "x is a list; expected"),
        (Blocks.MANY, "x is a Blocks; expected"),
        (float("nan"), "x is nan; expected a finite number"),
        (float("-inf"), "x is -inf; expected a finite number"),
        (1 << 64, "x is an int of 65 bits; expected at most 64"),
        ("a" * MAX_TEXT_CHARS, f"x is a string of {MAX_TEXT_CHARS} characters; expected a short one"),
    ],
)
def test_value_of_another_kind_is_refused_by_name(value: Any, fault: str) -> None:
    with pytest.raises(BadRuntimeState, match=f"runtime state {fault}"):
        checked({"x": value})


def test_too_many_values_are_refused_also_in_several_declarations(model: Plain) -> None:
    many = {f"x{number}": number for number in range(MAX_VALUES)}
    declare_runtime_state(model, many)
    with pytest.raises(BadRuntimeState, match=f"{MAX_VALUES + 1} values .* at most {MAX_VALUES}"):
        declare_runtime_state(model, {"y": 1})
    with pytest.raises(BadRuntimeState, match="at most"):
        checked({**many, "y": 1})
    assert len(declared_for(model)) == MAX_VALUES


def test_declaration_holds_for_modules_within_and_around() -> None:
    inner, neighbour = nn.Linear(2, 2), nn.Linear(2, 2)
    attention = nn.Sequential(inner)
    model = nn.Sequential(attention, neighbour)
    declare_runtime_state(attention, {"blocks": 4})
    assert declared_for(inner) == declared_for(attention) == declared_for(model) == {"blocks": "4"}
    assert declared_for(neighbour) == {}


def test_contradiction_names_both_values_and_what_to_do() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    declare_runtime_state(model[0], {"blocks": 1})
    declare_runtime_state(model[1], {"blocks": 2})
    assert declared_for(model[0]) == {"blocks": "1"}
    with pytest.raises(BadRuntimeState, match="blocks is declared as 1 for one module and as 2 for another"):
        declared_for(model)


def test_guard_notices_that_a_declaring_module_is_swapped_taken_away_or_put_back() -> None:
    small, large, plain = (nn.Linear(2, 2) for _ in range(3))
    for module, blocks in ((small, 512), (large, 640)):
        declare_runtime_state(module, {"blocks": blocks})
    model = nn.Module()
    model.layer = nn.Module()
    model.layer.cache = small
    guard = RuntimeStateGuard(model, {"blocks": "512"})
    held = [guard.holds()]
    for cache in (large, small, plain):
        model.layer.cache = cache
        held.append(guard.holds())
    assert held == [True, False, True, False]


def test_guard_notices_that_a_part_is_moved_out_of_a_declaring_module_that_may_end() -> None:
    part = nn.Linear(2, 2)
    around = nn.Sequential(nn.Sequential(part))
    declare_runtime_state(around, {"blocks": 512})
    guard = RuntimeStateGuard(part, {"blocks": "512"})
    held = [guard.holds()]
    inner = around[0]
    around[0] = nn.Sequential()
    held.append(guard.holds())
    around[0] = inner
    held.append(RuntimeStateGuard(part, {"blocks": "512"}).holds())
    fresh = RuntimeStateGuard(part, {"blocks": "512"})
    held.append(fresh.holds())
    del around, inner
    gc.collect()
    assert [*held, fresh.holds()] == [True, False, True, True, False]


def test_shared_module_counts_as_long_as_one_way_leads_to_it() -> None:
    cache = nn.Linear(2, 2)
    declare_runtime_state(cache, {"blocks": 512})
    model = nn.Sequential(cache, cache)
    guard = RuntimeStateGuard(model, {"blocks": "512"})
    held = []
    for index in (None, 0, 1):
        if index is not None:
            model[index] = nn.Linear(2, 2)
        held.append(guard.holds())
    assert held == [True, True, False]


def test_change_in_a_process_is_noticed_by_the_next_call_and_the_way_back_needs_no_look_up(model, tmp_path):
    function = cached(model.affine, tmp_path)
    declare_runtime_state(model, {"blocks": 512})
    function(ROWS)
    first = function.variants[0]
    declare_runtime_state(model, {"blocks": 640})
    function(ROWS)
    assert outcome(function) == "compiled"
    assert reason(function) == "runtime state blocks: 512 -> 640"
    second = function.last_result
    declare_runtime_state(model, {"blocks": 512})
    assert torch.equal(function(ROWS), model.affine(ROWS))
    assert (function.variants[0], function.last_result) == (first, second)
    assert len(function.variants) == 2


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"a": 1, "b": 2}, "runtime state b: not declared -> 2"),
        ({"a": 1.0}, "runtime state a: 1 -> 1.0"),
        ({"a": True}, "runtime state a: 1 -> True"),
        ({}, "runtime state a: 1 -> not declared"),
    ],
    ids=["one more", "float", "bool", "none"],
)
def test_load_with_other_state_is_a_miss_that_says_why(declared, why, tmp_path, monkeypatch):
    first, second = (Plain().requires_grad_(requires_grad=False) for _ in range(2))
    declare_runtime_state(first, {"a": 1})
    cached(first.affine, tmp_path)(ROWS)
    declare_runtime_state(second, declared)
    monkeypatch.setenv("WARMRANK_NO_COMPILE", "1")
    with pytest.raises(CompileForbidden, match=f"forbidden here: {why}(\\.|$)"):
        cached(second.affine, tmp_path)(ROWS)


def test_guards_always_ask_for_the_state_and_guards_skip_do_not(model: Plain, tmp_path: Path) -> None:
    always, skip = (cached(model.affine, tmp_path, guards=guards) for guards in ("always", "skip"))
    for function in (always, skip):
        function(ROWS)
    declare_runtime_state(model, {"blocks": 512})
    for function in (always, skip):
        function(ROWS)
    assert (len(always.variants), len(skip.variants)) == (2, 1)
