"""What benchmarks share: the command line, processes of their own, the machine, the file of figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

CODE = [str(Path(__file__).resolve().parent.parent / "src"), str(Path(__file__).resolve().parent.parent)]


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The command line, with ``--json FILE``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    return parser


def write(options: argparse.Namespace, figures: Mapping[str, Any]) -> None:
    """Write the figures where ``--json`` says."""
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


def child(
    script: str,
    *words: object,
    what: str = "",
    environ: Mapping[str, str] = MappingProxyType({}),
    cwd: Path | None = None,
    limit_s: float | None = None,
) -> Any:
    """What a fresh process of a script prints as JSON on its last line; it has to end well.

    A dict gets the process's ``wall_s`` unless it has one.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(CODE), **environ}
    command = [sys.executable, script, *map(str, words)]
    began = perf_counter()
    try:
        done = subprocess.run(
            command, env=environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        sys.exit(f"{what}: not through after {limit_s} s; is Ray able to start?")
    if done.returncode:
        sys.exit(f"{what}: exit status {done.returncode}\n{done.stderr}")
    figures = json.loads(done.stdout.splitlines()[-1])
    return {"wall_s": perf_counter() - began, **figures} if isinstance(figures, dict) else figures


def machine(*packages: str, **more: Any) -> dict[str, Any]:
    """Hardware, versions of packages, and what else figures depend on."""
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        **more,
    }


def _cpu_model() -> str:
    """The processor's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
