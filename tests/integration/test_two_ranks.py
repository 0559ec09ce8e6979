"""What two ranks compute together: captured collectives, and the example's Llama in two halves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import printed_by


@pytest.mark.parametrize(
    ("what", "printed"), [("collectives", "equal"), pytest.param("llama", "heads=2", marks=pytest.mark.slow)]
)
def test_two_ranks_equal_eager(tmp_path: Path, what: str, printed: str) -> None:
    said = printed_by("tests.support.two_ranks", str(tmp_path / "store"), what, OMP_NUM_THREADS="1")
    assert said.split() == [printed] * 2
