"""The driver's side of warmrank: cluster config, plan, launchers, report and command line.

Importing this package, or its command line, imports neither torch nor ray.
"""

from __future__ import annotations

from pathlib import Path

import warmrank


def import_root() -> Path:
    """The directory on the import path that holds `warmrank`."""
    return Path(str(warmrank.__file__)).resolve().parent.parent


SHADOW_REMEDY = "rename it, or start the command in another directory"


def shadow_here() -> Path | None:
    """A module of the current directory that processes of Ray would import in place of `warmrank`."""
    namesake = Path.cwd() / "warmrank.py"
    return namesake if namesake.is_file() else None
