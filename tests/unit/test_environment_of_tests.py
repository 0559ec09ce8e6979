"""That tests run alike whatever the environment of who runs them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.stored import REPOSITORY

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
    test = "tests/unit/test_object_store.py::test_stat_of_many"
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
