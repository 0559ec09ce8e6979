"""Real disks: full, hung, without power in the middle of a publish; and every call to the system that fails.

Then the outcome is an error or the right thing, never a wrong one.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import ROOT
from tests.support.fault_actions import publish_and_fetch, recover, survey
from tests.support.faults import ERRORS, Trial, tried
from tests.support.loop_mounts import NAMESPACE, FileSystem, why_not
from tests.support.sealed_launches import lay_launch

pytestmark = pytest.mark.faults

FILE_SYSTEMS: tuple[FileSystem, ...] = ("ext4", "xfs")
FILLS_A_ROUND = 0.1
IN_A_SHORT_RUN = 2
SHORT_RUN_ROUNDS = 10
CUTS_A_ROUND = 5  # for each of two ways to flush, so 2,000 a file system in 200 rounds


def found_by(module: str, *arguments: str, on: FileSystem = "ext4") -> dict[str, Any]:
    """What a module of `tests.support` says that mounts file systems where nobody else sees them."""
    if reason := why_not(on):
        pytest.skip(reason)
    command = [*NAMESPACE, sys.executable, "-m", f"tests.support.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_full_disk_refuses_and_harms_nothing(rooms, fault_rounds):
    """What was committed stays whole; once there is room again publish and fetch go through."""
    for turn in range(max(1, int(fault_rounds * FILLS_A_ROUND))):
        found = found_by("bad_disks", "full", str(rooms.fresh()), str(turn * 1_000))
        assert found["committed"] > 0
        assert "No space left on device" in found["refusal"]
        assert "No space left on device" in "".join(found["fetch on the full disk"])
        assert (found["faults"], found["afterwards"]) == ([], [])


def test_publish_to_a_hung_store_ends_without_it(tmp_path):
    found = found_by("bad_disks", "hung", str(tmp_path), "far")
    assert "no answer within 1 s" in found["outcome"]
    assert (found["was_frozen"], found["states"]) == (True, ["away"])
    # The verb that was left behind woke up by now, and did no harm.
    assert (found["faults_after"], found["manifests_after"]) == ([], 0)


@pytest.mark.slow
def test_publish_goes_on_in_the_near_place_while_the_far_one_hangs(tmp_path):
    found = found_by("bad_disks", "hung", str(tmp_path), "near,far")
    assert found["outcome"] == "created: True"
    assert (found["was_frozen"], found["states"]) == (True, ["used", "away"])
    assert ["no answer within 1 s" in line for line in found["problems"]] == [True]
    assert (found["faults_after"], found["manifests_after"]) == ([], 0)


def cut(work: Path, file_system: FileSystem, **options: Any) -> dict[str, Any]:
    argument = json.dumps({"work": str(work), "file_system": file_system, **options})
    toll = found_by("power_cut", argument, on=file_system)
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
@pytest.mark.parametrize(
    ("found", "options"),
    [("torn", {"cuts": 3, "leave": "files"}), ("lost", {"cuts": 40, "leave": "names", "until_lost": True})],
    ids=["bytes", "names"],
)
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_power_cut_without_one_of_the_flushes_is_noticed(room, file_system, found, options):
    """Files without their bytes, or records that are gone, must be reported."""
    assert cut(room, file_system, flush="fsync", **options)[found] > 0


def test_power_cut_leaves_no_mount_behind(room):
    """The harness mounts where nobody else sees it."""
    before = Path("/proc/self/mounts").read_text()
    cut(room, "ext4", flush="fsync", cuts=1)
    assert str(room) not in before + Path("/proc/self/mounts").read_text()


SEED = 8
TRIALS_A_ROUND = 5  # below ROUNDS_OF_ALL
ROUNDS_OF_ALL = 10  # from here on each ten rounds try all calls with all errors; 200 rounds do so 20 times


def launch(root: Path, **plan: object) -> Trial:
    plan["below"] = str(root)
    paths: dict[str, Any] = {name: root / name for name in ("store", "source", "cache")}
    manifests = lay_launch(paths["source"], SEED, 2)
    return tried(publish_and_fetch, plan, **paths, seed=SEED, manifests=manifests)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The calls that an undisturbed launch makes in the store and in the cache directory."""
    trial = launch(tmp_path_factory.mktemp("undisturbed"))
    assert (trial.exit, trial.error, trial.bug) == (0, None, None)
    return trial.calls


def test_calls_that_matter_are_counted(calls):
    """What is not counted never fails, and its trials would prove nothing."""
    assert {"open", "read", "write", "os.fsync", "os.link", "os.mkdir", "os.stat", "os.fstat"} <= set(calls)


def test_failing_call_never_leaves_a_wrong_thing(rooms, calls, fault_rounds):
    """Whatever fails: a `StoreError` or success; the store verifies; the next attempt goes through."""
    faults = []
    for number, error, fail_on in trials(len(calls), fault_rounds):
        root = rooms.fresh()
        # The order of calls in threads varies, so the name of the nth is only a hint.
        place = f"call {number} ({calls[number - 1]}), {error}{' from there on' if fail_on else ''}"
        faults += [f"{place}: {fault}" for fault in try_one(root, number, error, fail_on=fail_on)]
    assert faults == []


def try_one(root: Path, number: int, error: str, *, fail_on: bool) -> list[str]:
    """What is wrong after one trial."""
    trial = launch(root, fail_call=number, error=error, fail_on=fail_on)
    if (trial.exit, trial.bug) != (0, None):
        return [f"exit {trial.exit}, {trial.bug}"]
    paths: dict[str, Any] = {name: root / name for name in ("store", "cache")}
    found = tried(survey, **paths, seed=SEED)
    recovered = tried(recover, **paths, source=root / "source", seed=SEED)
    if found.result is None or recovered.result is None:
        return [f"afterwards: {found.bug or found.error or recovered.bug or recovered.error}"]
    committed = trial.error is not None or found.result["launches"] == 1
    return [
        *([] if committed else ["success, but no launch"]),
        *found.result["problems"],
        *recovered.result["problems"],
        *([] if recovered.result["partitions"] == 2 else ["no launch afterwards"]),
    ]


def trials(num_calls: int, rounds: int) -> list[tuple[int, str, bool]]:
    """Which call fails, with which error, and whether all that follow fail too."""
    everything = list(itertools.product(range(1, num_calls + 1), ERRORS))
    randomness = random.Random(0)
    if rounds < ROUNDS_OF_ALL:
        sample = randomness.sample(everything, TRIALS_A_ROUND * rounds)
        return [(number, error, turn % 2 == 1) for turn, (number, error) in enumerate(sample)]
    passes = range(rounds // ROUNDS_OF_ALL)
    return [(number, error, turn % 2 == 1) for turn in passes for number, error in everything]
