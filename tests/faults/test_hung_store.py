"""A store on a file system that hangs for real: every write to a frozen ext4 waits until it is thawed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.loop_mounts import NAMESPACE, why_not
from tests.support.stored import REPOSITORY

pytestmark = pytest.mark.faults
_TIMEOUT_S = 400  # the child thaws after 60 s whatever happens


def publish_frozen(directory: Path, places: str) -> dict[str, Any]:
    """What `tests.support.hung_store` says of publishing into ``places``, of which the far one is frozen."""
    if reason := why_not("ext4"):
        pytest.skip(reason)
    command = [*NAMESPACE, sys.executable, "-m", "tests.support.hung_store", str(directory), places]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_publish_to_a_hung_store_ends_without_it(tmp_path):
    found = publish_frozen(tmp_path, "far")
    assert "no answer within 1 s" in found["outcome"]
    assert (found["was_frozen"], found["states"]) == (True, ["away"])
    # The verb that was left behind woke up by now, and did no harm.
    assert (found["faults_after"], found["manifests_after"]) == ([], 0)


@pytest.mark.slow
def test_publish_goes_on_in_the_near_place_while_the_far_one_hangs(tmp_path):
    found = publish_frozen(tmp_path, "near,far")
    assert found["outcome"] == "created: True"
    assert (found["was_frozen"], found["states"]) == (True, ["used", "away"])
    assert ["no answer within 1 s" in line for line in found["problems"]] == [True]
    assert (found["faults_after"], found["manifests_after"]) == ([], 0)
