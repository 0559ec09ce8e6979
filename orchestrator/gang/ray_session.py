"""Gets this process onto a Ray cluster, and off it again.

Four ways in, by `way_in`: Ray is up in this process already; this process is the driver of a Ray job; an
address is given; else a Ray of its own on this machine. Only the last one is shut down and removed at the
end. The code of the ranks goes along: a job has its working directory, a local Ray gets this process's import
paths, and a cluster joined by address gets a copy of the current directory.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.models import RayConfig
from orchestrator.environ import inherited
from orchestrator.errors import CannotStart
from orchestrator.gang import guardian
from orchestrator.gang.guarding import Guarding
from orchestrator.leaving import leave_at_once_later
from orchestrator.signals import Terminated, kept, undisturbed
from worker.settings import settings

logger = logging.getLogger(__name__)

WayIn = Literal["initialized", "job", "address", "local"]

NAMESPACE = "warmrank"
# The driver and its ranks exchange small values only; artifacts travel through the store.
_OBJECT_STORE_BYTES = 128 * 2**20
_CONNECT_TIMEOUT_S = 5.0
_AUTOSCALER = b"/autoscaler/_private/monitor.py\0"
_JOB_MARK = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # set by Ray's job supervisor for the driver that it starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """How this process got onto Ray.

    Attributes:
        way_in: which of the four ways.
        temp_dir: private directory that an own Ray gets a directory in; empty otherwise.
        guarding: what ends an own Ray, and removes that directory, when this process is killed; else None.
    """

    way_in: WayIn
    temp_dir: str
    guarding: Guarding | None


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


def enter(config: RayConfig) -> Session:
    """Get onto Ray.

    Raises:
        CannotStart: no Ray answers at the address, or a local one does not start.
        Terminated: SIGTERM arrived meanwhile.
    """
    way = way_in_now(config)
    _prepare_environ(way)
    import ray

    temp_dir = _short_temp_dir() if way == "local" else ""
    guarding = Guarding({}, remove=[temp_dir], spare=[os.getpid()]) if temp_dir else None
    session = Session(way_in=way, temp_dir=temp_dir, guarding=guarding)
    try:
        # Ray puts a handler of its own there: better than none, and worse than the command line's.
        with kept(signal.SIGTERM) if callable(signal.getsignal(signal.SIGTERM)) else nullcontext():
            _init(way, config, session)
    except (ConnectionError, RuntimeError, ValueError, OSError, ray.exceptions.RayError) as error:
        leave(session)
        raise CannotStart(_refusal(way, config, error)) from error
    except BaseException as error:
        leave_at_once_later()  # Ray's native half was cut short, and may crash at this process's end
        leave(session)
        if isinstance(error, SystemExit) and error.code == signal.SIGTERM:
            raise Terminated from error  # by Ray's handler, which was there for a moment
        raise
    logger.info("On Ray, way in: %s", way)
    return session


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
        if session.way_in == "local":
            _end_autoscaler()
        ray.shutdown()
        if session.guarding is not None:
            session.guarding.abandon()  # agents may be there still, waiting for a head that was just lost
            shutil.rmtree(session.temp_dir, ignore_errors=True)  # that guardian may have been killed itself


def _end_autoscaler() -> None:
    """End what would scale an own Ray, if that could grow: it heeds no SIGTERM, and Ray gives it a second."""
    processes = guardian.table()
    for pid in guardian.children_of(processes).get(os.getpid(), ()):
        with suppress(OSError):  # ended since
            if _AUTOSCALER in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def abandon(session: Session) -> None:
    """Get off a Ray whose head is gone: its ways out would wait for the head, and then end this process."""
    import ray

    atexit.unregister(ray.shutdown)
    leave_at_once_later()
    if session.guarding is not None:
        with undisturbed():
            session.guarding.abandon()


_DEVICE_RESOURCES = {"cuda": "GPU", "npu": "NPU"}


def rank_resources(config: RayConfig, device: str) -> dict[str, float]:
    """What each rank asks Ray for; Ray then shows it the one accelerator that it got.

    An emulated NPU is none to Ray.
    """
    resources = {"CPU": config.num_cpus_per_rank}
    if device in _DEVICE_RESOURCES and not (device == "npu" and settings().emulate_npu):
        resources[_DEVICE_RESOURCES[device]] = 1.0
    return resources


def rank_environ(config: RayConfig, device: str, way: WayIn) -> dict[str, str]:
    """Environment variables of every rank's process; in time if set before torch is imported there."""
    # Ray would derive OMP_NUM_THREADS from an actor's CPUs. It is in no key, but speeds depend on it.
    environ = {"OMP_NUM_THREADS": str(config.omp_num_threads)}
    emulated = device == "npu" and settings().emulate_npu
    if device != "npu" or emulated:
        # Where torch_npu is installed without CANN, loading it makes `import torch` fail.
        environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    if emulated:
        environ["WARMRANK_EMULATE_NPU"] = "1"
    if way == "initialized":
        environ["PYTHONPATH"] = _python_path()
    return environ


def runtime_env(way: WayIn) -> dict[str, Any]:
    """What Ray must set up before a rank's process can import this package.

    A Ray that was up before this launch does not know its import paths. Elsewhere nothing is asked for,
    because Ray's agent for it costs a second; an own Ray inherits the paths.
    """
    return {"env_vars": {"PYTHONPATH": _python_path()}} if way == "initialized" else {}


def import_paths(paths: Iterable[str], cwd: Path, prefixes: Iterable[str]) -> tuple[str, ...]:
    """The directories that ranks must look for modules in and would not by themselves; cwd first."""
    package_root = Path(__file__).resolve().parent.parent.parent
    wanted = [cwd, *(cwd / path for path in paths), package_root]
    inside = [Path(prefix) for prefix in prefixes]
    kept = [
        path for path in wanted if path.is_dir() and not any(path.is_relative_to(prefix) for prefix in inside)
    ]
    return tuple(dict.fromkeys(str(path) for path in kept))


def _python_path() -> str:
    return os.pathsep.join(import_paths(sys.path, Path.cwd(), (sys.prefix, sys.base_prefix)))


def _init(way: WayIn, config: RayConfig, session: Session) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    if way == "job":
        # The job has its own address and working directory; more arguments would break one of them.
        ray.init(**quiet)
    elif way == "address":
        address = config.address or os.environ["RAY_ADDRESS"]
        _check_listens(address)
        ray.init(address, namespace=NAMESPACE, runtime_env=_shipped(config), **quiet)
    elif way == "local":
        with inherited("PYTHONPATH", _python_path()):
            ray.init(
                "local",
                namespace=NAMESPACE,
                num_cpus=config.num_cpus,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                # Ray makes its directory open to all; the one around it stays private.
                _temp_dir=f"{session.temp_dir}/r",
                **quiet,
            )


def _check_listens(address: str) -> None:
    """Raise ``OSError`` where nothing listens; Ray itself would try for more than a minute.

    Ray's own words, such as ``auto``, and addresses with a scheme are left to Ray.
    """
    host, _, port = address.rpartition(":")
    if host and "/" not in address and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT_S).close()


def _shipped(config: RayConfig) -> dict[str, Any] | None:
    from orchestrator.gang import upload

    if not config.ship_code:
        return None
    for note in upload.upload_notes(Path.cwd()):
        logger.warning("%s; or set ray.ship_code to false where the nodes have the code", note)
    return upload.runtime_env(Path.cwd(), upload.package_root())


def _is_initialized() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _prepare_environ(way: WayIn) -> None:
    """Set what Ray reads when it is imported, and keeps for the life of the process."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if way == "local" and "ray" not in sys.modules and "RAY_AUTH_MODE" not in os.environ:
        # By default Ray writes a token into the home directory, which changes the user's next `ray start`.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def _short_temp_dir() -> str:
    # Ray's socket paths below it must stay under 107 bytes, and TMPDIR may be long.
    base = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="warmrank-", dir=base if len(base) <= 16 else "/tmp")  # noqa: S108


def _refusal(way: WayIn, config: RayConfig, error: Exception) -> str:
    cause = str(error).strip().partition("\n")[0] or type(error).__name__
    if way == "local":
        return f"a local Ray did not start: {cause}. Free memory and disk, or name a cluster with ray.address"
    if way == "job":
        return f"the cluster of this Ray job cannot be joined: {cause}"
    address = config.address or os.environ["RAY_ADDRESS"]
    source = "ray.address" if config.address else "RAY_ADDRESS"
    return (
        f"no Ray cluster can be joined at {address!r} ({source}): {cause}. Expected the address of a head "
        "node, such as 10.0.0.1:6379 (http:// is the job server, for `warmrank submit`); "
        f"unset {source} to start a local Ray"
    )
