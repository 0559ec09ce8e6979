"""The command line: launches, exit codes, what reaches a terminal."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import Result

from tests.support.checkout import ended
from tests.support.command_line import run
from tests.support.fake_rank import FakeWorld
from tests.support.in_process import InProcessLauncher
from tests.support.launching import loaded_config, make_report, store_launch
from tests.support.processes import await_true
from tests.support.stored import FUNCTIONS, make_partition, save_key_pair
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.publish_pending import add_partition
from warmrank.cache_store.signing.keyring import generate_key_pair
from warmrank.orchestrator.cli.console import ExitCode, exit_code_of, others_on_stderr, output
from warmrank.orchestrator.cli.launch import prepare_demo, run_demo, run_process
from warmrank.orchestrator.cli.main import app
from warmrank.orchestrator.config.models import launch_key
from warmrank.orchestrator.errors import (
    BadArgument,
    CannotStart,
    CompileForbidden,
    ConfigError,
    DemoFailed,
    LaunchFailed,
    WorkerFailure,
)
from warmrank.orchestrator.gang import ray_session
from warmrank.orchestrator.launch import driver
from warmrank.orchestrator.launch.report import from_json, to_json
from warmrank.orchestrator.signals import Terminated
from warmrank.orchestrator.ui import outputs
from warmrank.worker.errors import BadConfig, NotYet, WorkloadError
from warmrank.worker.keys.request import environment

pytestmark = pytest.mark.usefixtures("heeds_signals")


def test_publish_brings_what_waits_to_the_store(tmp_path: Path):
    config = loaded_config(tmp_path)
    manifest = make_partition(config.cache_dir, rank=0, world_size=1)
    add_partition(config.cache_dir, launch_key(config), manifest)
    result = run("store", "publish", tmp_path / "tiny.yaml", "--json")
    assert result.exit_code == 0
    assert [len(json.loads(result.stdout)[name]) for name in ("published", "committed", "kept")] == [1, 0, 0]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> FakeWorld:
    found = FakeWorld()
    monkeypatch.setattr(driver, "ray_launcher", lambda _config: InProcessLauncher(found.make_worker))
    return found


def launch(tmp_path: Path, *options: str, **more: Any) -> Result:
    data: dict[str, Any] = {
        "workload": {"entrypoint": "json:dumps"},
        "ranks": 1,
        "cache_dir": str(tmp_path / "cache"),
        **more,
    }
    config = tmp_path / "launch.yaml"
    config.write_text(yaml.safe_dump(data))
    return run("launch", config, *options)


def test_failed_launch_leaves_a_report_of_its_own(tmp_path: Path, world: FakeWorld):
    world.raises["build", 0] = WorkloadError("no weights here")
    report = tmp_path / "report.json"
    report.write_text('{"schema_version": 5, "name": "from yesterday"}')
    assert launch(tmp_path, "--json", str(report)).exit_code == ExitCode.BAD_INPUT
    found = from_json(report.read_text())
    assert (found.outcome, found.exit_code) == ("failed", 2)
    assert found.failure is not None
    assert "no weights here" in found.failure.message


def test_output_that_would_replace_another_kind_of_file_is_refused_before_any_is_removed(tmp_path, world):
    older, weights = tmp_path / "older.json", tmp_path / "model.pt"
    older.write_text('{"schema_version": 5}')
    weights.write_bytes(b"weights")
    options = ("--json", str(older), "--trace", str(weights), "--metrics", str(tmp_path / "launch.yaml"))
    result = launch(tmp_path, *options)
    assert (result.exit_code, world.called("build")) == (ExitCode.BAD_INPUT, [])
    assert "--trace" in result.stderr
    assert "--metrics" in result.stderr
    assert (older.exists(), weights.read_bytes()) == (True, b"weights")


def test_output_goes_through_a_link_and_into_a_pipe_and_leaves_both(tmp_path, world):
    link, pipe, page = tmp_path / "link.json", tmp_path / "pipe", tmp_path / "page.html"
    link.symlink_to(tmp_path / "report.json")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for _ in range(2):  # the second time over what the first one wrote
        options = ("--json", str(link), "--metrics", str(pipe), "--report", str(page), "--trace", "/dev/null")
        assert launch(tmp_path, *options).exit_code == ExitCode.OK
    assert (link.is_symlink(), pipe.is_fifo()) == (True, True)
    assert from_json((tmp_path / "report.json").read_text()).outcome == "warm"
    assert os.read(reader, 20).startswith(b"# HELP warmrank_")
    os.close(reader)


def test_disk_that_is_too_full_for_the_report_does_not_hide_why_the_launch_failed(
    tmp_path, world, monkeypatch
):
    def refuse(path: Path, _text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    world.raises["build", 0] = WorkloadError("no such model")
    monkeypatch.setattr(outputs, "write_whole", refuse)
    result = launch(tmp_path, "--json", str(tmp_path / "report.json"))
    assert result.exit_code == ExitCode.BAD_INPUT
    assert "WorkloadError: no such model" in result.stderr
    assert "report not written: [Errno 28] No space left on device" in result.stderr


def test_launch_with_json_dash_leaves_stdout_to_json(tmp_path: Path, world: FakeWorld):
    result = launch(tmp_path, "--json", "-")
    assert from_json(result.stdout).outcome == "warm"
    assert "compiled" in result.stderr


def test_launch_that_could_publish_nothing_is_refused_unless_it_is_told_to_read_only(tmp_path, world):
    _, public = save_key_pair(generate_key_pair("ci"), tmp_path)
    trust = {"policy": "require", "trusted_keys": {"ci": str(public)}}
    store = {"path": str(tmp_path / "store"), "trust": trust}
    result = launch(tmp_path, store=store)
    assert (result.exit_code, world.called("build")) == (ExitCode.BAD_INPUT, [])
    assert "store.trust.signing_key" in result.stderr
    assert "mode: ro" in result.stderr
    assert launch(tmp_path, store={**store, "mode": "ro"}).exit_code != ExitCode.BAD_INPUT
    assert launch(tmp_path, "--no-compile", store=store).exit_code != ExitCode.BAD_INPUT


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"workload": {"entrypoint": "absent_of_all:f"}}, "workload.entrypoint"),
        ({"ray": {"num_cpus_per_rank": 4096.0}}, "ranks, ray.num_cpus_per_rank, ray.num_cpus"),
    ],
)
def test_launch_refuses_in_the_words_of_config_check_what_every_rank_would_find(
    tmp_path, world, monkeypatch, more, key
):
    monkeypatch.setattr("warmrank.orchestrator.gang.ray_session._is_initialized", lambda: False)
    result = launch(tmp_path, **more)
    checked = run("config", "check", tmp_path / "launch.yaml")
    assert (result.exit_code, checked.exit_code) == (ExitCode.BAD_INPUT, ExitCode.BAD_INPUT)
    assert f"launch.yaml: {key}" in result.stderr
    assert f"error: {key}" in checked.stdout
    for line in checked.stdout.splitlines()[1:]:
        assert " ".join(line.split()) in " ".join(result.stderr.split())
    assert not [word for word in ("expected ", "rank was", "ranks were", "stage") if word in result.stderr]
    assert world.called("build") == []


def test_cache_directory_of_somebody_else_is_refused_before_anything_starts(tmp_path, world, monkeypatch):
    monkeypatch.setattr("warmrank.orchestrator.gang.ray_session._is_initialized", lambda: False)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    result = launch(tmp_path)
    assert (result.exit_code, world.called("build")) == (ExitCode.FAULT, [])
    assert "error: unusable: directory" in result.stderr


def launch_failed(*kinds: str) -> LaunchFailed:
    failures = [
        WorkerFailure(rank=rank, stage="build", kind=kind, message="") for rank, kind in enumerate(kinds)
    ]
    return LaunchFailed("build", failures, num_ranks=2)


def caused_by(cause: Exception) -> CannotStart:
    message = "no Ray cluster can be joined at '10.0.0.1:6379'"
    return CannotStart(message, is_lost=ray_session.is_unreachable(cause))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError([]), 2),
        (NotYet("cuda", instead="use cpu"), 2),
        (BadConfig("WARMRANK_NO_COMPILE=maybe: expected 1 or 0"), 2),
        (CannotStart("no CPUs"), 1),
        (caused_by(ConnectionRefusedError()), 5),
        (caused_by(TimeoutError()), 5),
        (caused_by(OSError(errno.EHOSTUNREACH, "no route")), 5),
        (caused_by(socket.gaierror(socket.EAI_NONAME, "no such host")), 1),
        (DemoFailed("cold failed", exit_code=3), 3),
        (PermissionError("denied"), 1),
        (StoreUnavailable(what="store", where="/mnt/gone", reason="not mounted"), 4),
        (CompileForbidden([("f", "torch", 0), ("f", "torch", 1)]), 3),
        (KeyboardInterrupt(), 130),
        (launch_failed("WorkloadError"), 2),
        (launch_failed("UnusableCache", "UnusableCache"), 4),
        (launch_failed("WorkloadError", "died"), 5),
    ],
)
def test_exit_code_of_error(error: BaseException, code: int):
    assert exit_code_of(error) == code


HOSTILE = "de\x1b]0;owned\x07code\x1b[2J\x9b31m\u202e\x7f"


@pytest.mark.parametrize("arguments", [("ls", "--long"), ("show", "world2global_rank0", "--json")])
def test_hostile_names_in_a_store_reach_no_terminal(tmp_path: Path, arguments):
    config = loaded_config(tmp_path)
    functions = {f"{HOSTILE}.decode": FUNCTIONS["Llama.decode"]}
    here = {**environment(), HOSTILE: HOSTILE}
    store_launch(config, tmp_path / "work", here=here, functions=functions)
    result = run(*arguments, "--store", tmp_path / "store")
    assert (result.exit_code, "owned" in result.stdout) == (0, True)
    assert not {"\x1b", "\x07", "\x9b", "\x7f"} & set(result.output)


def test_show_of_a_file_that_is_not_there_says_so(tmp_path: Path):
    result = run("show", tmp_path / "compiled_module")
    assert result.exit_code == 2
    assert "no file" in result.stderr
    assert "--store" in result.stderr


def test_prepare_leaves_a_directory_alone_that_no_demo_made(tmp_path: Path):
    store = tmp_path / "out" / "store"
    store.mkdir(parents=True)
    with pytest.raises(BadArgument, match="no demo made it"):
        prepare_demo(tmp_path / "out")
    assert store.exists()


def test_width_that_is_not_known_hides_nothing() -> None:
    words = [sys.executable, "-c", "from warmrank.orchestrator.cli.main import main; main()", "ls", "--help"]
    done = subprocess.run(
        words, env={**os.environ, "COLUMNS": "0"}, capture_output=True, check=True, text=True, timeout=60
    )
    assert "CONFIG" in done.stdout


def test_demo_without_a_terminal_writes_lines_that_a_log_can_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(command: Sequence[str]) -> int:
        is_cold = command[-1].endswith("cold.html")
        report = make_report("compiled", trace_s=1.0, wall_s=10.0) if is_cold else make_report(wall_s=5.0)
        Path(command[command.index("--json") + 1]).write_text(to_json(report))
        return 0

    run_demo(tmp_path / "out", output(), run=run)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("warm launch ──") for line in lines)
    assert max(map(len, lines)) < 400


def test_terminated_demo_ends_its_launch_and_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out, has_handler = tmp_path / "out", tmp_path / "has_handler"
    code = f"""
import signal, sys, time
def end(*_):
    open({str(out)!r}, 'w').write('cleaned up')
    sys.exit(143)
signal.signal(signal.SIGTERM, end)
open({str(has_handler)!r}, 'w').close()
time.sleep(600)
"""
    original = subprocess.Popen.wait
    waits: list[str] = []

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waits.append("wait")
        if len(waits) == 1:
            assert await_true(has_handler.exists, timeout_s=60)
            raise Terminated
        return original(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    with pytest.raises(Terminated):
        run_process([sys.executable, "-c", code])
    assert out.read_text() == "cleaned up"


TEXT = (Path(__file__).parents[2] / "docs" / "launch.md").read_text()
CODES, BY_COMMAND = TEXT.partition("## Exit codes\n")[2].split("### By command")


def rows(text: str) -> list[tuple[str, ...]]:
    """The rows of the first table in a text, without its head."""
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line) for line in lines[2:]]


def commands(group: Any = None, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its name."""
    root: Any = get_command(app)
    for name, each in (group or root).commands.items():
        if hasattr(each, "commands"):
            yield from commands(each, f"{above}{name} ")
        else:
            yield f"{above}{name}", each


def test_every_option_has_its_help():
    lacking = [(name, each.name) for name, command in commands() for each in command.params if not each.help]
    assert lacking == []


def test_table_of_codes_is_the_enumeration():
    assert [(int(code), name.strip("`")) for code, name, _ in rows(CODES)] == [
        (code.value, code.name) for code in ExitCode
    ]


def test_every_command_has_its_row():
    named = [name for cell, _ in rows(BY_COMMAND) for name in re.findall(r"`([^`]+)`", cell)]
    assert len(named) == len(set(named))
    assert set(named) == {name for name, _ in commands()}


def test_commands_name_known_codes_only():
    known = {code.value for code in ExitCode} | {126, 127}  # those two are the user's own command's
    for command, text in rows(BY_COMMAND):
        codes = {int(code) for code in re.findall(r"(?:^|[;,(] ?)(\d+)\b", text)}
        assert codes <= known, command


@pytest.mark.parametrize(("text", "change"), [("ranks: 1 # \0", "ranks=1"), ("ranks: 1", "name=\udcc3")])
def test_character_that_yaml_does_not_have_is_bad_input(tmp_path: Path, text: str, change: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    result = run("config", "check", str(tmp_path / "a.yaml"), "--set", change)
    assert (result.exit_code, "unacceptable character" in result.stderr) == (ExitCode.BAD_INPUT, True)


def test_current_directory_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert "the current directory was removed" in run("ls", "--store", "near").stderr


def test_lines_for_people_are_dropped_where_nothing_takes_them_and_results_are_not(monkeypatch):
    with Path("/dev/full").open("w") as full:  # which fails at the end, too, while there is something in it
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, full)
        with pytest.raises(OSError, match="No space left"):
            output().print("a result")
        for console in (output(lossy=True), output(stderr=True)):
            console.print("a line")


def test_standard_streams_that_are_closed_are_no_error():
    code = "import os, sys; os.closerange(0, 3); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    words = ("-m", "warmrank", "report", "/absent")
    ended = subprocess.run([sys.executable, "-c", code, *words], check=False)
    assert ended.returncode == ExitCode.BAD_INPUT


def test_name_that_the_encoding_of_stdout_lacks_is_written_by_its_number(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "warmrank", "keys", "list", "--keyring", str(tmp_path / "\xfc")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(words, env=environment, capture_output=True, check=True)
    assert rb"\xfc: 0 keys" in ended.stdout


def test_lines_of_libraries_go_to_stderr_without_colours(capsys: pytest.CaptureFixture[str]) -> None:
    with others_on_stderr():
        sys.stdout.write("\x1b[33m(raylet)\x1b[0m A worker died\n")
    assert capsys.readouterr().err == "(raylet) A worker died\n"


def test_reader_that_stops_early_ends_a_command_without_a_word() -> None:
    code = """
from warmrank.orchestrator.cli.console import output, session
with session():
    output().print("x" * 500_000)
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 1)


def test_cursor_stays_where_a_process_ends_at_once_while_a_bar_is_shown() -> None:
    code = "import os\nfrom warmrank.orchestrator.cli.console import fetch_progress\n"
    code += "with fetch_progress('verify'):\n    os._exit(130)"
    ours, its = os.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", code], stderr=its, env=environment, check=False)
    os.close(its)
    said = os.read(ours, 10_000)
    os.close(ours)
    hides, shows = (said.rfind(b"\x1b[?25" + end) for end in (b"l", b"h"))
    assert (done.returncode, 0 <= hides < shows) == (130, True), said


@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize("at_its_end", [False, True])
def test_interrupt_while_python_begins_or_ends_shows_no_traceback(at_its_end: bool) -> None:
    code = "import atexit, os, runpy, signal, sys, warmrank.orchestrator.cli as cli\n"
    if at_its_end:
        code += "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
    else:  # as it imports the commands, which takes longest
        code += "cli.__path__ = type('P', (list,), {'__iter__': lambda _: os.kill(os.getpid(), 2)})()\n"
    code += "sys.argv = ['warmrank', '--version']; runpy.run_module('warmrank', run_name='__main__')"
    done = ended("-c", code)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize(
    ("command", "number", "status"),
    [("exec", "SIGINT", 130), ("exec", "SIGTERM", 143), ("build", "SIGTERM", 143), ("audit", "SIGINT", 130)],
)
def test_signal_while_torch_is_imported_is_not_lost(
    tmp_path: Path, command: str, number: str, status: int
) -> None:
    """Native code of torch that imports numpy drops what a handler of the signal raises."""
    file = tmp_path / "a.yaml"
    file.write_text(f"workload: {{entrypoint: json:dumps}}\nranks: 1\ncache_dir: {tmp_path}/cache\n")
    words = [command, str(file), *(["--here", "--", "touch", f"{tmp_path}/ran"] if command == "exec" else [])]
    code = f"""import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.{number})
            except BaseException:
                pass
sys.meta_path.insert(0, Finder())
sys.argv = {["warmrank", *words]!r}
runpy.run_module("warmrank", run_name="__main__")"""
    done = ended("-c", code)
    assert (done.returncode, done.stderr) == (status, "stopped\n")
    assert not (tmp_path / "ran").exists()


def test_job_id_that_ray_refuses_and_keeps_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"workload: {{entrypoint: json:dumps}}\ncache_dir: {tmp_path}/cache\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        done = run("submit", "job.yaml", "--job-id", "bad id")
    assert (done.exit_code, "--job-id 'bad id'" in done.output) == (2, True)


def test_python_without_the_packages_is_named() -> None:
    """As where a job runs another `python` than the one that started its cluster."""
    code = "import runpy, sys; sys.modules['typer'] = None; runpy.run_module('warmrank', run_name='__main__')"
    done = ended("-c", code)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {sys.executable} lacks typer, which warmrank needs: pip install")
