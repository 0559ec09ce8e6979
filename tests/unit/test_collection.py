from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from warmrank.worker import collection
from warmrank.worker.collection import paused


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    was_enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.enable()
    yield
    if gc.get_freeze_count() > frozen:
        gc.unfreeze()
    collection._PAUSES._is_frozen = False
    (gc.enable if was_enabled else gc.disable)()


def test_collector_waits_and_goes_on() -> None:
    with paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_cycles_that_were_made_meanwhile_are_collected_later() -> None:
    class Node:
        def __init__(self) -> None:
            self.own = self

    with paused():
        for _ in range(10):
            Node()
    gc.collect()
    assert not any(type(one) is Node for one in gc.get_objects())


def test_what_somebody_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    with paused():
        pass
    assert gc.get_freeze_count() > frozen // 2  # frozen objects may die, but not by the thousand


@pytest.mark.parametrize("freeze", [gc.freeze, collection.freeze], ids=["by somebody", "by warmrank"])
def test_what_is_frozen_is_counted_once_at_most(freeze, monkeypatch):
    freeze()
    counted: list[int] = []
    count = gc.get_freeze_count

    def counting() -> int:
        counted.append(1)
        return count()

    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", counting)
        for _ in range(5):
            with paused():
                pass
    assert len(counted) == (1 if freeze is gc.freeze else 0)


def test_collector_goes_on_when_the_last_of_many_threads_is_done() -> None:
    def pause_often(_: int) -> None:
        for _ in range(2000):
            with paused():
                pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(pause_often, range(4)))
    assert gc.isenabled()


def test_collector_goes_on_in_a_child_that_was_forked_meanwhile() -> None:
    with paused():
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
