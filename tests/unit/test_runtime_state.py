"""Runtime state: what may be declared, whom it concerns, and what cached functions make of it."""

from __future__ import annotations

import gc
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.small_models import Plain
from tests.support.tracing import ROWS, cached, outcome, reason
from warmrank.worker.errors import BadRuntimeState, CompileForbidden
from warmrank.worker.runtime.runtime_state import (
    MAX_TEXT_CHARS,
    MAX_VALUES,
    RuntimeStateGuard,
    checked,
    declare_runtime_state,
    declared_for,
)


class Blocks(IntEnum):
    MANY = 512


@pytest.fixture
def model() -> Plain:
    return Plain().requires_grad_(requires_grad=False)


# What may be declared.


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


# Whom it concerns.


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


# The guard.


def test_guard_notices_each_declaration(model: Plain) -> None:
    guard = RuntimeStateGuard(model, {"x": "1"})
    held = [guard.holds()]
    for value in (1, 2, 1):
        declare_runtime_state(model, {"x": value})
        held.append(guard.holds())
    assert held == [False, True, False, True]


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


# Cached functions.


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


def test_swapped_submodule_that_declares_something_else_is_noticed_by_the_next_call(tmp_path: Path) -> None:
    model = Plain().requires_grad_(requires_grad=False)
    model.cache, large = nn.Module(), nn.Module()
    declare_runtime_state(model.cache, {"blocks": 512})
    declare_runtime_state(large, {"blocks": 640})
    function = cached(model.affine, tmp_path)
    function(ROWS)
    model.cache = large
    function(ROWS)
    assert reason(function) == "runtime state blocks: 512 -> 640"
    assert len(function.variants) == 2


def test_next_process_loads_by_value(model: Plain, tmp_path: Path) -> None:
    for blocks in (512, 640):
        declare_runtime_state(model, {"blocks": blocks})
        cached(model.affine, tmp_path)(ROWS)
    for blocks in (512, 640):
        declare_runtime_state(model, {"blocks": blocks})
        again = cached(model.affine, tmp_path)
        again(ROWS)
        assert outcome(again) == "loaded"
        assert again.variants[0].stored.artifact.guards.runtime_state == {"blocks": str(blocks)}


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
