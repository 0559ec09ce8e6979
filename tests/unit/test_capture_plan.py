"""The capture plan's text: what it holds, what is refused, and inputs made from it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warmrank.worker.capture.layout import InputLayout
from warmrank.worker.capture.plan import PlannedInput, Shapes, inputs_for, parse, shapes_of
from warmrank.worker.runtime.artifact import GraphFacts

DIGEST = "ab" * 32
SIZES = st.lists(st.integers(0, 64), max_size=4)


def layout(*classes: str, clone_input: bool = True, of_module: tuple[int, ...] = ()) -> InputLayout:
    facts = GraphFacts(
        input_classes=classes,
        num_outputs=1,
        aliased_outputs=(),
        input_names=tuple(f"x{index}" for index in range(len(classes))),
        module_inputs=of_module,
    )
    return InputLayout(facts, clone_input=clone_input, frozen_parameters=False)


def shapes(*inputs: Any, classes: tuple[str, ...]) -> Shapes:
    found = shapes_of(layout(*classes), inputs)
    assert found is not None
    return found


@st.composite
def any_shapes(draw: st.DrawFn) -> Shapes:
    sizes = draw(st.lists(SIZES, max_size=3))
    return Shapes(
        inputs=tuple(
            PlannedInput(
                position=index,
                sizes=tuple(each),
                strides=tuple(draw(st.lists(st.integers(0, 99), min_size=len(each), max_size=len(each)))),
            )
            for index, each in enumerate(sizes)
        ),
        numbers=tuple(
            (len(sizes) + index, value)
            for index, value in enumerate(
                draw(
                    st.lists(st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False))
                )
            )
        ),
    )


@given(any_shapes())
def test_text_round_trips(planned: Shapes) -> None:
    assert parse(planned.to_text(DIGEST)) == (DIGEST, planned)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1j])
def test_number_that_json_cannot_hold_gives_no_plan(value: Any) -> None:
    assert shapes_of(layout("number"), (value,)) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2},
        {"artifact": 7},
        {"inputs": [[0, [-1]]]},
        {"inputs": [[0, [True]]]},
        {"inputs": [[0, [2, 2], [1]]]},
        {"inputs": [[0]]},
        {"inputs": [[0, [1 << 41]]]},
        {"inputs": [[0, [2], [1 << 41]]]},
        {"inputs": 3},
        {"numbers": [[0, "1"]]},
    ],
    ids=str,
)
def test_text_of_another_form_is_refused(changed: dict[str, Any]) -> None:
    plan = {"artifact": DIGEST, "format": 1, "inputs": [[0, [2]]], "numbers": []}
    with pytest.raises(ValueError, match=r"."):
        parse(json.dumps({**plan, **changed}))


# Inputs to capture again.


def test_user_inputs_are_zeros_of_the_planned_shape_and_the_rest_is_the_examples() -> None:
    classes = ("state", "mutated", "user", "number")
    inputs = layout(*classes, of_module=(0,))
    weight, cache = torch.ones(4), torch.ones(3)
    planned = shapes_of(inputs, (weight, cache, torch.ones(5, 2, dtype=torch.int32), 9))
    assert planned is not None
    made = inputs_for(planned, inputs, (weight, cache, torch.ones(1, 2, dtype=torch.int32), 3))
    assert not isinstance(made, str)
    assert made[0] is weight
    assert made[1] is cache
    assert torch.equal(made[2], torch.zeros(5, 2, dtype=torch.int32))
    assert made[2].dtype == torch.int32
    assert made[3] == 9


def test_mutated_input_of_another_shape_is_a_reason() -> None:
    planned = shapes(torch.ones(8), classes=("mutated",))
    reason = inputs_for(planned, layout("mutated"), (torch.ones(4),))
    assert reason == "mutated input x0 is (4,) here, and was (8,) where it was planned"


def test_user_input_that_is_not_copied_has_to_be_the_real_one() -> None:
    planned = shapes(torch.ones(8), classes=("user",))
    assert isinstance(inputs_for(planned, layout("user", clone_input=False), (torch.ones(4),)), str)
