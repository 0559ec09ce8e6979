"""Gets this process onto a Ray cluster, and off it again.

Four ways in, by `way_in`: Ray is up in this process already; this process is the driver of a Ray job; an
address is given; else a Ray of its own on this machine. Only the last one is shut down and removed at the
end. The code of the ranks goes along: a job has its working directory, a local Ray gets this process's import
paths, and a cluster joined by address gets a copy of the current directory.

`ray.init` knows no time-out, and its native half can wait for minutes without heeding a signal, so it runs in
a thread (`orchestrator.gang.beginning`). One that is given up goes on there: this process is done with Ray.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from warmrank.orchestrator.config.models import RayConfig
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.gang import guardian, joining
from warmrank.orchestrator.gang.beginning import Beginning, TookTooLong
from warmrank.orchestrator.gang.guarding import Guarding
from warmrank.orchestrator.leaving import leave_at_once_later
from warmrank.orchestrator.signals import held_back, python_s_sigterm, undisturbed

logger = logging.getLogger(__name__)

WayIn = joining.WayIn

_LEAVE_S = 40.0
"""Seconds to get off an own Ray; Ray itself ends a process 60 s after its head is gone."""

_SLOW_S = 15.0
"""What fails sooner is no time-out of Ray's, and would fail again."""

_AUTOSCALER = b"/autoscaler/_private/monitor.py\0"
_OWN_PROCESSES = {"raylet": b"/raylet/raylet\0", "GCS": b"/gcs/gcs_server\0"}
_JOB_MARK = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray's job supervisor for the driver that it starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """How this process got onto Ray.

    Attributes:
        way_in: which of the four ways.
        temp_dir: private directory that an own Ray gets a directory in; empty otherwise.
        guarding: what ends an own Ray, and removes that directory, when this process is killed; else None.
        beginning: of the connection; None where Ray was up in this process.
        own: the processes that an own Ray cannot be without, by name.
    """

    way_in: WayIn
    temp_dir: str = ""
    guarding: Guarding | None = None
    beginning: Beginning | None = None
    own: Mapping[str, guardian.Process] = field(default_factory=dict)


def way_in(config: RayConfig, environ: Mapping[str, str], *, initialized: bool) -> WayIn:
    """How this process should get onto Ray."""
    if initialized:
        return "initialized"
    if _JOB_MARK in environ:
        return "job"
    if config.address is not None or environ.get("RAY_ADDRESS"):
        return "address"
    return "local"


def way_in_now(config: RayConfig) -> WayIn:
    """How this process would get onto Ray by `enter`."""
    return way_in(config, os.environ, initialized=_is_initialized())


def enter(config: RayConfig, *, timeout_s: float) -> Session:
    """Get onto Ray.

    Args:
        config: where it is.
        timeout_s: how long that may take. Who gives up, by this or by a signal, is to end this process soon:
            Ray's native half may end it by itself, a minute after its head is gone.

    Raises:
        CannotStart: no Ray answers at the address, or a local one does not start, or not in time.
    """
    way = way_in_now(config)
    _prepare_environ(way)
    import ray  # noqa: F401 - in this thread: an import that is given up would hold locks

    if way == "initialized":
        return Session(way_in=way)
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        try:
            return _entered(way, config, timeout_s=deadline - began)
        except CannotStart as error:
            # A busy machine is too slow for Ray's own limits of 30 s, which another attempt may keep.
            took_s = time.monotonic() - began
            if not error.may_pass or not _SLOW_S <= took_s <= deadline - time.monotonic():
                raise
            logger.warning("%s; it is tried again", str(error).partition(". ")[0])


def _entered(way: WayIn, config: RayConfig, *, timeout_s: float) -> Session:
    """One attempt of `enter`, which leaves nothing behind where it fails."""
    session = Session(way_in=way)
    try:
        with python_s_sigterm():
            with held_back():  # until it is known what there is to clean up
                temp_dir = _short_temp_dir() if way == "local" else ""
                guarding = Guarding({}, remove=[temp_dir], spare=[os.getpid()]) if temp_dir else None
                beginning = Beginning(lambda: joining.join(way, config, temp_dir))
                session = Session(way_in=way, temp_dir=temp_dir, guarding=guarding, beginning=beginning)
            beginning.wait(timeout_s)
    except TookTooLong as error:
        abandon(session)
        raise CannotStart(joining.too_late(way, config, timeout_s)) from error
    except Exception as error:  # Ray raises `Exception` itself, too
        leave(session)
        raise CannotStart(
            joining.refusal(way, config, error),
            may_pass=way == "local",
            blames_cluster=joining.is_unreachable(error),
        ) from error
    except BaseException:
        abandon(session)
        raise
    logger.info("On Ray, way in: %s", way)
    if way != "local":
        return session
    found = {name: process for name, program in _OWN_PROCESSES.items() if (process := _own(program))}
    return replace(session, own=found)


def head_address() -> str:
    """Host and port of the cluster's head, once this process is on it."""
    import ray

    address: str = ray.get_runtime_context().gcs_address
    return address


def leave(session: Session) -> None:
    """Get off Ray; an own Ray ends, with all its processes and files."""
    if session.way_in == "initialized":
        return
    import ray

    with undisturbed():
        # It would scale an own Ray, if that could grow; it heeds no SIGTERM, and Ray gives it a second.
        if session.way_in == "local" and (autoscaler := _own(_AUTOSCALER)):
            guardian.kill({autoscaler})
        ray.shutdown()
        if session.guarding is not None:
            session.guarding.abandon()  # agents may be there still, waiting for a head that was just lost
            shutil.rmtree(session.temp_dir, ignore_errors=True)  # that guardian may have been killed itself
        if session.beginning is not None:
            session.beginning.end()


def ended(session: Session) -> str:
    """Why an own Ray is over, because a process that it cannot be without is gone; empty where it is not.

    Its others would notice 15 s later: they look whether it is there, and it is, as a zombie, until this
    process asks after it.
    """
    gone = [name for name, process in session.own.items() if not guardian.runs(process)]
    return f"its {' and its '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone" if gone else ""


def ends_in_time(session: Session, *, is_silent: bool) -> bool:
    """Get off an own Ray, whatever is left of it; whether that ended in time."""
    if is_silent or ended(session):
        # Ray's way out asks what is left to end, and gets no answer without the rest.
        guardian.kill(set(session.own.values()))
    leaving = Beginning(lambda: leave(session))
    try:
        leaving.wait(_LEAVE_S)
    except TookTooLong:
        return False
    leaving.end()
    return True


def _own(program: bytes) -> guardian.Process | None:
    """The process of an own Ray that runs a program: all that it starts itself are children of this one."""
    for process in guardian.children()(os.getpid()):
        with suppress(OSError):  # ended since
            if program in Path(f"/proc/{process[0]}/cmdline").read_bytes():
                return process
    return None


def abandon(session: Session) -> None:
    """Get off a Ray that cannot be left: its head is gone, or it has not let this process in yet.

    Ray's ways out would wait for the head, and then end this process.
    """
    import ray

    atexit.unregister(ray.shutdown)
    leave_at_once_later()
    if session.guarding is not None:
        with undisturbed():
            session.guarding.abandon()
            shutil.rmtree(session.temp_dir, ignore_errors=True)


_DEVICE_RESOURCES = {"cuda": "GPU", "npu": "NPU"}


def rank_resources(config: RayConfig, device: str) -> dict[str, float]:
    """What each rank asks Ray for; Ray then shows it the one accelerator that it got."""
    resources = {"CPU": config.num_cpus_per_rank}
    if device in _DEVICE_RESOURCES:
        resources[_DEVICE_RESOURCES[device]] = 1.0
    return resources


def rank_environ(config: RayConfig, device: str, way: WayIn) -> dict[str, str]:
    """Environment variables of every rank's process; in time if set before torch is imported there."""
    # Ray would derive OMP_NUM_THREADS from an actor's CPUs. It is in no key, but speeds depend on it.
    environ = {"OMP_NUM_THREADS": str(config.omp_num_threads)}
    if device != "npu":
        # Where torch_npu is installed without CANN, loading it makes `import torch` fail.
        environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if way == "initialized":
        environ["PYTHONPATH"] = joining.python_path()
    return environ


def runtime_env(config: RayConfig, way: WayIn) -> dict[str, Any]:
    """What Ray must set up before a rank's process runs.

    A Ray that was up before this launch does not know its import paths. Elsewhere nothing is asked for but
    what the config wants, because Ray's agent for it costs a second; an own Ray inherits the paths.
    """
    if way != "initialized":
        return dict(config.runtime_env)
    given = config.runtime_env.get("env_vars")
    variables = given if isinstance(given, dict) else {}
    return {**config.runtime_env, "env_vars": {"PYTHONPATH": joining.python_path(), **variables}}


def _is_initialized() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _prepare_environ(way: WayIn) -> None:
    """Set what Ray reads when it is imported, and keeps for the life of the process."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if way == "local" and "RAY_AUTH_MODE" not in os.environ:
        # By default Ray writes a token into the home directory, which changes the user's next `ray start`.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        if "ray" in sys.modules:
            from ray._raylet import Config  # type: ignore[attr-defined]

            Config.initialize("")  # it has read the mode already: as its own default does


def _short_temp_dir() -> str:
    # Ray's socket paths below it must stay under 107 bytes, and TMPDIR may be long.
    base = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="warmrank-", dir=base if len(base) <= 16 else "/tmp")  # noqa: S108
