"""What importing the worker brings into a process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRACERS = {"torch._dynamo", "torch._inductor", "sympy", "ray"}


def imported_by(code: str) -> set[str]:
    """Modules in a fresh process after it ran some code."""
    code += "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


FOR_DRIVERS = (
    "worker",
    "warmrank.worker.results",
    "warmrank.worker.errors",
    "warmrank.worker.rank.rank_worker",
    "warmrank.worker.rank.script",
    "warmrank.worker.keys.environment",
)


def test_import_of_what_a_driver_needs_does_not_import_torch() -> None:
    assert "torch" not in imported_by(f"import {', '.join(FOR_DRIVERS)}")


def test_surface_and_a_cached_function_do_not_import_a_tracer() -> None:
    found = imported_by(
        "import warmrank\nfor name in dir(warmrank): getattr(warmrank, name)\n"
        "from tests.support.small_models import Plain\n"
        "from warmrank.inference import cache_compile\n"
        "cache_compile(Plain().affine).request()\n"
    )
    assert {"torch", "warmrank.inference"} <= found
    assert not TRACERS & found
    assert not any(name.startswith("warmrank.worker.compile.") for name in found)
