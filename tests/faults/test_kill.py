"""Publishers and fetchers killed without warning, at every named step and at any moment.

Whatever the moment: the store verifies, a launch is whole or absent, the cache directory shows no artifact
that is not whole, the next launch goes through, and what the dead process left is removed a day later.
Evict's steps are killed in ``test_evict_faults.py``.
"""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.fault_child import DAY_S
from tests.support.faults import Forker, Trial
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

    def __init__(self, forker: Forker, root: Path) -> None:
        self.forker = forker
        self.paths: dict[str, Any] = {name: root / name for name in ("store", "source", "cache")}

    def launch(self, **plan: object) -> Trial:
        plan["below"] = str(self.paths["store"].parent)
        return self.forker.run("publish_and_fetch", plan, **self.paths, seed=SEED)

    def survey(self) -> dict[str, object]:
        trial = self.forker.run("survey", store=self.paths["store"], cache=self.paths["cache"], seed=SEED)
        assert trial.bug is None
        assert trial.error is None
        assert isinstance(trial.result, dict)
        return trial.result

    def recover(self, **plan: object) -> dict[str, object]:
        trial = self.forker.run("recover", plan, **self.paths, seed=SEED)
        assert (trial.bug, trial.error) == (None, None)
        assert isinstance(trial.result, dict)
        return trial.result


@pytest.fixture
def place(forker: Forker, room: Path) -> Place:
    return Place(forker, room)


@pytest.fixture(scope="module")
def undisturbed(forker: Forker, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A launch that nothing disturbs."""
    trial = Place(forker, tmp_path_factory.mktemp("undisturbed")).launch()
    assert (trial.exit, trial.error, trial.bug) == (0, None, None)
    return trial


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
def test_killed_at_a_step_leaves_nothing_half_done(forker, rooms, steps_of_a_run, step, fault_rounds):
    """SIGKILL at the first, second, ... time that the step is reached, by turns."""
    times = steps_of_a_run.count(step.value)
    for number in range(fault_rounds):
        place = Place(forker, rooms.fresh())
        trial = place.launch(kill_at=(step.value, number % times + 1))
        assert trial.exit == -signal.SIGKILL
        check_aftermath(place)


def test_killed_at_any_moment_leaves_nothing_half_done(forker, rooms, undisturbed, fault_rounds):
    """Killed a random while after a random call on a file, which mostly falls between two steps."""
    randomness = random.Random(0)
    num_killed = 0
    a_round = IN_A_SHORT_RUN if fault_rounds < SHORT_RUN_ROUNDS else RANDOM_KILLS_A_ROUND
    for _ in range(a_round * fault_rounds):
        place = Place(forker, rooms.fresh())
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
