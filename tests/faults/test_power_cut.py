"""Power cuts: nothing that a publisher acknowledged is lost or torn, and the harness can tell.

Every cut happens to a real ext4 or xfs with two publishers at room (`tests.support.power_cut`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.loop_mounts import NAMESPACE, FileSystem, why_not
from tests.support.stored import REPOSITORY

pytestmark = pytest.mark.faults

FILE_SYSTEMS: tuple[FileSystem, ...] = ("ext4", "xfs")
IN_A_SHORT_RUN = 2
SHORT_RUN_ROUNDS = 10
CUTS_A_ROUND = 5  # for each of two ways to flush, so 2,000 a file system in 200 rounds


def cut(work: Path, file_system: FileSystem, **options: Any) -> dict[str, Any]:
    if reason := why_not(file_system):
        pytest.skip(reason)
    argument = json.dumps({"work": str(work), "file_system": file_system, **options})
    command = [*NAMESPACE, sys.executable, "-m", "tests.support.power_cut", argument]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    toll = json.loads(done.stdout)
    assert isinstance(toll, dict)
    print(f"{file_system}, {options}: {toll}")  # noqa: T201 - figures for docs/architecture.md
    return toll


@pytest.mark.one_in(4)
@pytest.mark.parametrize("flush", ["syncfs", "fsync"])
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_power_cut_loses_nothing_that_was_acknowledged(room, file_system, flush, fault_rounds):
    """An acknowledged launch is there to the last byte; any other is whole or absent; publishing goes on."""
    cuts = fault_rounds * (IN_A_SHORT_RUN if fault_rounds < SHORT_RUN_ROUNDS else CUTS_A_ROUND)
    toll = cut(room, file_system, flush=flush, cuts=cuts)
    assert (toll["lost"], toll["torn"], toll["examples"]) == (0, 0, [])
    assert toll["cuts"] == cuts
    assert toll["acknowledged"] > 0


@pytest.mark.one_in(4)
@pytest.mark.parametrize("flush", ["syncfs", "fsync"])
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_power_cut_without_any_flush_is_noticed(room, file_system, flush):
    """The same harness, the flush taken out: it must report losses, or it could not report any."""
    assert cut(room, file_system, flush=flush, cuts=3, leave="both")["lost"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_power_cut_without_the_flush_of_bytes_is_noticed(room, file_system):
    """Names flushed, bytes not: files without their bytes must be reported."""
    assert cut(room, file_system, flush="fsync", cuts=3, leave="files")["torn"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_power_cut_without_the_flush_of_names_is_noticed(room, file_system):
    """Bytes flushed, names not: records that are gone must be reported."""
    assert cut(room, file_system, flush="fsync", cuts=40, leave="names", until_lost=True)["lost"] > 0


def test_power_cut_leaves_no_mount_behind(room):
    """The harness mounts where nobody else sees it."""
    before = Path("/proc/self/mounts").read_text()
    cut(room, "ext4", flush="fsync", cuts=1)
    assert str(room) not in before + Path("/proc/self/mounts").read_text()
