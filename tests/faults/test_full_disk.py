"""A real ENOSPC: an ext4 of a few MiB runs full under a publisher and under a fetcher."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.loop_mounts import NAMESPACE, why_not
from tests.support.stored import REPOSITORY

pytestmark = pytest.mark.faults

ROUNDS = 10


@pytest.mark.slow
def test_full_disk_refuses_and_harms_nothing(rooms, fault_rounds):
    """What was committed stays whole; once there is room again publish and fetch go through."""
    if reason := why_not("ext4"):
        pytest.skip(reason)
    for turn in range(max(1, fault_rounds // ROUNDS)):
        work = rooms.fresh()
        command = [*NAMESPACE, sys.executable, "-m", "tests.support.full_disk", str(work), str(turn * 1_000)]
        done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout)
        assert found["committed"] > 0
        assert "No space left on device" in found["refusal"]
        assert "No space left on device" in "".join(found["fetch on the full disk"])
        assert (found["faults"], found["afterwards"]) == ([], [])
