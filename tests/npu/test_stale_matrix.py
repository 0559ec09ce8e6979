"""Stale caches: what TorchAir alone loads wrongly is a miss here, and the table in the documents says so.

Cases of ``benchmarks/stale_matrix.py``, each in one of its modes; the script runs all, in both. A case starts
two or four processes, so that most of them have the marker `slow` (``make test-slow``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.stale_matrix import CASES, ERROR, MODES, WRONG, Line, cell, counts, lines

DOCUMENT = Path(__file__).parents[2] / "docs" / "torchair.md"
# Of the quick cases, at least so many are wrong or end in an error with TorchAir alone.
NUM_WRONG, NUM_ERRORS = 8, 1
# Changes that happen most; the others run in `make test-slow`.
QUICK = (
    "a line of the cached method", "forward hook", "strides of a parameter",
    "environment variable that the code reads", "registered fusion pattern", "CANN", "torch", "SoC",
    "group of another size",
)  # fmt: skip
# Left to the script, because another case shows nearly the same.
ALIKE = (
    "method of a layer", "a constant in the code", "number in a global list",
    "default value of a function it calls", "default value in a dataclass",
    "number in a list of the module", "value of its configuration object", "method replaced on its class",
    "one buffer in float64", "other values of a parameter", "every second column of a larger tensor",
    "number", "number in a dataclass", "`set_deterministic_level`", "`allow_hf32`", "torch_npu",
)  # fmt: skip


CHOSEN = {
    name: MODES[number % 2]
    for number, name in enumerate(name for name in CASES if name.partition(": ")[2] not in ALIKE)
}
QUICKLY = [name for name in CHOSEN if name.partition(": ")[2] in QUICK]
MARKED = [
    pytest.param(name, marks=() if name in QUICKLY else (pytest.mark.slow, pytest.mark.timeout(900)))
    for name in CHOSEN
]


@pytest.fixture(scope="module")
def found() -> Callable[[str], Line]:
    """Line of a case; the first one that asks for a quick case runs all of these, for a slow one likewise."""
    made: dict[str, Line] = {}

    def line_of(asked: str) -> Line:
        if asked not in made:
            alike = [(name, mode) for name, mode in CHOSEN.items() if (name in QUICKLY) == (asked in QUICKLY)]
            made.update({line.name: line for line in lines(alike, workers=2)})
        return made[asked]

    return line_of


@pytest.mark.parametrize("case", MARKED)
def test_stale_cache_is_a_miss_with_its_reason(found: Callable[[str], Line], case: str) -> None:
    assert not found(case).fault, found(case).ours


@pytest.mark.parametrize("case", MARKED)
def test_document_says_what_torchair_alone_does(found: Callable[[str], Line], case: str) -> None:
    line = found(case)
    name, text = line.case.change.name, DOCUMENT.read_text()
    said = (f"| {each} | {cell(line)} |" in text for each in (name, f"{name} (`{line.mode}`)"))
    assert any(said), line.theirs


def test_torchair_alone_loads_many_wrong_graphs(found: Callable[[str], Line]) -> None:
    verdicts = counts([found(name) for name in QUICKLY])
    assert verdicts[WRONG] >= NUM_WRONG
    assert verdicts[ERROR] >= NUM_ERRORS
