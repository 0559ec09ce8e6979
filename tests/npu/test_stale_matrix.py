"""Stale caches: what TorchAir alone loads wrongly is a miss here, and the table in the documents says so.

Cases of ``benchmarks/stale_matrix.py``, each in one of its modes; the script runs all, in both. A case starts
two or four processes, so that most of them have the marker `slow` (``make test-slow``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.stale_matrix_parts.cases import CASES, Case
from benchmarks.stale_matrix_parts.launches import MODES, Line, lines
from benchmarks.stale_matrix_parts.report import ERROR, WRONG, alone, counts, fault

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


def in_one_mode(number: int, case: Case) -> Case:
    return replace(case, start=replace(case.start, modes=(MODES[number % 2],)))


CHOSEN = {
    f"{case.group}: {case.name}": in_one_mode(number, case)
    for number, case in enumerate(case for case in CASES if case.name not in ALIKE)
}
QUICKLY = [name for name, case in CHOSEN.items() if case.name in QUICK]
MARKED = [
    pytest.param(name, marks=() if name in QUICKLY else (pytest.mark.slow, pytest.mark.timeout(900)))
    for name in CHOSEN
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Line]:
    """Line of a case; the first one that asks for a quick case runs all of these, for a slow one likewise."""
    made: dict[str, Line] = {}

    def line_of(asked: str) -> Line:
        if asked not in made:
            names = [name for name in CHOSEN if (name in QUICKLY) == (asked in QUICKLY)]
            ran = lines(tmp_path_factory.mktemp("stale"), [CHOSEN[name] for name in names], workers=2)
            made.update(zip(names, ran, strict=True))
        return made[asked]

    return line_of


@pytest.mark.parametrize("case", MARKED)
def test_stale_cache_is_a_miss_with_its_reason(found: Callable[[str], Line], case: str) -> None:
    assert not fault(found(case)), found(case).ours


@pytest.mark.parametrize("case", MARKED)
def test_document_says_what_torchair_alone_does(found: Callable[[str], Line], case: str) -> None:
    line = found(case)
    theirs = alone(line)
    cell = f"**{theirs}**" if theirs == WRONG else theirs
    names = (line.case.name, f"{line.case.name} (`{line.mode}`)")
    text = DOCUMENT.read_text()
    assert any(f"| {name} | {cell} |" in text for name in names), line.alone


def test_torchair_alone_loads_many_wrong_graphs(found: Callable[[str], Line]) -> None:
    verdicts = counts([found(name) for name in QUICKLY])
    assert verdicts[WRONG] >= NUM_WRONG
    assert verdicts[ERROR] >= NUM_ERRORS
