"""A plain script on one rank: what it finds in its environment, and what is read back from it."""

from __future__ import annotations

import json
import logging
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.rank_spec import rank_spec
from warmrank.worker.errors import CompileForbidden, ScriptFailed, WorkloadError
from warmrank.worker.rank.script import journal_of, run_script
from warmrank.worker.rank.start import RankSpec


@pytest.fixture
def spec(tmp_path: Path) -> RankSpec:
    return rank_spec(
        tmp_path / "cache", rank=3, world_size=4, local_rank=1, local_world_size=2, node_rank=1,
        master_addr="node0", master_port=29500, entrypoint="",
    )  # fmt: skip


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def looked_up(function: str, outcome: str, digest: str = "") -> str:
    """Source that leaves an entry in the journal, as a look-up does."""
    entry = {
        "result": {
            "function": function,
            "ok": True,
            "outcome": outcome,
            "reason": "",
            "digest": digest,
            "seconds": {},
        },
        "components": {},
        "provenance": "",
        "root": "",
    }
    return f"open(os.environ['WARMRANK_JOURNAL'], 'a').write({json.dumps(entry)!r} + '\\n')\n"


def test_script_finds_torchruns_variables(spec: RankSpec, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run_script(
        spec, script(tmp_path, f"import json, os\njson.dump(dict(os.environ), open({str(out)!r}, 'w'))"), ()
    )
    found: dict[str, Any] = json.loads(out.read_text())
    expected = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
        "TORCHAIR_CACHE_HOME": spec.cache_dir,
        "WARMRANK_JOURNAL": str(journal_of(spec)),
    }
    assert {name: found.get(name) for name in expected} == expected


def test_script_gets_its_arguments(spec: RankSpec, tmp_path: Path) -> None:
    text = "import sys\nassert sys.argv[1:] == ['--layers', '2'], sys.argv"
    assert run_script(spec, script(tmp_path, text), ("--layers", "2")) == ()


def test_script_can_import_what_this_process_can(spec: RankSpec, tmp_path: Path) -> None:
    assert run_script(spec, script(tmp_path, "import warmrank, pytest"), ()) == ()


def test_script_can_import_its_neighbours(spec: RankSpec, tmp_path: Path) -> None:
    (tmp_path / "made_neighbour.py").write_text("")
    assert run_script(spec, script(tmp_path, "import made_neighbour"), ()) == ()


def test_script_runs_in_the_same_python_and_directory(spec: RankSpec, tmp_path: Path) -> None:
    here = (sys.executable, str(Path.cwd()))
    text = f"import os, sys\nassert (sys.executable, os.getcwd()) == {here!r}"
    assert run_script(spec, script(tmp_path, text), ()) == ()


def test_results_are_in_the_order_of_first_calls(spec: RankSpec, tmp_path: Path) -> None:
    text = (
        "import os\n" + looked_up("M.b", "compiled") + looked_up("M.a", "loaded") + looked_up("M.b", "loaded")
    )
    results = run_script(spec, script(tmp_path, text), ())
    assert [(result.function, result.outcome) for result in results] == [
        ("M.b", "compiled"),
        ("M.a", "loaded"),
    ]


def test_results_of_an_earlier_run_are_forgotten(spec: RankSpec, tmp_path: Path) -> None:
    run_script(spec, script(tmp_path, "import os\n" + looked_up("M.b", "compiled")), ())
    assert run_script(spec, script(tmp_path, ""), ()) == ()


def test_each_artifact_of_a_function_is_a_result(spec: RankSpec, tmp_path: Path) -> None:
    entries = [
        ("M.a", "compiled", "1"),
        ("M.a", "loaded", "1"),
        ("M.b", "loaded", "2"),
        ("M.a", "adopted", "3"),
    ]
    text = "import os\n" + "".join(looked_up(*entry) for entry in entries)
    results = run_script(spec, script(tmp_path, text), ())
    assert [(result.function, result.outcome) for result in results] == [
        ("M.a", "compiled"),
        ("M.b", "loaded"),
        ("M.a[1]", "adopted"),
    ]


@pytest.mark.parametrize(("no_compile", "expected"), [(True, "1"), (False, "0")])
def test_script_is_told_that_it_must_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: str, *, no_compile: bool
) -> None:
    monkeypatch.setenv("WARMRANK_NO_COMPILE", "0")
    spec = rank_spec(tmp_path / "cache", entrypoint="", no_compile=no_compile)
    text = f"import os\nassert os.environ['WARMRANK_NO_COMPILE'] == {expected!r}"
    assert run_script(spec, script(tmp_path, text), ()) == ()


def test_journals_of_ranks_and_of_launches_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [rank_spec(tmp_path, rank=rank, world_size=2) for rank in (0, 1)]
    here = {journal_of(rank) for rank in ranks}
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert len(here | {journal_of(rank) for rank in ranks}) == 4


def test_journal_directory_is_private(spec: RankSpec, tmp_path: Path) -> None:
    run_script(spec, script(tmp_path, ""), ())
    assert journal_of(spec).parent.stat().st_mode & 0o777 == 0o700


def test_output_is_logged_line_by_line(
    spec: RankSpec, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "import sys\nprint('one')\nprint('two', file=sys.stderr)"
    with caplog.at_level(logging.INFO, logger="warmrank.worker.rank.script"):
        run_script(spec, script(tmp_path, text), ())
    assert sorted(record.getMessage() for record in caplog.records) == ["one", "two"]


def test_output_is_logged_while_the_script_runs(
    spec: RankSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "seen"
    monkeypatch.setattr("warmrank.worker.rank.script._log.info", lambda *_: mark.touch())
    text = f"""
    import pathlib, time
    print("one")
    for _ in range(1200):
        if pathlib.Path({str(mark)!r}).exists():
            raise SystemExit(0)
        time.sleep(0.05)
    raise SystemExit(1)
    """
    run_script(spec, script(tmp_path, text), ())


def test_output_that_is_no_text_is_no_error(spec: RankSpec, tmp_path: Path) -> None:
    assert run_script(spec, script(tmp_path, "import os\nos.write(1, bytes([255, 10]))"), ()) == ()


def test_missing_script_is_an_error_that_says_where_it_was_looked_for(spec: RankSpec) -> None:
    with pytest.raises(
        WorkloadError, match=r"rank 3: script none.py is not there \(looked for from /"
    ) as raised:
        run_script(spec, "none.py", ())
    assert (raised.value.rank, raised.value.script) == (3, "none.py")


def test_script_that_fails_is_an_error_with_status_and_last_lines(spec: RankSpec, tmp_path: Path) -> None:
    text = "for number in range(50):\n    print('line', number)\nraise SystemExit(7)"
    with pytest.raises(
        ScriptFailed, match=r"(?s)ended with status 7; its last lines:\nline 30\n.*line 49"
    ) as raised:
        run_script(spec, script(tmp_path, text), ())
    assert raised.value.status == 7
    assert "line 29" not in str(raised.value)


def test_script_that_raises_is_an_error_with_its_traceback(spec: RankSpec, tmp_path: Path) -> None:
    with pytest.raises(ScriptFailed, match="ValueError: no weights here"):
        run_script(spec, script(tmp_path, "raise ValueError('no weights here')"), ())


def test_script_that_misses_where_compiling_is_forbidden_says_so(spec: RankSpec, tmp_path: Path) -> None:
    text = """
    from warmrank.worker import journal
    journal.append_forbidden("M.a", "M.a would have to be compiled")
    raise SystemExit(1)
    """
    with pytest.raises(CompileForbidden, match=r"M.a would have to be compiled") as raised:
        run_script(spec, script(tmp_path, text), ())
    assert raised.value.function == "M.a"
