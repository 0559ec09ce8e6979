"""Launches whose disks are full: the cache directory's ends them with its path, the store's does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.launching import data_of
from tests.support.processes import LaunchProcess
from tests.support.stored import open_store
from warmrank.orchestrator.cli.console import ExitCode
from warmrank.orchestrator.look.verify import verify

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]

MOUNTS = ("unshare", "--mount")
# A disk of so many bytes, in a mount namespace that ends with the launch; what lay on it is copied back.
MOUNTED = """
set -e
disk=$1 size=$2; shift 2
mkdir -p "$disk"
mount -t tmpfs -o "size=$size,mode=700" tmpfs "$disk"
set +e
"$@"
code=$?
mkdir "$disk-copy" && cp -a "$disk/." "$disk-copy"
exit $code
"""

Launch = Callable[..., LaunchProcess]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[[str, str], LaunchProcess]]:
    """Launches with a small disk at a place below the test's directory."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    tried = subprocess.run((*MOUNTS, "true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespaces here: {tried.stderr.strip()}")
    temp_dir = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # a socket's path may have 107 bytes
    started: list[LaunchProcess] = []

    def begin(place: str, size: str) -> LaunchProcess:
        words = (*MOUNTS, "sh", "-c", MOUNTED, "sh", str(tmp_path / place), size)
        started.append(LaunchProcess(tmp_path, data_of(tmp_path), temp_dir=temp_dir, words=words))
        return started[-1]

    yield begin
    for each in started:
        each.end()
    shutil.rmtree(temp_dir)


def test_full_disk_under_the_cache_directory_is_named_and_nothing_half_written_stays(
    launch: Callable[[str, str], LaunchProcess], tmp_path: Path
) -> None:
    found = launch("cache", "16k")
    code = found.wait()
    assert code == ExitCode.FAULT, found.said()
    report = found.report
    assert report is not None
    assert report.failure is not None
    assert "No space left on device" in report.failure.message
    assert str(tmp_path / "cache") in report.failure.message
    assert verify(None, tmp_path / "cache-copy", signatures_checked=False).faults == ()
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file() and "launch" in path.parts]
    assert found.left_over() == []


def test_full_disk_under_the_store_leaves_the_launch_warm_and_not_committed(
    launch: Callable[[str, str], LaunchProcess], tmp_path: Path
) -> None:
    found = launch("store", "16k")
    assert found.wait() == ExitCode.OK, found.said()
    report = found.report
    assert report is not None
    assert (report.outcome, report.record) == ("warm", "")
    assert any("No space left on device" in problem for problem in report.problems), report.problems
    assert verify(open_store(tmp_path / "store-copy"), None, signatures_checked=False).faults == ()
    assert found.left_over() == []
