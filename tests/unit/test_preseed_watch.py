"""The watch over the process that seeds: heads that are away, and when it ends."""

from __future__ import annotations

from tests.support.fake_seed_cluster import Clock, make_node, seeded
from warmrank.orchestrator.seed.events import Advanced, Away, Back, Ended, Looked, SeedEvent
from warmrank.orchestrator.seed.outcome import failed
from warmrank.orchestrator.seed.watch import HUNG_S, SILENT_S, Until, Watch

ONE, TWO = make_node(1), make_node(2)


class FakeChild:
    """A process that says what a test has it say."""

    def __init__(self, known: frozenset[str]) -> None:
        self.known = known
        self.says: list[SeedEvent] = []
        self.lives = True
        self.is_stopped = False

    def events(self) -> list[SeedEvent]:
        says, self.says = self.says, []
        return says

    def is_alive(self) -> bool:
        return self.lives

    def stop(self) -> None:
        self.is_stopped = True


class Stage:
    """A watch, its children and its clock."""

    def __init__(self, until: Until | None = None) -> None:
        self.clock = Clock()
        self.children: list[FakeChild] = []
        self.events: list[SeedEvent] = []
        self.watch = Watch(self._start, until or Until(), tell=self.events.append, clock=self.clock)
        self.watch.step()

    def _start(self, known: frozenset[str]) -> FakeChild:
        self.children.append(FakeChild(known))
        return self.children[-1]

    def say(self, *events: SeedEvent) -> None:
        self.children[-1].says += events
        self.watch.step()

    def step(self, seconds: float = 0.0) -> None:
        self.clock.now_s += seconds
        self.watch.step()

    def die(self) -> None:
        self.children[-1].lives = False
        self.watch.step()

    def told(self, kind: type[SeedEvent]) -> list[SeedEvent]:
        return [event for event in self.events if isinstance(event, kind)]


def test_what_the_process_says_is_passed_on():
    stage = Stage()
    stage.say(Looked(nodes=(ONE,)), Ended(seed=seeded(ONE)))
    assert stage.events == [Looked(nodes=(ONE,), joined=(ONE,)), Ended(seed=seeded(ONE))]
    assert stage.watch.results() == (seeded(ONE),)


def test_process_that_ended_is_started_again_later_each_time():
    stage = Stage()
    for wait_s in (2.0, 4.0, 8.0):
        stage.die()
        num_children = len(stage.children)
        stage.step(wait_s - 0.1)
        assert len(stage.children) == num_children
        stage.step(0.1)
        assert len(stage.children) == num_children + 1


def test_head_that_is_away_is_said_once_and_so_is_its_return():
    stage = Stage()
    stage.say(Away(reason="no Ray cluster can be joined"))
    for _ in range(3):
        stage.die()
        stage.step(60.0)
    assert stage.told(Away) == [Away(reason="no Ray cluster can be joined")]
    stage.say(Looked(nodes=(ONE,)))
    assert stage.told(Back) == [Back(after_s=180.0)]


def test_silent_process_means_that_the_head_is_away_and_is_ended_in_the_end():
    stage = Stage()
    stage.say(Looked(nodes=(ONE,)))
    stage.step(SILENT_S)
    assert [type(event) for event in stage.events[1:]] == [Away]
    assert not stage.children[0].is_stopped
    stage.step(HUNG_S - SILENT_S)
    assert stage.children[0].is_stopped
    assert len(stage.told(Away)) == 1


def test_process_that_speaks_again_was_not_lost():
    stage = Stage()
    stage.step(SILENT_S)
    stage.say(Advanced(progress={}))
    assert [type(event) for event in stage.events] == [Away, Back, Advanced]
    assert len(stage.children) == 1


def test_what_is_seeded_is_not_seeded_again_by_the_next_process():
    stage = Stage()
    stage.say(Looked(nodes=(ONE, TWO)), Ended(seed=seeded(ONE)), Ended(seed=failed(TWO, "disk full")))
    stage.die()
    stage.step(2.0)
    assert stage.children[-1].known == {ONE.node_id}


def test_nodes_of_another_cluster_at_the_same_address_replace_the_former():
    stage = Stage()
    stage.say(Looked(nodes=(ONE,)), Ended(seed=seeded(ONE)))
    stage.say(Looked(nodes=(TWO,)))
    assert stage.events[-1] == Looked(nodes=(TWO,), joined=(TWO,), left=(ONE,))
    assert stage.watch.results() == ()


def test_last_words_of_a_process_are_heard():
    stage = Stage()
    stage.children[-1].lives = False
    stage.say(Looked(nodes=(ONE,)), Ended(seed=seeded(ONE)))
    assert stage.watch.results() == (seeded(ONE),)


def test_watch_ends_after_its_time():
    stage = Stage(Until(seconds=30.0))
    stage.step(29.9)
    assert not stage.watch.is_done
    stage.step(0.1)
    assert stage.watch.is_done


def test_watch_ends_once_enough_nodes_are_seeded():
    stage = Stage(Until(num_nodes=2))
    stage.say(Looked(nodes=(ONE, TWO)), Ended(seed=seeded(ONE)), Ended(seed=failed(TWO, "disk full")))
    assert not stage.watch.is_done
    stage.say(Ended(seed=seeded(TWO)))
    assert stage.watch.is_done


def test_end_of_the_watch_ends_the_process():
    stage = Stage()
    stage.watch.stop()
    assert stage.children[0].is_stopped
