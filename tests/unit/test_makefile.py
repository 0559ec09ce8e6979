"""What `make` shows while it installs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(60)
def test_phase_of_an_install_is_shown_when_it_begins() -> None:
    command = ["make", "-s", "--eval", "show: ; @$(PIP_PROGRESS)", "show"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as shown:
        assert shown.stdin is not None
        assert shown.stdout is not None
        for said, expected in [
            (
                "  Downloading https://host/torch-2.13.0-cp311.whl (915.2 MB)",
                "  torch-2.13.0-cp311.whl (915.2 MB)",
            ),
            ("Using cached ray.whl (72.1 MB)", "  ray.whl (72.1 MB)"),
            (
                "Using cached a.whl (1.1 MB)\nInstalling collected packages: a",
                "  unpacking all packages",
            ),
            ("Successfully installed a b", "  installed"),
        ]:
            shown.stdin.write(f"{said}\n")  # it stays open: nothing more may come for minutes
            assert shown.stdout.readline().startswith(expected)
