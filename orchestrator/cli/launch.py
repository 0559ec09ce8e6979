"""The commands that launch, here with the demo or as a job, and the one that renders a launch's report again.

The demo launches the embedded default twice, in fresh processes, cold and then warm. `submit` is a thin shell
over Ray's job client, whose command line ends with 1 whatever the job ended with. The current directory goes
along as the job's working directory.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from warmrank.cache_store.text import count_text, ended_text, seconds_text
from warmrank.orchestrator import signals
from warmrank.orchestrator.cli.console import exit_code_of, others_on_stderr, output, say
from warmrank.orchestrator.cli.options import (
    ConfigOptions,
    NodeNames,
    OptionalConfig,
    Overrides,
    ReportFile,
    load_config,
    refuse_what_fails,
)
from warmrank.orchestrator.errors import BadArgument, DemoFailed, OrchestratorError, first_line
from warmrank.orchestrator.ui.table import WIDE, table_of
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

    from warmrank.orchestrator.launch.report import RankReport, Report
    from warmrank.orchestrator.ui.outputs import Outputs

logger = logging.getLogger(__name__)

NoCompile = Annotated[
    bool, Option("--no-compile", help="Never compile: a miss is an error that explains itself.")
]
TraceFile = Annotated[
    Path | None, Option("--trace", metavar="FILE.json", help="Write the timeline there, for Perfetto.")
]
MetricsFile = Annotated[
    Path | None, Option("--metrics", metavar="FILE.prom", help="Write metrics there, for node_exporter.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """Files to write of a launch; its fields are those of `ui.outputs.Outputs`.

    Options:
        html: Write the report there as one page for a browser.
    """

    json: ReportFile = None
    html: Annotated[Path | None, Option("--report", metavar="FILE.html")] = None
    trace: TraceFile = None
    metrics: MetricsFile = None


def launch(  # noqa: PLR0913 - a parameter is an option of the command
    config: OptionalConfig = None,
    overrides: Overrides = None,
    *,
    files: Files,
    node: NodeNames = None,
    exclude_node: Annotated[list[str] | None, Option(metavar="NODE")] = None,
    no_compile: NoCompile = False,
    demo: Annotated[Path | None, Option(metavar="DIR")] = None,
) -> None:
    """Bring every rank to a warm state; compile only what is nowhere stored.

    Options:
        exclude_node: Start no rank on this node. Repeatable.
        demo: In place of CONFIG: launch the embedded default twice, cold and then warm, with cache, store and
            reports in DIR, and compare.
    """
    if demo is not None and config is None:
        run_demo(demo, output(lossy=True))
        return
    if config is None or demo is not None:
        raise typer.BadParameter("expected either a CONFIG or --demo DIR", param_hint="CONFIG")
    from warmrank.orchestrator.config.reading import require_workload
    from warmrank.orchestrator.launch.driver import Launch
    from warmrank.orchestrator.launch.events import all_of
    from warmrank.orchestrator.launch.report import keep_last, to_json
    from warmrank.orchestrator.ui.outputs import Outputs, RayMetrics
    from warmrank.orchestrator.ui.progress import progress
    from warmrank.orchestrator.ui.report_table import render

    nodes = {"ray.nodes": node, "ray.exclude_nodes": exclude_node}
    overrides = [*(overrides or ()), *(f"{key}={json.dumps(names)}" for key, names in nodes.items() if names)]
    loaded = load_config(config, overrides)
    require_workload(loaded, str(config))
    refuse_what_fails(loaded, config, overrides, reads_only=no_compile or settings().no_compile)
    outputs = Outputs(**asdict(files))
    outputs.prepare()
    console = output(stderr=outputs.json_to_stdout, lossy=True)

    named_by = (str(config), *(word for each in overrides for word in ("--set", each)))

    def tell(report: Report) -> None:
        keep_last(report)
        _write(outputs, report, console)
        if outputs.json_to_stdout:
            typer.echo(to_json(report), nl=False)

    with progress(console, loaded.ranks, name=loaded.name) as shown:
        run = Launch(loaded, no_compile=no_compile, listener=all_of(shown, RayMetrics(loaded.name)))
        try:
            with others_on_stderr(), signals.named():
                report = replace(run.run(), config=named_by)
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt):
                signals.leave_at_once_later()  # all has ended; a Ray that was cut short may crash at the end
            failed = replace(run.failed(error, exit_code=exit_code_of(error)), config=named_by)
            with signals.undisturbed():
                try:
                    tell(failed)
                except OSError as trouble:  # the disk is full, perhaps: what ended the launch counts more
                    say(f"report not written: {trouble}", stderr=True)
            raise
    console.print()
    console.print(render(report))
    tell(report)


def _write(outputs: Outputs, report: Report, console: Console) -> bool:
    """Write the files that were asked for, and say so; returns whether there was any."""
    written = outputs.write(report)
    for what, path in written:
        console.print(f"{what}: {path}", soft_wrap=True, markup=False)
    return bool(written)


def report(
    json_file: Annotated[Path | None, Argument(metavar="REPORT.json")] = None,
    html_file: Annotated[Path | None, Option("--out", "-o", metavar="FILE.html")] = None,
    trace_file: TraceFile = None,
    metrics_file: MetricsFile = None,
) -> None:
    """Show the report of a launch again: as a table, a page, a trace, metrics.

    Options:
        json_file: What launch --json wrote; else the last launch of this user on this machine.
        html_file: One page for a browser.
    """
    from warmrank.orchestrator.launch.report import read_last, read_report
    from warmrank.orchestrator.ui.outputs import Outputs
    from warmrank.orchestrator.ui.report_table import render

    found = read_report(json_file) if json_file else read_last()
    outputs = Outputs(html=html_file, trace=trace_file, metrics=metrics_file)
    outputs.prepare()
    console = output()
    if not _write(outputs, found, console):
        console.print(render(found))


MARKER = ".made-by-warmrank-demo"
_MADE = ("cache", "store", "cold.json", "warm.json", "cold.html", "warm.html")

Run = Callable[[Sequence[str]], int]


def run_process(command: Sequence[str]) -> int:
    """Run a command to its end. Ctrl-C reaches it too, SIGTERM is passed on; it gets the time to clean up."""
    with subprocess.Popen(command) as process:  # noqa: S603 - our own interpreter and module
        try:
            return process.wait()
        except KeyboardInterrupt as stop:
            if isinstance(stop, signals.Terminated):
                process.terminate()
            with signals.undisturbed():
                process.wait()
            raise


def run_demo(out: Path, console: Console, *, run: Run = run_process) -> None:
    """Launch cold, launch warm, and compare; ``run`` runs a command and returns its exit status.

    Raises:
        BadArgument: ``out`` holds something that no demo made; nothing was touched.
        DemoFailed: a launch failed, or the warm one compiled.
    """
    import importlib.resources

    prepare_demo(out)
    config = Path(str(importlib.resources.files("warmrank.cluster_configs") / "llama-cpu.yaml"))
    if config.is_relative_to(Path.cwd()):  # as people would name it from here
        config = config.relative_to(Path.cwd())
    named = (str(config), "--set", f"cache_dir={out / 'cache'}", "--set", f"store.path={out / 'store'}")
    cold, warm = (_launch(name, named, out, console, run) for name in ("cold", "warm"))
    before_s, after_s = (max(map(_saved_s, report.ranks)) for report, _ in (cold, warm))
    saved = (
        f"{seconds_text(before_s)} of tracing and compiling, cold; {seconds_text(after_s)} of loading, warm"
    )
    faster = (f"   {before_s / max(after_s, 1e-9):.1f} x faster", "bold green")
    console.print()
    console.print(Text.assemble(("To get warm: ", "bold"), saved, faster), soft_wrap=True)
    console.print(_comparison(cold, warm))
    totals = warm[0].totals
    if totals.num_compiled:
        compiled = count_text(totals.num_compiled, "function")
        raise DemoFailed(f"the warm launch compiled {compiled}; expected none", exit_code=1)
    program = "warmrank" if shutil.which("warmrank") else f"{sys.executable} -m warmrank"
    kept = f"{totals.num_loaded} loaded, {totals.num_adopted} adopted, 0 compiled"
    for text, style in (
        (f"The warm launch compiled nothing: {kept}.", "bold green"),
        (f"  artifacts  {out / 'cache'}", ""),
        (f"  store      {out / 'store'}", ""),
        (f"  reports    {out / 'cold.html'}, {out / 'warm.html'}, for a browser; beside them as JSON", ""),
        ("Try next, with twice the ranks: they adopt, and nothing is compiled either.", ""),
        (f"  {program} launch {' '.join(named)} --set ranks=4 --set parallel.dp=2", "bold"),
        (f"  {program} explain {' '.join(named)}", "bold"),
    ):
        console.print(Text(text, style=style), soft_wrap=True)


def prepare_demo(out: Path) -> None:
    """Make ``out``, or empty it of what an earlier demo made; `BadArgument` where no demo made it."""
    if out.exists() and not (out.is_dir() and ((out / MARKER).is_file() or not any(out.iterdir()))):
        raise BadArgument(
            f"{out} exists, and no demo made it (it has no {MARKER}), so it is left alone; "
            "move it away, or name another directory"
        )
    out.mkdir(parents=True, exist_ok=True)
    for path in map(out.joinpath, _MADE):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    (out / MARKER).write_text("`warmrank launch --demo` empties this directory when it runs again.\n")


def _launch(name: str, named: Sequence[str], out: Path, console: Console, run: Run) -> tuple[Report, float]:
    """One launch of the demo: its report, and the wall seconds of its process."""
    from warmrank.orchestrator.launch.report import read_report

    path = out / f"{name}.json"
    console.print()
    console.print(Rule(Text(f"{name} launch", style="bold"), align="left"), width=min(console.width, WIDE))
    started = time.perf_counter()
    files = ("--json", str(path), "--report", str(path.with_suffix(".html")))
    status = run((sys.executable, "-m", "warmrank", "launch", *named, *files))
    process_s = time.perf_counter() - started
    if status != 0:
        raise DemoFailed(
            f"the {name} launch {ended_text(status)}; its own message stands above",
            exit_code=status if status > 0 else 128 - status,
        )
    return read_report(path), process_s


def _saved_s(rank: RankReport) -> float:
    return sum(each.seconds.trace_s + each.seconds.compile_s + each.seconds.load_s for each in rank.functions)


def _comparison(*launches: tuple[Report, float]) -> Table:
    """Speed-ups of the warm launch: first of the work that a cache can save, last of the whole process."""
    columns = []
    for found, process_s in launches:
        start_s = sum(each.seconds for each in found.stages if each.stage == "start")
        columns.append(
            {
                **{f"rank {rank.rank}: trace + compile + load": _saved_s(rank) for rank in found.ranks},
                "launch, once its ranks are started": found.totals.wall_s - start_s,
                "start of Ray and of its ranks, which no cache saves": start_s,
                "whole process, all that included": process_s,
            }
        )
    cold, warm = columns
    table = table_of("what the seconds span", ">cold", ">warm", ">faster", title="cold and warm")
    for what, before_s in cold.items():
        ratio = f"{before_s / warm[what]:.1f} x" if warm[what] > 0 else "-"
        table.add_row(what, seconds_text(before_s), seconds_text(warm[what]), ratio)
    return table


_JOB_ID = "[A-Za-z0-9._-]+"  # of any other Ray says that it refused it, and keeps the job waiting
_POLL_S = 1.0
_STOP_TIMEOUT_S = 30.0
_MAX_SILENT = 5


def submit(  # noqa: PLR0913 - as launch
    config: ConfigOptions,
    address: Annotated[str | None, Option(metavar="URL")] = None,
    no_compile: NoCompile = False,
    *,
    files: Files,
    no_wait: bool = False,
    job_id: Annotated[str | None, Option(metavar="ID")] = None,
    metadata: Annotated[list[str] | None, Option(metavar="KEY=VALUE")] = None,
) -> None:
    """Run a launch as a Ray job and follow its log; Ctrl-C stops the job.

    Files to write are absolute paths on the node that the job's driver runs on.

    Options:
        address: The cluster's dashboard, e.g. http://HEAD:8265.
        no_wait: End once the job is submitted.
        job_id: The job's id on the cluster; else Ray's.
        metadata: Kept with the job by Ray. Repeatable.
    """
    from warmrank.orchestrator.config.reading import require_workload, written_places
    from warmrank.orchestrator.gang import upload

    path, overrides, here = config.config, config.overrides or [], Path.cwd()
    loaded = config.load()
    require_workload(loaded, str(path))
    upload.refuse_in_job(written_places(path, tuple(overrides)), str(path))
    refuse_what_fails(loaded, path, overrides, is_elsewhere=True)
    if unfit := [pair for pair in metadata or () if not pair.partition("=")[1] or pair.startswith("=")]:
        raise BadArgument(f"--metadata {unfit[0]!r}: expected KEY=VALUE")
    if job_id is not None and not re.fullmatch(_JOB_ID, job_id):
        raise BadArgument(f"--job-id {job_id!r}: expected letters, digits, '.', '_' and '-'")
    words = ["python", "-m", "warmrank", "launch", _inside(path, here)]
    words += [word for override in overrides for word in ("--set", override)]
    for name, file in asdict(files).items():
        option = "--report" if name == "html" else f"--{name}"
        if file is not None and not file.is_absolute():
            raise BadArgument(
                f"{option}: expected an absolute path, found {file}; the file is written by the job, on the "
                "node that its driver runs on, where the working directory goes with the job"
            )
        words += [] if file is None else [option, str(file)]
    if no_compile or settings().no_compile:  # the job has an environment of its own
        words.append("--no-compile")
    upload.say_kept(here, lambda line: say(f"note: {line}", stderr=True))
    client = _connect(address)
    runtime_env = upload.runtime_env(here, loaded)
    try:
        job = client.submit_job(
            entrypoint=shlex.join(words),
            runtime_env=runtime_env,
            submission_id=job_id,
            metadata=dict(pair.split("=", 1) for pair in metadata or ()),
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise OrchestratorError(f"the cluster refused the job: {first_line(error)}") from error
    _echo(f"job {job} submitted; follow it also with: ray job logs -f {job}\n")
    if not no_wait:
        code, said = follow(client, job, write=_echo)
        say(f"job {job} {said}", stderr=True)
        raise typer.Exit(code)


def _echo(text: str) -> None:
    typer.echo(text, nl=False)


def follow(
    client: JobSubmissionClient, job: str, *, write: Callable[[str], object], poll_s: float = _POLL_S
) -> tuple[int, str]:
    """Follow a job's log to its end, and return its exit code with Ray's words for it; Ctrl-C stops the job.

    Raises:
        OrchestratorError: the cluster went away.
    """
    num_written = num_silent = num_unread = 0
    is_over = False
    try:
        while not is_over:
            try:
                info = client.get_job_info(job)  # before the log, of which nothing is missed then
            except (RuntimeError, OSError) as error:
                num_silent += 1
                if num_silent > _MAX_SILENT:
                    raise OrchestratorError(
                        f"the cluster does not answer any more, so how job {job} ended is not known: "
                        f"{first_line(error)}. Once it answers, ask with: ray job status {job}"
                    ) from error
                time.sleep(poll_s)
                continue
            num_silent, began_s = 0, time.monotonic()
            is_over = info.status.is_terminal()
            try:
                text = client.get_job_logs(job)
            except (RuntimeError, OSError) as error:
                num_unread += 1
                if is_over and num_unread > _MAX_SILENT:  # it went with the node that the job's driver ran on
                    write(f"\nthe rest of the log cannot be read: {first_line(error)}\n")
                else:
                    is_over = False
            else:
                num_unread = 0
                write(text[num_written:])
                num_written = len(text)
            if not is_over:
                time.sleep(max(poll_s, 10 * (time.monotonic() - began_s)))  # it is the whole log each time
    except KeyboardInterrupt as stop:
        write(f"\nstopping job {job} ...\n")
        return signals.exit_code_of(stop), _stop(client, job, poll_s)
    return job_exit_code(str(info.status), info.driver_exit_code), _said_of(info)


def _stop(client: JobSubmissionClient, job: str, poll_s: float) -> str:
    """Stop a job, and wait for its end; what became of it."""
    deadline_s = time.monotonic() + _STOP_TIMEOUT_S
    try:
        client.stop_job(job)
        while not (info := client.get_job_info(job)).status.is_terminal() and time.monotonic() < deadline_s:
            time.sleep(poll_s)
    except (RuntimeError, OSError) as error:
        return f"may run on: {first_line(error)}. Once the cluster answers: ray job stop {job}"
    return _said_of(info)


def _said_of(info: JobDetails) -> str:
    # Ray repeats the end of the log, which stands above.
    return f"{info.status}: {(info.message or '').partition(', last available logs')[0]}"


def job_exit_code(status: str, driver_exit_code: int | None) -> int:
    """The exit code that stands for a job's end; a driver that a signal killed has a negative one."""
    if status in {"SUCCEEDED", "STOPPED"}:
        return 0 if status == "SUCCEEDED" else signals.EXIT_INTERRUPTED
    code = driver_exit_code or 1
    return code if code > 0 else 128 - code


def _connect(address: str | None) -> JobSubmissionClient:
    """Connect to the job server at a URL; without one, to where Ray's variables and files say."""
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env"):
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)  # they write to stderr at INFO
    if address is not None:
        # Ray lets this variable win over the argument; what the user typed shall win.
        os.environ["RAY_API_SERVER_ADDRESS"] = address if "://" in address else f"http://{address}"
    asked = os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
    try:
        return JobSubmissionClient()
    except (RuntimeError, ValueError, OSError, RayError) as error:
        where = f"at {asked}" if asked else "on this machine (no --address, no RAY_ADDRESS)"
        raise OrchestratorError(
            f"no Ray job server answers {where}: {first_line(error)}; start a cluster with one by "
            "`ray start --head --include-dashboard=true`, or name it with --address http://HEAD:8265"
        ) from error


def _inside(config: Path, directory: Path) -> str:
    if config.resolve().is_relative_to(directory.resolve()):
        return config.resolve().relative_to(directory.resolve()).as_posix()
    raise BadArgument(
        f"{config} lies outside the current directory {directory}, which is what goes to the cluster; "
        "change into a directory above it, or copy it here"
    )
