"""Stale caches: what TorchAir alone loads wrongly is a miss here, and the table in the documents says so.

Cases of ``benchmarks/stale_matrix.py``, each in one of its modes; the script runs all, in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.stale_matrix_parts.cases import CASES, Case
from benchmarks.stale_matrix_parts.launches import MODES, Line, lines
from benchmarks.stale_matrix_parts.report import ERROR, WRONG, alone, counts, fault, table

pytestmark = pytest.mark.torchair

DOCUMENT = Path(__file__).parents[2] / "docs" / "torchair.md"
# Of the cases below, at least so many are wrong or end in an error with TorchAir alone.
NUM_WRONG, NUM_ERRORS = 20, 4
# Left to the script, because another case shows nearly the same.
ALIKE = (
    "method of a layer",
    "a constant in the code",
    "number in a global list",
    "default value of a function it calls",
    "default value in a dataclass",
    "number in a list of the module",
    "value of its configuration object",
    "method replaced on its class",
    "one buffer in float64",
    "other values of a parameter",
    "every second column of a larger tensor",
    "number",
    "number in a dataclass",
    "`set_deterministic_level`",
    "`allow_hf32`",
    "torch_npu",
)


def in_one_mode(number: int, case: Case) -> Case:
    return replace(case, start=replace(case.start, modes=(MODES[number % 2],)))


CHOSEN = {
    f"{case.group}: {case.name}": in_one_mode(number, case)
    for number, case in enumerate(case for case in CASES if case.name not in ALIKE)
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Line]:
    made = lines(tmp_path_factory.mktemp("stale"), list(CHOSEN.values()), workers=2)
    return dict(zip(CHOSEN, made, strict=True))


@pytest.mark.parametrize("case", CHOSEN)
def test_stale_cache_is_a_miss_with_its_reason(found: Mapping[str, Line], case: str) -> None:
    assert not fault(found[case]), found[case].ours


@pytest.mark.parametrize("case", CHOSEN)
def test_document_says_what_torchair_alone_does(found: Mapping[str, Line], case: str) -> None:
    line = found[case]
    theirs = alone(line)
    cell = f"**{theirs}**" if theirs == WRONG else theirs
    names = (line.case.name, f"{line.case.name} (`{line.mode}`)")
    text = DOCUMENT.read_text()
    assert any(f"| {name} | {cell} |" in text for name in names), line.alone


def test_torchair_alone_loads_many_wrong_graphs(found: Mapping[str, Line]) -> None:
    verdicts = counts(list(found.values()))
    assert verdicts[WRONG] >= NUM_WRONG
    assert verdicts[ERROR] >= NUM_ERRORS


def test_fault_shows_in_table_and_counts(found: Mapping[str, Line]) -> None:
    """The script must be able to find warmrank wrong."""
    line = found["source: a line of the cached method"]
    wrong = replace(line, ours=replace(line.ours, outcome="loaded", wrong="first result: 1.0, got 2.0"))
    assert fault(wrong)
    assert any("FAULT" in row for row in table([wrong]))
    assert counts([wrong])["faults of warmrank"] == 1
