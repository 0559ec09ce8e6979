"""Evicts among the living: against publishers that stand still, and killed at every step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import Forker, Rooms, Trial
from warmrank.cache_store.steps import Step

pytestmark = pytest.mark.faults

STOPPED_AT = [step for step in Step if step.value.partition(":")[0] in ("put", "publish", "commit")]
KILLED_AT = [step for step in Step if step.value.partition(":")[0] == "evict"]
KEPT, VICTIM, LATE = 0, 2, 4
NOTHING_TO_TAKE = frozenset({Step.PUT_STAGED, Step.PUT_FLUSHED, Step.PUBLISH_STARTED, Step.COMMIT_RECORD})


def finished(trial: Trial) -> Trial:
    assert (trial.exit, trial.error, trial.bug) == (0, None, None)
    return trial


def whole(forker: Forker, room: Path, seed: int) -> None:
    """The store has no fault, and the launch can be fetched."""
    found = finished(forker.run("survey", store=room / "store", cache=room / "cache", seed=seed))
    assert found.result["problems"] == []
    assert finished(forker.run("fetch", store=room / "store", cache=room / "fetched", seed=seed)).result == 2


@pytest.mark.one_in(8)
@pytest.mark.parametrize("step", STOPPED_AT, ids=lambda step: step.name.lower())
def test_publisher_stopped_for_longer_than_the_grace_leaves_nothing_dangling(
    forker: Forker, rooms: Rooms, fault_rounds: int, step: Step
):
    chance = random.Random(step.value)
    num_taken = 0
    for _ in range(fault_rounds):
        room = rooms.fresh()
        finished(forker.run("lay_store", store=room / "store", source=room / "source", seeds=[KEPT]))
        trial = finished(
            forker.run(
                "publish_stopped",
                store=room / "store",
                source=room / "source",
                seed=LATE,
                step=step.value,
                nth=chance.randint(1, 2) if step.name.startswith("PU") else 1,
            )
        )
        assert trial.result["evicter"] == 0
        assert len(trial.result["evicted"]) == 3, "the publisher was never stopped"
        assert (trial.result["faults"], trial.result["launches"]) == ([], 1)
        num_taken += sum(taken for taken, _ in trial.result["evicted"])
        whole(forker, room, LATE)
        whole(forker, room, KEPT)
    # Otherwise this test shows nothing.
    assert num_taken or step in NOTHING_TO_TAKE


@pytest.mark.one_in(3)
@pytest.mark.parametrize("step", KILLED_AT, ids=lambda step: step.name.lower())
def test_evict_killed_at_any_step_is_finished_by_the_next(
    forker: Forker, rooms: Rooms, fault_rounds: int, step: Step
):
    chance = random.Random(step.value)
    num_killed = 0
    for _ in range(fault_rounds):
        room = rooms.fresh()
        store, source = room / "store", room / "source"
        finished(forker.run("lay_store", store=store, source=source, seeds=[KEPT, VICTIM]))
        graces = 1.5
        if step == Step.EVICT_DELETED:  # then there must be something in the trash
            finished(forker.run("evict_ahead", store=store, graces=graces, keep=0, older=True, pin=KEPT))
            graces += 1.5
        nth = chance.randint(1, 4) if step in (Step.EVICT_TRASHED, Step.EVICT_DELETED) else 1
        plan = {"below": str(room), "kill_at": [step.value, nth]}
        killed = forker.run("evict_ahead", plan, store=store, graces=graces, keep=0, older=True, pin=KEPT)
        num_killed += killed.exit == -9
        whole(forker, room, KEPT)
        for later in (1.5, 3.0):
            finished(forker.run("evict_ahead", store=store, graces=graces + later, keep=0, older=True))
        whole(forker, room, KEPT)
        assert not any(path.is_file() for path in (store / "trash").rglob("*"))
        assert len([path for path in (store / "launch").rglob("*") if path.is_file()]) == 1
    assert num_killed == fault_rounds


def test_readers_beside_an_evict_see_whole_launches_or_a_miss(forker: Forker, room: Path, fault_rounds: int):
    store, source = room / "store", room / "source"
    finished(forker.run("lay_store", store=store, source=source, seeds=[KEPT]))
    paths: dict[str, Any] = {"store": store, "source": source, "cache": room / "reader"}
    trial = finished(forker.run("read_while_evicting", **paths, seed=LATE, pin=KEPT, rounds=5 * fault_rounds))
    assert trial.result["bad"] == 0
    assert trial.result["whole"] + trial.result["missed"] > 0
    # The reader was killed anywhere in a fetch, or in clearing its own cache.
    left = finished(forker.run("survey", store=store, cache=room / "reader", seed=LATE))
    assert left.result["problems"] == []
    whole(forker, room, KEPT)
