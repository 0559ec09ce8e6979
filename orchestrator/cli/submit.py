"""`warmrank submit`: run a launch as a Ray job, follow its log, and end with the driver's own exit code.

A thin shell over Ray's job client, whose command line ends with 1 whatever the job ended with. The current
directory goes along as the job's working directory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmrank.orchestrator import signals
from warmrank.orchestrator.cli.console import command, say
from warmrank.orchestrator.cli.launch import HtmlFile, MetricsFile, TraceFile
from warmrank.orchestrator.cli.options import ConfigFile, Overrides, load_config, refuse_what_fails
from warmrank.orchestrator.errors import BadArgument, OrchestratorError, first_line
from warmrank.worker.settings import settings

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_STOP_TIMEOUT_S = 30.0
_MAX_SILENT = 5


@command
def submit(  # noqa: PLR0913, PLR0917 - a parameter is an option of the command
    config: ConfigFile,
    address: Annotated[
        str | None, typer.Option(metavar="URL", help="The cluster's dashboard, e.g. http://HEAD:8265.")
    ] = None,
    overrides: Overrides = None,
    no_compile: Annotated[bool, typer.Option("--no-compile", help="As for launch.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report there.")
    ] = None,
    html_file: HtmlFile = None,
    trace_file: TraceFile = None,
    metrics_file: MetricsFile = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="End once the job is submitted.")] = False,
    job_id: Annotated[
        str | None, typer.Option("--job-id", metavar="ID", help="The job's id on the cluster; else Ray's.")
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar="KEY=VALUE", help="Kept with the job by Ray. Repeatable."),
    ] = None,
) -> None:
    """Run a launch as a Ray job and follow its log; Ctrl-C stops the job.

    Files to write are absolute paths on the node that the job's driver runs on.
    """
    from warmrank.orchestrator.config.reading import relative_places, require_workload
    from warmrank.orchestrator.gang import upload

    loaded = load_config(config, overrides)
    require_workload(loaded, str(config))
    upload.refuse_in_job(relative_places(config, tuple(overrides or ())), str(config))
    refuse_what_fails(loaded, str(config), overrides, is_elsewhere=True)
    if unfit := [pair for pair in metadata or () if not pair.partition("=")[1] or pair.startswith("=")]:
        raise BadArgument(f"--metadata {unfit[0]!r}: expected KEY=VALUE")
    here = Path.cwd()
    words = ["python", "-m", "warmrank", "launch", _inside(config, here)]
    words += [word for override in overrides or () for word in ("--set", override)]
    files = {"--json": json_file, "--report": html_file, "--trace": trace_file, "--metrics": metrics_file}
    for option, path in files.items():
        if path is not None and not path.is_absolute():
            raise BadArgument(
                f"{option}: expected an absolute path, found {path}; the file is written by the job, on the "
                "node that its driver runs on, where the working directory goes with the job"
            )
        words += [] if path is None else [option, str(path)]
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
    write = partial(typer.echo, nl=False)
    write(f"job {job} submitted; follow it also with: ray job logs -f {job}\n")
    if not no_wait:
        code, said = follow(client, job, write=write)
        say(f"job {job} {said}", stderr=True)
        raise typer.Exit(code)


def follow(
    client: JobSubmissionClient, job: str, *, write: Callable[[str], object], poll_s: float = _POLL_S
) -> tuple[int, str]:
    """Follow a job's log to its end, and return its exit code with Ray's words for it; Ctrl-C stops the job.

    Raises:
        OrchestratorError: the cluster went away.
    """
    try:
        info = asyncio.run(_ended(client, job, write, poll_s))
        code = exit_code_of(str(info.status), info.driver_exit_code)
    except KeyboardInterrupt as stop:
        write(f"\nstopping job {job} ...\n")
        client.stop_job(job)
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        while not (info := client.get_job_info(job)).status.is_terminal() and time.monotonic() < deadline_s:
            time.sleep(poll_s)
        code = signals.exit_code_of(stop)
    # Ray repeats the end of the log, which stands above.
    return code, f"{info.status}: {(info.message or '').partition(', last available logs')[0]}"


async def _ended(
    client: JobSubmissionClient, job: str, write: Callable[[str], object], poll_s: float
) -> JobDetails:
    """Write the log until the job ends; after a dropped connection, what was not written yet."""
    import aiohttp

    num_written = num_silent = 0
    while True:
        num_seen = 0
        try:
            async for text in client.tail_job_logs(job):
                write(text[max(0, num_written - num_seen) :])
                num_seen += len(text)
                num_written = max(num_written, num_seen)
        except (RuntimeError, aiohttp.ClientError, OSError) as error:
            logger.warning("the log of job %s broke off (%s)", job, first_line(error))
        try:
            info = client.get_job_info(job)
        except (RuntimeError, OSError) as error:
            num_silent += 1
            if num_silent > _MAX_SILENT:
                raise OrchestratorError(
                    f"the cluster does not answer any more, so how job {job} ended is not known: "
                    f"{first_line(error)}. Once it answers, ask with: ray job status {job}"
                ) from error
        else:
            if info.status.is_terminal():
                return info
            num_silent = 0
        await asyncio.sleep(poll_s)


def exit_code_of(status: str, driver_exit_code: int | None) -> int:
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
