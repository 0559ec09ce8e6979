"""The tools of development: make, and the environment of tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stored import REPOSITORY

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
            ("Using cached a.whl (1.1 MB)\nInstalling collected packages: a", "  unpacking all packages"),
            ("Successfully installed a b", "  installed"),
        ]:
            shown.stdin.write(f"{said}\n")  # it stays open: nothing more may come for minutes
            assert shown.stdout.readline().startswith(expected)


FOREIGN = {
    "AWS_PROFILE": "nope",
    "AWS_SKIP_SIGNATURE": "true",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "HTTP_PROXY": "http://127.0.0.1:1",
    "http_proxy": "http://127.0.0.1:1",
    "ALL_PROXY": "http://127.0.0.1:1",
    "XDG_CONFIG_HOME": "/nonexistent",
}


@pytest.mark.slow
def test_tests_of_object_stores_ignore_the_environment_of_who_runs_them():
    pytest.importorskip("obstore", reason="object stores are an extra: pip install 'warmrank[s3]'")
    pytest.importorskip("moto", reason="the local S3 server comes with pip install 'warmrank[test]'")
    test = "tests/unit/test_object_store.py::test_new_store_has_a_format_and_a_probe"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test],
        cwd=REPOSITORY,
        env={
            **{name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")},
            **FOREIGN,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
