"""Calls of the ranks of one node: what is alike crosses once."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from warmrank.orchestrator.causes import WorkerFailure
from warmrank.orchestrator.gang.node_watch import NodeWatch, batches_of

FAILED = WorkerFailure(rank=1, stage="build", kind="E", message="m")


class Actor:
    """A rank; what it is called with is its answer's reference, and its answer."""

    def __init__(self, answer: Any = None) -> None:
        self._answer = answer

    @property
    def call(self) -> Actor:
        return self

    def remote(self, rank: int, stage: str, method: str, *values: Any) -> tuple[Any, ...]:
        return (self._answer or f"{stage} {method} {values}", rank)


def calls_of(actors: dict[int, Actor]) -> NodeWatch:
    watch = NodeWatch()
    watch._actors = dict(actors)
    return watch


@pytest.fixture(autouse=True)
def ready(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The ranks that answer."""
    found = {0, 1, 2}

    def wait(refs: list[Any], **_options: Any) -> tuple[list[Any], list[Any]]:
        return [ref for ref in refs if ref[1] in found], [ref for ref in refs if ref[1] not in found]

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda ref: ref[0])
    return found


def test_equal_answers_of_ranks_come_once() -> None:
    calls = calls_of({rank: Actor() for rank in range(3)})
    batches = batches_of({0: (same := ("a",)), 1: same, 2: ("b",)})
    assert batches == ((("a",), (0, 1)), (("b",), (2,)))
    answers, is_all = calls.call(1, "build", "build", batches)
    assert is_all
    assert answers == (("build build ('a',)", (0, 1)), ("build build ('b',)", (2,)))


def test_failure_is_told_before_all_have_answered(ready: set[int]) -> None:
    calls = calls_of({0: Actor(), 1: Actor(FAILED), 2: Actor()})
    ready.discard(2)
    answers, is_all = calls.call(1, "build", "build", batches_of(dict.fromkeys(range(3), ())))
    assert not is_all
    assert (FAILED, (1,)) in answers
    ready.add(2)
    assert calls.more(1, "build") == ((("build build ()", (2,)),), True)
    assert calls.more(0, "build") == ((), True)  # an earlier call, of which nothing is open
