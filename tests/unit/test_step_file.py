"""What a rank says that it does, read from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmrank.orchestrator.gang.actor import in_words
from warmrank.orchestrator.gang.node_watch import Charge, look_at
from warmrank.orchestrator.gang.rank_files import StepFile, read_step, step_file


def test_reader_sees_what_was_said_last(tmp_path: Path) -> None:
    path = step_file(tmp_path / "rank0.log")
    step = StepFile(path)
    step.note("compile Model.decode, which has a long name")
    step.note("load")
    assert read_step(path) == "load"
    step.note("")
    assert read_step(path) == ""


def test_file_is_private_and_goes_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "rank0.step"
    step = StepFile(path)
    assert path.stat().st_mode & 0o777 == 0o600
    step.close()
    step.note("later")
    assert not path.exists()


def test_long_texts_and_texts_of_others_fit_into_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rank0.step"
    StepFile(path).note("\u00e9" + "x" * 1000)
    assert path.stat().st_size == 200
    assert read_step(path).startswith("?xxx")


def test_place_that_cannot_be_written_says_nothing(tmp_path: Path) -> None:
    step = StepFile(tmp_path / "no" / "rank0.step")
    step.note("load")
    assert read_step(tmp_path / "no" / "rank0.step") == ""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("compile", "compile", (("Model.a", "Model.b"), ())), "compile Model.a, Model.b"),
        (("compile", "compile", (("Model.a",), ("Model.b",))), "compile Model.a; audit Model.b"),
        (("capture", "propose_captures", ((),)), "capture: propose captures"),
        (("first_call", "first_call", (1,)), "first_call"),
    ],
)
def test_call_in_words(call: tuple[str, str, tuple[object, ...]], words: str) -> None:
    assert in_words(*call) == words


def test_process_that_is_not_there_is_seen_as_gone() -> None:
    assert look_at(Charge(pid=2**22 + 1, mark="m", log=Path("rank0.log"))).is_gone


def test_own_process_is_seen_with_its_step(tmp_path: Path) -> None:
    import os

    path = tmp_path / "rank0.step"
    StepFile(path).note("build")
    status = look_at(Charge(pid=os.getpid(), mark="m", log=path.with_suffix(".log")))
    assert (status.is_gone, status.is_stopped, status.doing) == (False, False, "build")
    assert status.resident_bytes > 0
    assert status.cpu_s > 0
