"""Every call to the operating system fails: the outcome is an error or the right thing, never a wrong one.

The calls of one publish, commit and fetch are counted first (`tests.support.faults`); then each is made
to fail with each error in a process of its own, alone or together with all that follow it.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import ERRORS, Forker, Trial

pytestmark = pytest.mark.faults

SEED = 8
TRIALS_A_ROUND = 5  # below ROUNDS_OF_ALL
ROUNDS_OF_ALL = 10  # from here on each ten rounds try all calls with all errors; 200 rounds do so 20 times


def launch(forker: Forker, root: Path, **plan: object) -> Trial:
    plan["below"] = str(root)
    paths: dict[str, Any] = {name: root / name for name in ("store", "source", "cache")}
    return forker.run("publish_and_fetch", plan, **paths, seed=SEED)


@pytest.fixture(scope="module")
def calls(forker: Forker, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The calls that an undisturbed launch makes in the store and in the cache directory."""
    trial = launch(forker, tmp_path_factory.mktemp("undisturbed"))
    assert (trial.exit, trial.error, trial.bug) == (0, None, None)
    return trial.calls


def test_calls_that_matter_are_counted(calls):
    """What is not counted never fails, and its trials would prove nothing."""
    assert {"open", "read", "write", "os.fsync", "os.link", "os.mkdir", "os.stat", "os.fstat"} <= set(calls)


def test_failing_call_never_leaves_a_wrong_thing(forker, rooms, calls, fault_rounds):
    """Whatever fails: a `StoreError` or success; the store verifies; the next attempt goes through."""
    faults = []
    for number, error, fail_on in trials(len(calls), fault_rounds):
        root = rooms.fresh()
        # The order of calls in threads varies, so the name of the nth is only a hint.
        place = f"call {number} ({calls[number - 1]}), {error}{' from there on' if fail_on else ''}"
        faults += [f"{place}: {fault}" for fault in try_one(forker, root, number, error, fail_on=fail_on)]
    assert faults == []


def try_one(forker: Forker, root: Path, number: int, error: str, *, fail_on: bool) -> list[str]:
    """What is wrong after one trial."""
    trial = launch(forker, root, fail_call=number, error=error, fail_on=fail_on)
    if (trial.exit, trial.bug) != (0, None):
        return [f"exit {trial.exit}, {trial.bug}"]
    paths: dict[str, Any] = {name: root / name for name in ("store", "cache")}
    found = forker.run("survey", **paths, seed=SEED)
    recovered = forker.run("recover", **paths, source=root / "source", seed=SEED)
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
