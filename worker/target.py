"""What an offline build makes artifacts for: machines that are not here.

Nothing is set in any other process, so there everything is as the machine that it runs on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from warmrank.worker.values import Value


class Target(Value):
    """The machines that artifacts are built for.

    Attributes:
        device_kind: ``cpu``, ``cuda`` or ``npu``.
        environment: named components of their environment fingerprint.
    """

    device_kind: str
    environment: Mapping[str, str]


_target: ContextVar[Target | None] = ContextVar("target", default=None)


def target() -> Target | None:
    """The machines that this process builds for; None where it is for itself."""
    return _target.get()


@contextmanager
def building_for(machines: Target) -> Iterator[None]:
    """Build for other machines within."""
    token = _target.set(machines)
    try:
        yield
    finally:
        _target.reset(token)
