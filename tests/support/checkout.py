"""The checkout that is tested, and Python processes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
"""Of every process that a test starts: the checkout, not an installed warmrank."""


def printed_by(module: str, *arguments: str, **environment: str) -> str:
    """What a module of the tests prints that runs in a new process; it has to end well."""
    return python("-m", module, *arguments, cwd=ROOT, given="", **environment)


def python(*arguments: str, cwd: Path = ROOT, given: str = "", **environment: str) -> str:
    """What a new Python process prints that is given this text; it has to end well."""
    done = ended(*arguments, cwd=cwd, given=given, more=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def ended(
    *arguments: str,
    cwd: Path = ROOT,
    given: str = "",
    environ: Mapping[str, str] = os.environ,
    more: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float = 400,
) -> subprocess.CompletedProcess[str]:
    """A new Python process that has ended, well or not; it has ``environ``, and ``more`` on top."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1", **more},
        cwd=cwd,
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )


def selected(request: pytest.FixtureRequest, *arguments: str) -> set[Any]:
    """The values that the parametrized arguments have in the tests of this module that are run."""
    items: list[Any] = [item for item in request.session.items if item.path == request.path]
    params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return {param[argument] for param in params for argument in arguments if argument in param}
