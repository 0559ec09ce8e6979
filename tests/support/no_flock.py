"""A plugin, ``pytest -p tests.support.no_flock``: flock says yes to everybody, as on some shared mounts."""

import fcntl


def _yes(descriptor: object, operation: int) -> None:
    return None


fcntl.flock = _yes
