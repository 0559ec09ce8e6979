"""The journal that a script leaves of its look-ups."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stored import make_artifact
from warmrank.worker import journal
from warmrank.worker.results import FunctionResult, StageSeconds

ARTIFACT = make_artifact()
OUTCOMES = st.sampled_from(["compiled", "loaded", "adopted"])
SECONDS = st.builds(StageSeconds, trace_s=st.floats(0, 9), load_s=st.floats(0, 9))
RESULTS = st.builds(
    FunctionResult,
    function=st.text(),
    ok=st.booleans(),
    outcome=OUTCOMES,
    reason=st.text(),
    digest=st.text("0123456789abcdef"),
    size_bytes=st.integers(0),
    path=st.text(),
    seconds=SECONDS,
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "journal.jsonl"
    monkeypatch.setenv("WARMRANK_JOURNAL", str(path))
    return path


def result(function: str = "M.f") -> FunctionResult:
    return FunctionResult(function=function, ok=True, outcome="compiled", reason="")


@given(results=st.lists(RESULTS, max_size=3))
def test_journal_round_trips(results: list[FunctionResult], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARMRANK_JOURNAL", str(path))
        for item in results:
            journal.append(item, ARTIFACT, Path("/cache"))
    assert [entry for entry, _ in journal.read(path)] == results


def test_journal_holds_what_a_manifest_needs_of_the_artifact(file: Path) -> None:
    journal.append(result(), ARTIFACT, Path("/cache"))
    ((_, details),) = journal.read(file)
    assert details == {
        "components": ARTIFACT.components,
        "provenance": ARTIFACT.provenance(),
        "files": [],
        "root": "/cache",
    }


def test_journal_keeps_the_order_of_look_ups(file: Path) -> None:
    for name in ("M.b", "M.a"):
        journal.append(result(name), ARTIFACT, Path("/cache"))
    assert [entry.function for entry, _ in journal.read(file)] == ["M.b", "M.a"]


def test_journal_has_one_line_of_json_for_each_look_up(file: Path) -> None:
    for name in ("M.a\nb", "M.c"):
        journal.append(result(name), ARTIFACT, Path("/cache"))
    assert len([json.loads(line) for line in file.read_text().splitlines()]) == 2


def test_journal_without_the_variable_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    journal.append(result(), ARTIFACT, Path("/cache"))
    assert list(tmp_path.iterdir()) == []


def test_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert journal.read(tmp_path / "none.jsonl") == ()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("WARMRANK_JOURNAL", raising=False)
    monkeypatch.setenv("WARMRANK_JOURNAL_DIR", str(tmp_path))
    return tmp_path


def test_ranks_that_share_a_directory_have_files_of_their_own(directory: Path) -> None:
    for rank in (1, 0):
        path = f"/cache/M_dynamic_0f/world2global_rank{rank}/f/compiled_module"
        journal.append(replace(result(), path=path), ARTIFACT, Path("/cache"))
    found = journal.by_rank(directory)
    assert list(found) == [(2, 0), (2, 1)]
    assert [len(journal.read(file)) for files in found.values() for file in files] == [1, 1]


def test_artifact_without_a_partition_is_of_the_rank_that_torchrun_says(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/cache/M_dynamic_0f/f/compiled_module"
    journal.append(replace(result(), path=path), ARTIFACT, Path("/cache"))
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    journal.append(replace(result(), path=path), ARTIFACT, Path("/cache"))
    assert list(journal.by_rank(directory)) == [(1, 0), (4, 3)]


def test_other_files_of_the_directory_are_no_journals(directory: Path) -> None:
    (directory / "notes.txt").touch()
    assert journal.by_rank(directory) == {}


def test_line_on_its_way_is_not_read_yet(file: Path) -> None:
    journal.append(result(), ARTIFACT, Path("/cache"))
    with file.open("a") as stream:
        stream.write('{"result": {"func')
    assert len(journal.read(file)) == 1


def test_process_goes_on_where_a_directory_of_journals_takes_nothing(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory.rmdir()
    journal.append(result(), ARTIFACT, Path("/cache"))
    assert "Not noted, so not published" in caplog.text


def test_launch_needs_its_journal(file: Path) -> None:
    file.mkdir()
    with pytest.raises(IsADirectoryError):
        journal.append(result(), ARTIFACT, Path("/cache"))
