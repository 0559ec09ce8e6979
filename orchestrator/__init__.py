"""The driver's side of warmrank: cluster config, plan, launchers, report and command line.

Importing this package, or its command line, imports neither torch nor ray.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

import warmrank


def import_root() -> Path:
    """The directory on the import path that holds `warmrank`."""
    return Path(str(warmrank.__file__)).resolve().parent.parent


_OF_PYTHON = sys.stdlib_module_names - {*sys.builtin_module_names}
SHADOW_REMEDY = "rename it, or start the command in another directory"


def shadow_here() -> str:
    """Name a module of the current directory that hides a library from ranks; empty for none."""
    here = Path.cwd()
    if here == import_root():
        return ""
    found = {path.stem: path for path in here.glob("*.py")}
    found |= {path.parent.name: path.parent for path in here.glob("*/__init__.py")}
    elsewhere = [path for path in sys.path if path and Path(path) != here]
    # First what is quick: the names of all libraries take a tenth of a second.
    hiding = [name for name in sorted(found) if name in _OF_PYTHON or PathFinder.find_spec(name, elsewhere)]
    name = next((name for name in hiding if name in _OF_PYTHON or name in _libraries()), "")
    return f"{found[name]} in place of the library {name}" if name else ""


@cache
def _libraries() -> set[str]:
    """Modules of this package, Ray and torch, and of what these require, if installed."""
    from importlib import metadata

    needed = {"warmrank", "ray", "torch"}
    for name in tuple(needed):
        with suppress(metadata.PackageNotFoundError):
            needed |= {_canonical(each) for each in metadata.requires(name) or ()}
    installed = metadata.packages_distributions().items()
    modules = {module for module, owners in installed if needed & {_canonical(owner) for owner in owners}}
    return {"warmrank", *modules}


def _canonical(requirement: str) -> str:
    """The name that a requirement begins with, as the name of a distribution is compared."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()
