"""Joins a Ray cluster, or starts a Ray of its own, by `ray.init`; says in words why that failed.

It may hang, so it runs in a thread that may be given up (`orchestrator.gang.beginning`).
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from warmrank.orchestrator import import_root
from warmrank.orchestrator.config.models import RayConfig
from warmrank.orchestrator.environ import inherited
from warmrank.orchestrator.errors import first_line

logger = logging.getLogger(__name__)

WayIn = Literal["initialized", "job", "address", "local"]

_NAMESPACE = "warmrank"
# The driver and its ranks exchange small values only; artifacts travel through the store.
_OBJECT_STORE_BYTES = 128 * 2**20
_CONNECT_TIMEOUT_S = 5.0
_NO_CLIENT = (
    "ray:// is Ray Client, which is not supported, because a driver must reach ranks and nodes itself. Run "
    "it on a node of the cluster, or send it there with `warmrank submit`"
)


def import_paths(paths: Iterable[str], cwd: Path, prefixes: Iterable[str]) -> tuple[str, ...]:
    """The directories that ranks must look for modules in and would not by themselves; cwd first."""
    wanted = [cwd, *(cwd / path for path in paths), import_root()]
    inside = [Path(prefix) for prefix in prefixes]
    kept = [
        path for path in wanted if path.is_dir() and not any(path.is_relative_to(prefix) for prefix in inside)
    ]
    return tuple(dict.fromkeys(str(path) for path in kept))


def python_path() -> str:
    """This process's import paths, for processes that do not inherit them."""
    return os.pathsep.join(import_paths(sys.path, Path.cwd(), (sys.prefix, sys.base_prefix)))


def join(way: WayIn, config: RayConfig, temp_dir: str) -> None:
    """Get onto Ray; may hang.

    Args:
        way: which of the ways in.
        config: where it is.
        temp_dir: private directory that an own Ray gets a directory in.
    """
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    with _quiet_loggers():
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
            with inherited("PYTHONPATH", python_path()):
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


_NOISE = {
    "ray._private.worker": "SIGTERM handler is not set",  # in place of ours, which it cannot be in a thread
    "ray._private.authentication.authentication_token_setup": "Token authentication is enabled",
}
"""What Ray warns of and nobody need act on: beginning of the line, by logger."""


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Keep Ray from writing the lines of `_NOISE`."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith(_NOISE[record.name])

    loggers = [logging.getLogger(name) for name in _NOISE]
    for each in loggers:
        each.addFilter(is_wanted)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(is_wanted)


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
    for note in upload.upload_notes(Path.cwd()):
        logger.warning("%s; or set ray.ship_code to false where the nodes have the code", note)
    return upload.runtime_env(Path.cwd())


def too_late(way: WayIn, config: RayConfig, timeout_s: float) -> str:
    """What to say when `join` does not end in time."""
    what = {
        "local": "a local Ray was not up",
        "job": "the cluster of this Ray job had not let this process in",
        "address": f"the Ray cluster at {_address(config)} had not let this process in",
    }[way]
    return (
        f"{what} after {timeout_s:.0f} s, and was given up. Look whether the machine is overloaded or out of "
        "memory, or raise timeouts.start_s"
    )


_VERSIONS = re.compile(r"(?s)Version mismatch.*?Ray: (\S+)\s+Python: (\S+).*?Ray: (\S+)\s+Python: (\S+)")


def versions_in(text: str) -> str:
    """What Ray says of versions that differ, in a line; empty where it says nothing of them."""
    if (found := _VERSIONS.search(text)) is None:
        return ""
    theirs, their_python, ours, our_python = found.groups()
    return (
        f"it runs Ray {theirs} on Python {their_python}, and this process Ray {ours} on Python {our_python}; "
        "install the same versions of both here and on every node"
    )


_REFUSED = re.compile(r"AuthenticationError: (?:RPC error: )?([^.\n]+)")


def auth_refusal(error: Exception) -> str:
    """What Ray says of a token that it refuses, which may stand in the text of a cause; empty for nothing."""
    found = _REFUSED.search("".join(traceback.format_exception(error)))
    return found[1] if found else ""


def is_unreachable(error: Exception) -> bool:
    """Whether `join` failed because nothing answers where the cluster's head should, which may be up soon."""
    if auth_refusal(error):
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    return isinstance(error, OSError) and error.errno in {errno.EHOSTUNREACH, errno.ENETUNREACH}


def refusal(way: WayIn, config: RayConfig, error: Exception) -> str:
    """What to say when `join` failed."""
    cause = (versions_in(str(error)) or first_line(error)).rstrip(".")
    if way == "local":
        return (
            f"a local Ray did not start: {cause}. Look whether the machine is overloaded or out of memory or "
            "disk; raise timeouts.start_s, or name a cluster with ray.address"
        )
    if way == "job":
        return f"the cluster of this Ray job cannot be joined: {cause}"
    address = _address(config)
    source = "ray.address" if config.address else "RAY_ADDRESS"
    if refused := auth_refusal(error):
        return (
            f"the Ray cluster at {address!r} ({source}) refuses this process: {refused}. Set "
            "RAY_AUTH_MODE=token, and the cluster's token as RAY_AUTH_TOKEN, or its file as "
            "RAY_AUTH_TOKEN_PATH (else ~/.ray/auth_token)"
        )
    return (
        f"no Ray cluster can be joined at {address!r} ({source}): {cause}. Expected the address of a head "
        "node, such as 10.0.0.1:6379 (http:// is the job server, for `warmrank submit`); "
        f"unset {source} to start a local Ray"
    )
