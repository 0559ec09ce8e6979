"""Signatures of captures as people read them: whole, and with every bracket closed."""

from __future__ import annotations

import json

import pytest

from warmrank.orchestrator.look.store_contents import short_signature
from warmrank.worker.capture.plan import PlannedInput, Shapes

DIGEST = "80ebff0a1b2c" + "0" * 52


def planned(
    *tensors: tuple[int, tuple[int, ...], tuple[int, ...]], numbers: dict[int, float] | None = None
) -> str:
    inputs = tuple(PlannedInput(position=at, sizes=sizes, strides=strides) for at, sizes, strides in tensors)
    return Shapes(inputs=inputs, numbers=tuple((numbers or {}).items())).to_text(DIGEST)


@pytest.mark.parametrize(
    ("signature", "short"),
    [
        ("(torch.Size([2, 1]), torch.Size([1]))", "[2, 1] [1]"),
        ("(torch.Size([2, 8]), torch.Size([2, 8]), torch.Size([2, 8]), 32)", "[2, 8] x3 32"),
        ("int64[1, 8]", "int64[1, 8]"),
        ("()", ""),
    ],
)
def test_short_signature(signature: str, short: str):
    assert short_signature(signature) == short


def test_plan_is_told_in_words():
    text = planned((3, (2, 64), (64, 1)), (5, (8, 4), (1, 8)), numbers={4: 32, 6: True})
    assert short_signature(text) == (
        "inputs 3: [2, 64], 5: [8, 4] strides [1, 8]; numbers 4: 32, 6: true; artifact 80ebff0a1b2c"
    )


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"artifact": DIGEST, "format": 2, "inputs": [[3, [2, 64]]], "numbers": []}),
        json.dumps({"artifact": DIGEST, "format": 1, "inputs": [[3]], "numbers": []}),
        json.dumps({"artifact": DIGEST, "format": 1, "inputs": [3], "numbers": []}),
        json.dumps({"format": 1, "inputs": [], "numbers": []}),
        '{"artifact": [2',
    ],
    ids=["later format", "no sizes", "no pair", "no artifact", "cut off"],
)
def test_what_is_no_plan_of_this_format_is_given_as_it_is(text: str):
    assert short_signature(text) == text
