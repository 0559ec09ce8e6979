"""Starts the children of `tests.support.store_child`, and lets several go at the same moment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.support.stored import REPOSITORY


def run_child(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(arguments), cwd=REPOSITORY, capture_output=True, text=True, check=False)


def race(*calls: Sequence[str]) -> list[dict[str, Any]]:
    """Run one child for each call; all are ready before any acts."""
    children = [
        subprocess.Popen(
            _command(call), cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for call in calls
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    results = []
    for child in children:
        output, _ = child.communicate()
        assert child.returncode == 0
        results.append(json.loads(output))
    return results


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "tests.support.store_child", *arguments]
