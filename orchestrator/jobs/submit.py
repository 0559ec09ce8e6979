"""`warmrank submit`: run a launch as a Ray job, follow its log, and return the job's own outcome.

The current directory goes along as the job's working directory, so the three packages need not be installed
on the cluster: where the directory does not hold them, they are shipped beside it. Ray's own command line
ends with status 1 whatever the job ended with; here the driver's exit code is passed on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from warmrank.orchestrator import signals
from warmrank.orchestrator.errors import BadArgument, OutsideDirectory, SubmitFailed, first_line

logger = logging.getLogger(__name__)

# They log at INFO to stderr, whatever the process's logging is.
_TALKATIVE = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
_STOP_TIMEOUT_S = 30.0
_LOG_AGAIN = ", last available logs"  # which was followed, and stands above
_POLL_S = 0.5
_MAX_RECONNECTS = 5


class JobLost(SubmitFailed):
    """The cluster went away while the job ran."""


class JobClient(Protocol):
    """The part of Ray's `JobSubmissionClient` that is used here."""

    def submit_job(
        self,
        *,
        entrypoint: str,
        runtime_env: dict[str, Any],
        submission_id: str | None,
        metadata: dict[str, str],
    ) -> str:
        """Upload the working directory, start the job, and return its submission id."""

    def get_job_info(self, job_id: str) -> Any:
        """Return an object with ``status``, ``driver_exit_code`` and ``message``."""

    def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        """Yield the job's output from its beginning until it ends."""

    def stop_job(self, job_id: str) -> bool:
        """Ask the job to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNames:
    """What the user calls a job.

    Attributes:
        job_id: its submission id; None lets Ray choose one.
        metadata: kept with it by Ray.
    """

    job_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        job: Ray's submission id.
        status: Ray's word for it, for example ``SUCCEEDED``.
        exit_code: what this process should end with: the driver's own code where there is one.
        message: what Ray says about it.
    """

    job: str
    status: str
    exit_code: int
    message: str


def job_entrypoint(
    config: Path,
    overrides: Sequence[str],
    *,
    directory: Path,
    no_compile: bool = False,
    files: Mapping[str, Path | None] | None = None,
) -> str:
    """The shell command of the job.

    Args:
        config: the launch.
        overrides: as ``--set`` takes them.
        directory: what goes along.
        no_compile: as for a launch.
        files: what the launch writes where its driver runs, by the option that names it.

    Raises:
        OutsideDirectory: the config lies outside ``directory``, so the job would not find it.
        BadArgument: a file would be gone with the job.
    """
    try:
        inside = config.resolve().relative_to(directory.resolve())
    except ValueError:
        msg = (
            f"{config} lies outside the current directory {directory}, which is what goes to the cluster; "
            "change into a directory above it, or copy it here"
        )
        raise OutsideDirectory(msg) from None
    words = ["python", "-m", "warmrank", "launch", inside.as_posix()]
    for override in overrides:
        words += ["--set", override]
    for option, path in (files or {}).items():
        if path is not None:
            words += [option, _lasting(path, option)]
    return shlex.join([*words, "--no-compile"] if no_compile else words)


def _lasting(path: Path, option: str) -> str:
    if not path.is_absolute():
        msg = (
            f"{option}: expected an absolute path, found {path}; the file is written by the job, on the node "
            "that its driver runs on, where the working directory goes with the job"
        )
        raise BadArgument(msg)
    return str(path)


def connect(address: str | None, *, environ: Mapping[str, str]) -> JobClient:
    """A client of the cluster's job server.

    Args:
        address: URL of the dashboard; none takes RAY_API_SERVER_ADDRESS, RAY_ADDRESS, or this machine's.
        environ: the process's environment.

    Raises:
        SubmitFailed: no job server answers.
    """
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    if address is not None and "://" not in address:
        address = f"http://{address}"
    if address is not None:
        # Ray lets these variables win over the argument; what the user typed shall win.
        os.environ["RAY_API_SERVER_ADDRESS"] = address
    asked = address or environ.get("RAY_API_SERVER_ADDRESS") or environ.get("RAY_ADDRESS")
    try:
        client: JobClient = JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, ValueError, OSError, RayError) as error:
        where = f"at {asked}" if asked else "on this machine (no --address, no RAY_ADDRESS)"
        msg = (
            f"no Ray job server answers {where}: {_first_line(error)}; expected the dashboard of a running "
            "cluster. Start one with `ray start --head --include-dashboard=true`, or name it with "
            "--address http://HEAD:8265"
        )
        raise SubmitFailed(msg) from error
    return client


def parse_metadata(pairs: Sequence[str]) -> dict[str, str]:
    """Read ``KEY=VALUE`` words.

    Raises:
        BadArgument: one has another form.
    """
    for pair in pairs:
        if not pair.partition("=")[0] or "=" not in pair:
            msg = f"--metadata {pair!r}: expected KEY=VALUE"
            raise BadArgument(msg)
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs)}


def submit_job(
    client: JobClient, *, entrypoint: str, env: dict[str, Any], names: JobNames | None = None
) -> str:
    """Submit a job, and return its id.

    Raises:
        SubmitFailed: the cluster refused the upload or the job.
    """
    names = names or JobNames()
    try:
        return client.submit_job(
            entrypoint=entrypoint,
            runtime_env=env,
            submission_id=names.job_id,
            metadata=dict(names.metadata),
        )
    except (RuntimeError, ValueError, OSError) as error:
        msg = f"the cluster refused the job: {_first_line(error)}"
        raise SubmitFailed(msg) from error


def follow_job(
    client: JobClient,
    job: str,
    *,
    write: Callable[[str], object],
    pause: Callable[[float], None] = time.sleep,
) -> JobOutcome:
    """Follow a job's log to the end, and say how it ended; Ctrl-C stops the job.

    Raises:
        JobLost: the cluster went away.
    """
    try:
        asyncio.run(_follow(client, job, write, pause))
        return _outcome(client, job, pause, timeout_s=None)
    except KeyboardInterrupt as stop:
        write(f"\nstopping job {job} ...\n")
        client.stop_job(job)
        ended = _outcome(client, job, pause, timeout_s=_STOP_TIMEOUT_S)
        return JobOutcome(
            job=job, status=ended.status, exit_code=signals.exit_code_of(stop), message=ended.message
        )


async def _follow(
    client: JobClient, job: str, write: Callable[[str], object], pause: Callable[[float], None]
) -> None:
    """Write the job's log. A dropped connection is made again, and what was written is not written twice."""
    import aiohttp

    num_written = 0
    for attempt in range(_MAX_RECONNECTS + 1):
        num_seen = 0
        try:
            async for text in client.tail_job_logs(job):
                fresh = text[max(0, num_written - num_seen) :]
                num_seen += len(text)
                num_written += len(fresh)
                if fresh:
                    write(fresh)
        except (RuntimeError, aiohttp.ClientError, OSError) as error:
            logger.warning(
                "the log of job %s broke off (%s), attempt %d", job, _first_line(error), attempt + 1
            )
        if _info(client, job, pause).status.is_terminal():
            return
        pause(_POLL_S)
    logger.warning("the log of job %s cannot be followed any more; waiting for its end", job)


def _outcome(
    client: JobClient, job: str, pause: Callable[[float], None], *, timeout_s: float | None
) -> JobOutcome:
    waited_s = 0.0
    info = _info(client, job, pause)
    while not info.status.is_terminal() and (timeout_s is None or waited_s < timeout_s):
        pause(_POLL_S)
        waited_s += _POLL_S
        info = _info(client, job, pause)
    return JobOutcome(
        job=job,
        status=str(info.status),
        exit_code=exit_code_of(str(info.status), info.driver_exit_code),
        message=(info.message or "").partition(_LOG_AGAIN)[0],
    )


def _info(client: JobClient, job: str, pause: Callable[[float], None]) -> Any:
    """What Ray knows of a job; a job server that does not answer is asked a few times more.

    Raises:
        JobLost: it does not answer any more.
    """
    for attempt in range(_MAX_RECONNECTS + 1):
        try:
            return client.get_job_info(job)
        except (RuntimeError, OSError) as error:
            if attempt == _MAX_RECONNECTS:
                msg = (
                    f"the cluster does not answer any more, so how job {job} ended is not known: "
                    f"{_first_line(error)}. Once it answers, ask with: ray job status {job}"
                )
                raise JobLost(msg) from error
            pause(_POLL_S)
    raise AssertionError  # the last attempt returns or raises


def exit_code_of(status: str, driver_exit_code: int | None) -> int:
    """The exit code that stands for a job's end.

    A driver that a signal killed has a negative code, which becomes 128 + signal as in a shell.
    """
    if status == "SUCCEEDED":
        return 0
    if status == "STOPPED":
        return signals.EXIT_INTERRUPTED
    if not driver_exit_code:
        return 1
    return driver_exit_code if driver_exit_code > 0 else 128 - driver_exit_code


def _first_line(error: BaseException) -> str:
    return first_line(error).rstrip(".") or type(error).__name__
