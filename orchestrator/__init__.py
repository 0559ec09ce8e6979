"""The driver's side of warmrank: cluster config, plan, launchers, report and command line.

Importing this package, or its command line, imports neither torch nor ray.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGES = ("cache_store", "worker", "orchestrator")
"""The packages that make up warmrank; ranks import all of them."""


def is_own(origin: Path) -> bool:
    """Whether a file is a package of ours, wherever it lies: a job has each in a directory of its own."""
    try:
        return origin.name == "__init__.py" and b"warmrank" in origin.read_bytes().partition(b"\n")[0]
    except OSError:
        return True  # the import tells of it


def _refuse_strangers() -> None:
    """Name a module that stands before one of ours, rather than fail in the middle of its import."""
    for name in PACKAGES[:2]:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and not is_own(Path(spec.origin)):
            msg = (
                f"{spec.origin} is imported in place of warmrank's own package {name}: rename it, or take "
                "its directory off PYTHONPATH"
            )
            raise ImportError(msg)


_refuse_strangers()
