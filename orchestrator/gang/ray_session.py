"""Gets this process onto a Ray cluster, and off it again.

Four ways in, by `way_in`: Ray is up in this process already; this process is the driver of a Ray job; an
address is given; else a Ray of its own on this machine. Only the last one is shut down and removed at the
end. The code of the ranks goes along: a job has its working directory, a local Ray gets this process's import
paths, and a cluster joined by address gets a copy of the current directory.

`ray.init` knows no time-out, and its native half can wait for minutes without heeding a signal, so it runs in
a thread, a `Beginning`. One that is given up goes on there: this process is done with Ray.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import re
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from warmrank.orchestrator import SHADOW_REMEDY, import_root, shadow_here
from warmrank.orchestrator.config.models import DEVICE_RESOURCES, HASH_SEED, Config, RayConfig
from warmrank.orchestrator.errors import BadArgument, Budget, CannotStart
from warmrank.orchestrator.gang.node_group import NodeGroup
from warmrank.orchestrator.reaper import Process, children, kill, runs
from warmrank.orchestrator.reaper_client import ReapedRanks
from warmrank.orchestrator.signals import (
    held_back,
    leave_at_once_later,
    python_s_sigterm,
    say_stopping,
    undisturbed,
)

logger = logging.getLogger(__name__)

WayIn = Literal["initialized", "job", "address", "local"]

_TICK_S = 0.1
_NAMESPACE = "warmrank"
# The driver and its ranks exchange small values only; artifacts travel through the store.
_OBJECT_STORE_BYTES = 128 * 2**20
_CONNECT_TIMEOUT_S = 5.0
_LEAVE_S = 40.0  # seconds to get off an own Ray; Ray itself ends a process 60 s after its head is gone
_SLOW_S = 15.0  # an earlier failure is no time-out of Ray's, and would come again
_AUTOSCALER = b"/autoscaler/_private/monitor.py\0"
_OWN_PROCESSES = {"raylet": b"/raylet/raylet\0", "GCS": b"/gcs/gcs_server\0"}
_JOB_MARK = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray's job supervisor for the driver that it starts
_NO_CLIENT = (
    "ray:// is Ray Client, which is not supported, because a driver must reach ranks and nodes itself. Run "
    "it on a node of the cluster, or send it there with `warmrank submit`"
)


_NOISY = ("ray._private.worker", "ray._private.authentication.authentication_token_setup")
"""Loggers of Ray that warn while it starts of what nobody need act on."""


class TookTooLong(Exception):
    """An operation has neither ended nor failed in time, and goes on."""


class Beginning:
    """A call in a thread, which lives on until `end`: processes that it started may die with their thread."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._future: Future[object] = Future()
        self._is_over = threading.Event()
        threading.Thread(target=self._run, args=(call,), name="beginning", daemon=True).start()

    def has_ended(self, timeout_s: float) -> bool:
        """True once the call has, false where it has not in time; raises what it raised.

        Signals are handled meanwhile, whatever native code holds it up.
        """
        deadline_s = time.monotonic() + timeout_s
        # A signal that arrives just before a wait does not cut it short: it is heeded between two.
        while not wait([self._future], _TICK_S).done:
            if time.monotonic() >= deadline_s:
                return False
        self._future.result()
        return True

    def end(self) -> None:
        """Let the thread end."""
        self._is_over.set()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self._future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._future.set_exception(error)
        else:
            self._is_over.wait()


def has_ended(call: Callable[[], object], may_go_on: Callable[[], bool]) -> bool:
    """True if a call, in a thread, ended as long as it might go on; raises what it raised."""
    beginning = Beginning(call)
    while not beginning.has_ended(_TICK_S):
        if not may_go_on():
            return False
    beginning.end()
    return True


def import_paths(paths: Iterable[str], cwd: Path, prefixes: Iterable[str]) -> tuple[str, ...]:
    """The directories that ranks must look for modules in and would not by themselves; cwd first."""
    wanted = [cwd, *(cwd / path for path in paths), import_root()]
    inside = [Path(prefix) for prefix in prefixes]
    kept = [path for path in wanted if path.is_dir() and not any(map(path.is_relative_to, inside))]
    return tuple(dict.fromkeys(str(path) for path in kept))


def _python_path() -> str:
    """This process's import paths, for processes that do not inherit them."""
    return os.pathsep.join(import_paths(sys.path, Path.cwd(), (sys.prefix, sys.base_prefix)))


@contextmanager
def inherited(name: str, value: str) -> Iterator[None]:
    """Set an environment variable for processes that are started inside."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def join(way: WayIn, config: RayConfig, temp_dir: str) -> None:
    """Get onto Ray; may hang. An own Ray gets a directory in ``temp_dir``, a private one."""
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    with ExitStack() as stack:
        for name in _NOISY:
            logger_of_ray = logging.getLogger(name)
            stack.callback(logger_of_ray.setLevel, logger_of_ray.level)
            logger_of_ray.setLevel(logging.ERROR)
        if way == "job":
            # The job has its own address and working directory; more arguments would break one of them.
            ray.init(**quiet)
        elif way == "address":
            address = _address(config)
            if address.startswith("ray://"):
                raise ValueError(_NO_CLIENT)
            _check_listens(address)
            ray.init(address, namespace=_NAMESPACE, runtime_env=_shipped(config), **quiet)
        elif way == "local":
            with inherited("PYTHONPATH", _python_path()), inherited(*HASH_SEED):
                ray.init(
                    "local",
                    namespace=_NAMESPACE,
                    num_cpus=config.num_cpus,
                    include_dashboard=False,
                    object_store_memory=_OBJECT_STORE_BYTES,
                    # Ray makes its directory open to all; the one around it stays private.
                    _temp_dir=f"{temp_dir}/r",
                    **quiet,
                )


def _address(config: RayConfig) -> str:
    return config.address or os.environ.get("RAY_ADDRESS", "")


def _check_listens(address: str) -> None:
    """Raise ``OSError`` where nothing listens; Ray itself would try for more than a minute.

    Ray's own words, such as ``auto``, and addresses with a scheme are left to Ray.
    """
    host, _, port = address.rpartition(":")
    if host and "/" not in address and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()


def _shipped(config: RayConfig) -> dict[str, Any] | None:
    from warmrank.orchestrator.gang import upload

    if not config.ship_code:
        return None
    upload.say_kept(Path.cwd(), logger.warning)
    return upload.runtime_env(Path.cwd())


_REFUSED = re.compile(r"AuthenticationError: (?:RPC error: )?([^.\n]+)")


def _auth_refusal(error: Exception) -> str:
    """Ray's words on a token that it refuses, in a `ConnectionError` or its cause; empty for none."""
    found = _REFUSED.search("".join(traceback.format_exception(error)))
    return found[1] if found else ""


def is_unreachable(error: Exception) -> bool:
    """True if nothing answers where the cluster's head should, which may be up soon."""
    is_away = isinstance(error, OSError) and error.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}
    return (is_away or isinstance(error, ConnectionError | TimeoutError)) and not _auth_refusal(error)


def _name(way: WayIn, config: RayConfig) -> str:
    source = "ray.address" if config.address else "RAY_ADDRESS"
    return {
        "local": "a local Ray",
        "job": "the cluster of this Ray job",
        "address": f"the Ray cluster at {_address(config)!r} ({source})",
    }[way]


_BUSY = (
    "Look whether the machine is overloaded or out of memory or disk; raise timeouts.start_s, or name "
    "another cluster with ray.address"
)
_NOT_JOINED = (
    "Expected the address of a head node, such as 10.0.0.1:6379 (http:// is the job server, for `warmrank "
    "submit`), with the same versions of Ray and Python as here. Without ray.address and RAY_ADDRESS a local "
    "Ray is started"
)
_AUTH_REMEDY = (
    "Set RAY_AUTH_MODE=token, and the cluster's token as RAY_AUTH_TOKEN, or its file as RAY_AUTH_TOKEN_PATH "
    "(else ~/.ray/auth_token)"
)


def _refusal(way: WayIn, config: RayConfig, error: Exception) -> str:
    """Error text for a failed `join`."""
    if refused := _auth_refusal(error):
        return f"{_name(way, config)} refuses this process: {refused}. {_AUTH_REMEDY}"
    cause = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return f"{_name(way, config)} cannot be joined: {cause}. {_BUSY if way == 'local' else _NOT_JOINED}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """This process's connection to Ray."""

    way_in: WayIn
    temp_dir: str = ""  # of an own Ray: the private directory around its own
    reaper: ReapedRanks | None = None  # of an own Ray: ends it when this process is killed
    beginning: Beginning | None = None
    own: Mapping[str, Process] = field(default_factory=dict)  # without which an own Ray cannot be


def way_in(config: RayConfig, environ: Mapping[str, str], *, initialized: bool) -> WayIn:
    """The way for this process to get onto Ray."""
    if initialized:
        return "initialized"
    if _JOB_MARK in environ:
        return "job"
    if config.address is not None or environ.get("RAY_ADDRESS"):
        return "address"
    return "local"


def is_this_machine(config: Config) -> bool:
    """True if the config names no cluster, and so launches on this machine."""
    return way_in(config.ray, os.environ, initialized=False) == "local"


def way_in_now(config: RayConfig) -> WayIn:
    """The way in which `enter` would get this process onto Ray."""
    return way_in(config, os.environ, initialized=_is_initialized())


def _is_initialized() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def refuse_shadow() -> None:
    """Raise `BadArgument` if a module of the current directory hides a library from processes of Ray."""
    if shadow := shadow_here():
        raise BadArgument(f"processes of Ray would import {shadow}; {SHADOW_REMEDY}")


def enter(config: RayConfig, *, timeout_s: float) -> Session:
    """Get onto Ray.

    Who gives up, by the time-out or by a signal, is to end this process soon: Ray's native half may end it by
    itself, a minute after its head is gone.

    Raises:
        CannotStart: no Ray answers at the address, or a local one does not start, or not in time.
        BadArgument: as of `refuse_shadow`.
    """
    refuse_shadow()
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
            if error.budget is None or not _SLOW_S <= took_s <= deadline - time.monotonic():
                raise
            logger.warning("%s; it is tried again", str(error).partition(". ")[0])


def _entered(way: WayIn, config: RayConfig, *, timeout_s: float) -> Session:
    """One attempt of `enter`, which leaves nothing behind where it fails."""
    session = Session(way_in=way)
    try:
        with python_s_sigterm():
            with held_back():  # until it is known what there is to clean up
                temp_dir = _short_temp_dir() if way == "local" else ""
                own_reaper = ReapedRanks({}, remove=[temp_dir], spare=[os.getpid()]) if temp_dir else None
                beginning = Beginning(lambda: join(way, config, temp_dir))
                session = Session(way_in=way, temp_dir=temp_dir, reaper=own_reaper, beginning=beginning)
            is_up = beginning.has_ended(timeout_s)
    except Exception as error:  # Ray raises `Exception` itself, too
        leave(session)
        budget: Budget | None = "start" if way == "local" else None
        is_lost = is_unreachable(error)
        raise CannotStart(_refusal(way, config, error), budget=budget, is_lost=is_lost) from error
    except BaseException as error:
        say_stopping(error)
        abandon(session)
        raise
    if not is_up:
        abandon(session)
        text = f"{_name(way, config)} was not up after {timeout_s:.0f} s, and was given up. {_BUSY}"
        raise CannotStart(text)
    logger.info("On Ray, way in: %s", way)
    if way != "local":
        return session
    found = {name: process for name, program in _OWN_PROCESSES.items() if (process := _own(program))}
    return replace(session, own=found)


def head_place() -> tuple[str, int]:
    """Host and port of the cluster's head, once this process is on it."""
    import ray

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return host.strip("[]"), int(port)


def leave(session: Session) -> None:
    """Get off Ray; an own Ray ends, with all its processes and files."""
    if session.way_in == "initialized":
        return
    import ray

    with undisturbed():
        # It would scale an own Ray, if that could grow; it heeds no SIGTERM, and Ray gives it a second.
        if session.way_in == "local" and (autoscaler := _own(_AUTOSCALER)):
            kill({autoscaler})
        ray.shutdown()
        _clean_up(session)
        if session.beginning is not None:
            session.beginning.end()


def abandon(session: Session) -> None:
    """Get off a Ray that cannot be left: its head is gone, or it has not let this process in yet.

    Ray's ways out would wait for the head, and then end this process.
    """
    import ray

    atexit.unregister(ray.shutdown)
    leave_at_once_later()
    with undisturbed():
        _clean_up(session)


def _clean_up(session: Session) -> None:
    if session.reaper is not None:
        session.reaper.abandon()  # agents may be there still, waiting for a head that was just lost
        shutil.rmtree(session.temp_dir, ignore_errors=True)  # that reaper may have been killed itself


def ended(session: Session) -> str:
    """Error text if a process is gone without which an own Ray cannot be, else ``""``.

    Its others would notice 15 s later: they look whether it is there, and it is, as a zombie, until this
    process asks after it.
    """
    gone = [name for name, process in session.own.items() if not runs(process)]
    return f"its {' and its '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone" if gone else ""


def ends_in_time(session: Session, *, is_silent: bool) -> bool:
    """Get off an own Ray, whatever is left of it; whether that ended in time."""
    if is_silent or ended(session):
        # Ray's way out asks what is left to end, and gets no answer without the rest.
        kill(set(session.own.values()))
    deadline_s = time.monotonic() + _LEAVE_S
    return has_ended(lambda: leave(session), lambda: time.monotonic() < deadline_s)


def _own(program: bytes) -> Process | None:
    """The process of an own Ray that runs a program: all that it starts itself are children of this one."""
    for process in children()(os.getpid()):
        with suppress(OSError):  # ended since
            if program in Path(f"/proc/{process[0]}/cmdline").read_bytes():
                return process
    return None


@contextmanager
def group_on(config: Config, actor: type, *, device: str = "", num_calls: int = 1) -> Iterator[NodeGroup]:
    """Join a config's cluster, for actors on its nodes that have the environment of its ranks.

    Raises:
        CannotStart, BadArgument: as of `enter`.
    """
    session = enter(config.ray, timeout_s=config.timeouts.start_s)
    try:
        environ = rank_environ(config.ray, device or config.device, session.way_in)
        yield NodeGroup(actor, {"env_vars": environ}, num_calls=num_calls)
    finally:
        leave(session)


def rank_resources(config: RayConfig, device: str) -> dict[str, float]:
    """Resources that each rank asks Ray for; Ray then shows it the one accelerator that it got."""
    resources = {"CPU": config.num_cpus_per_rank}
    if device in DEVICE_RESOURCES:
        resources[DEVICE_RESOURCES[device]] = 1.0
    return resources


def rank_environ(config: RayConfig, device: str, way: WayIn) -> dict[str, str]:
    """Environment variables of every rank's process; in time if set before torch is imported there."""
    # Ray would derive OMP_NUM_THREADS from an actor's CPUs. It is in no key, but speeds depend on it.
    environ = {"OMP_NUM_THREADS": str(config.omp_num_threads)}
    if device != "npu":
        # Where torch_npu is installed without CANN, loading it makes `import torch` fail.
        environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if way == "initialized":
        environ["PYTHONPATH"] = _python_path()
    return environ


def runtime_env(config: RayConfig, way: WayIn) -> dict[str, Any]:
    """Runtime environment that Ray must set up before a rank's process runs.

    A Ray that was up before this launch does not know what ranks need from their start. Of an own Ray they
    inherit that, and nothing is asked for but what the config wants: Ray's agent for it costs a second.
    """
    if way == "local":
        return dict(config.runtime_env)
    ours = dict([HASH_SEED, *([("PYTHONPATH", _python_path())] if way == "initialized" else [])])
    given = config.runtime_env.get("env_vars")
    return {**config.runtime_env, "env_vars": {**ours, **(given if isinstance(given, dict) else {})}}


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
