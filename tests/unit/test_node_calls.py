"""Calls of the ranks of one node: what is alike crosses once."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from warmrank.orchestrator.gang.node_watch import NodeCalls, batches_of


class Actor:
    """A rank; what it is called with is its answer's reference, and its answer."""

    def __init__(self, answer: Any = None) -> None:
        self._answer = answer

    @property
    def call(self) -> Actor:
        return self

    def remote(self, rank: int, stage: str, method: str, *values: Any) -> tuple[Any, ...]:
        return (self._answer or f"{stage} {method} {values}", rank)


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
    calls = NodeCalls({rank: Actor() for rank in range(3)})
    batches = batches_of({0: (same := ("a",)), 1: same, 2: ("b",)})
    assert batches == ((("a",), (0, 1)), (("b",), (2,)))
    answers, is_all = calls.begin(1, "build", "build", batches)
    assert is_all
    assert answers == (("build build ('a',)", (0, 1)), ("build build ('b',)", (2,)))
