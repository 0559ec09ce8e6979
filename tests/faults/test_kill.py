"""Publishers, fetchers and evicts killed without warning, at every named step and at any moment.

Whatever the moment: the store verifies, a launch is whole or absent, the cache directory shows no artifact
that is not whole, the next launch goes through, and what the dead process left is removed a day later.
Evict's steps too, and it meets publishers that stand still.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.crowds import evict_ahead, lay_store, publish_stopped, read_while_evicting
from tests.support.fault_actions import DAY_S, fetch, publish_and_fetch, recover, survey
from tests.support.faults import Rooms, Trial, tried
from tests.support.sealed_launches import lay_launch
from tests.support.stored import stored
from warmrank.cache_store.steps import Step

pytestmark = pytest.mark.faults

VERBS = ("put", "publish", "commit", "fetch")
STEPS = [step for step in Step if step.value.partition(":")[0] in VERBS]
# One file of put_new, the first of its batch, or one function; later ones of a run come by turns.
RANDOM_KILLS_A_ROUND = 25
IN_A_SHORT_RUN = 4
SHORT_RUN_ROUNDS = 10
A_CALL_S = 0.001  # longer than most calls on a file
SEED = 4


class Place:
    """A store, a cache directory and what is published, for one trial."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths: dict[str, Any] = {name: root / name for name in ("store", "source", "cache")}

    def launch(self, **plan: object) -> Trial:
        plan["below"] = str(self.root)
        manifests = lay_launch(self.paths["source"], SEED, 2)
        return tried(publish_and_fetch, plan, **self.paths, seed=SEED, manifests=manifests)

    def survey(self, seed: int = SEED, cache: str = "cache") -> dict[str, Any]:
        found = run(survey, store=self.paths["store"], cache=self.root / cache, seed=seed)
        assert isinstance(found, dict)
        return found

    def recover(self, **plan: object) -> dict[str, Any]:
        found = run(recover, plan, **self.paths, seed=SEED)
        assert isinstance(found, dict)
        return found

    def lay(self, *seeds: int) -> None:
        """Publish and commit launches."""
        run(lay_store, store=self.paths["store"], source=self.paths["source"], seeds=seeds)

    def check_whole(self, seed: int) -> None:
        """The store has no fault, and the launch can be fetched."""
        assert self.survey(seed)["problems"] == []
        fetched = run(fetch, store=self.paths["store"], cache=self.root / "fetched", seed=seed)
        assert fetched == 2


def run(action: Callable[..., Any], plan: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """What an action said, which has to go through."""
    return finished(tried(action, plan, **arguments)).result


def finished(trial: Trial) -> Trial:
    assert (trial.exit, trial.error, trial.bug) == (0, None, None)
    return trial


@pytest.fixture
def place(room: Path) -> Place:
    return Place(room)


@pytest.fixture
def places(rooms: Rooms, fault_rounds: int) -> Iterator[Place]:
    """A new place for each round."""
    return (Place(rooms.fresh()) for _ in range(fault_rounds))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A launch that nothing disturbs."""
    return finished(Place(tmp_path_factory.mktemp("undisturbed")).launch())


@pytest.fixture(scope="module")
def steps_of_a_run(undisturbed: Trial) -> list[str]:
    return undisturbed.steps


def check_aftermath(place: Place) -> None:
    """All that must hold after a process ended at any moment."""
    found = place.survey()
    assert found["problems"] == []
    assert found["launches"] in (0, 1)
    recovered = place.recover()
    assert (recovered["problems"], recovered["partitions"]) == ([], 2)
    # A day later: the sweep of the next publish and the next fetch.
    assert place.recover(clock_offset_s=DAY_S + 60)["debris"] == []


@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_step_is_reached(steps_of_a_run, step):
    """A step that no run reaches would make its kills prove nothing."""
    assert step.value in steps_of_a_run


@pytest.mark.one_in(6)
@pytest.mark.parametrize("step", STEPS, ids=[step.name for step in STEPS])
def test_killed_at_a_step_leaves_nothing_half_done(places, steps_of_a_run, step):
    """SIGKILL at the first, second, ... time that the step is reached, by turns."""
    times = steps_of_a_run.count(step.value)
    for number, place in enumerate(places):
        trial = place.launch(kill_at=(step.value, number % times + 1))
        assert trial.exit == -signal.SIGKILL
        check_aftermath(place)


def test_killed_at_any_moment_leaves_nothing_half_done(rooms, undisturbed, fault_rounds):
    """Killed a random while after a random call on a file, which mostly falls between two steps."""
    randomness = random.Random(0)
    num_killed = 0
    a_round = IN_A_SHORT_RUN if fault_rounds < SHORT_RUN_ROUNDS else RANDOM_KILLS_A_ROUND
    for _ in range(a_round * fault_rounds):
        place = Place(rooms.fresh())
        # Not a while after the start: how long a launch takes depends on what else this machine does.
        call, pause_s = randomness.randint(1, len(undisturbed.calls)), randomness.uniform(1e-6, A_CALL_S)
        trial = place.launch(kill_after=(call, pause_s))
        assert trial.exit in (0, -signal.SIGALRM)
        num_killed += trial.exit != 0
        check_aftermath(place)
    assert num_killed > 0


@pytest.mark.slow
def test_killed_again_and_again_ends_in_a_whole_launch(place, steps_of_a_run):
    """The same store and the same cache directory through one death at each step in turn."""
    for step in STEPS:
        place.launch(kill_at=(step.value, 1))
        assert place.survey()["problems"] == []
    check_aftermath(place)


STOPPED_AT = [step for step in Step if step.value.partition(":")[0] in ("put", "publish", "commit")]
KILLED_AT = [step for step in Step if step.value.partition(":")[0] == "evict"]
KEPT, VICTIM, LATE = 0, 2, 4
NOTHING_TO_TAKE = frozenset({Step.PUT_STAGED, Step.PUT_FLUSHED, Step.PUBLISH_STARTED, Step.COMMIT_RECORD})


@pytest.mark.one_in(8)
@pytest.mark.parametrize("step", STOPPED_AT, ids=lambda step: step.name.lower())
def test_publisher_stopped_for_longer_than_the_grace_leaves_nothing_dangling(
    places: Iterator[Place], step: Step
):
    chance = random.Random(step.value)
    num_taken = 0
    for place in places:
        place.lay(KEPT)
        nth = chance.randint(1, 2) if step.name.startswith("PU") else 1
        paths = {name: place.paths[name] for name in ("store", "source")}
        found = run(publish_stopped, **paths, seed=LATE, step=step.value, nth=nth)
        assert found["evicter"] == 0
        assert len(found["evicted"]) == 3, "the publisher was never stopped"
        assert (found["faults"], found["launches"]) == ([], 1)
        num_taken += sum(taken for taken, _ in found["evicted"])
        place.check_whole(LATE)
        place.check_whole(KEPT)
    # Otherwise this test shows nothing.
    assert num_taken or step in NOTHING_TO_TAKE


@pytest.mark.one_in(3)
@pytest.mark.parametrize("step", KILLED_AT, ids=lambda step: step.name.lower())
def test_evict_killed_at_any_step_is_finished_by_the_next(places: Iterator[Place], step: Step):
    chance = random.Random(step.value)
    for place in places:
        store = place.paths["store"]
        place.lay(KEPT, VICTIM)
        graces = 1.5
        if step == Step.EVICT_DELETED:  # then there must be something in the trash
            run(evict_ahead, store=store, graces=graces, keep=0, older=True, pin=KEPT)
            graces += 1.5
        nth = chance.randint(1, 4) if step in (Step.EVICT_TRASHED, Step.EVICT_DELETED) else 1
        plan = {"below": str(place.root), "kill_at": (step.value, nth)}
        evict = {"store": store, "keep": 0, "older": True}
        killed = tried(evict_ahead, plan, **evict, graces=graces, pin=KEPT)
        assert killed.exit == -signal.SIGKILL
        place.check_whole(KEPT)
        for later in (1.5, 3.0):
            run(evict_ahead, **evict, graces=graces + later)
        place.check_whole(KEPT)
        assert stored(store, "trash") == []
        assert len(stored(store, "launch")) == 1


def test_readers_beside_an_evict_see_whole_launches_or_a_miss(place: Place, fault_rounds: int):
    place.lay(KEPT)
    paths = {**place.paths, "cache": place.root / "reader"}
    found = run(read_while_evicting, **paths, seed=LATE, pin=KEPT, rounds=5 * fault_rounds)
    assert found["bad"] == 0
    assert found["whole"] + found["missed"] > 0
    # The reader was killed anywhere in a fetch, or in clearing its own cache.
    assert place.survey(LATE, "reader")["problems"] == []
    place.check_whole(KEPT)
