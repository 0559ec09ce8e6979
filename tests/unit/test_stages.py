"""What ranks found out about the store's places, handed on to all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from warmrank.cache_store import connect
from warmrank.cache_store.backends.places import Circuits
from warmrank.orchestrator.causes import TIMEOUT, WorkerFailure
from warmrank.orchestrator.config.reading import parse
from warmrank.orchestrator.launch.stages import Stages
from warmrank.orchestrator.launch.state import silence
from warmrank.orchestrator.seats import Gang
from warmrank.orchestrator.store.stores import silent_places

STORE = {"tiers": [{"path": "/near"}, {"path": "/far"}], "trust": {"policy": "off"}}


class Ranks:
    """Ranks that answer what they found silent, and remember what they were told."""

    def __init__(self, *silent: tuple[str, ...]) -> None:
        self.silent = silent
        self.calls: list[tuple[str, tuple[int, ...], Any]] = []

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        raise NotImplementedError

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        del stage, timeout_s
        self.calls.append((method, tuple(arguments), next(iter(arguments.values()))))
        for rank in arguments:
            yield rank, self.silent[rank] if method == "silent_places" else None

    def release(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def told(self) -> list[tuple[tuple[int, ...], Any]]:
        return [(ranks, argument) for method, ranks, argument in self.calls if method == "leave_alone"]


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_circuits", Circuits())


def stages_of(ranks: Ranks, store: Any = STORE) -> Stages:
    data = {"workload": {"entrypoint": "a:b"}, "ranks": 3, "parallel": {"dp": 3}, "store": store}
    return Stages(parse(data), ranks, silence)


def test_place_that_was_silent_for_all_who_were_asked_is_left_alone_by_everybody() -> None:
    ranks = Ranks(("/far",), ("/near", "/far"), ())
    stages = stages_of(ranks)
    stages.agree_on_silence("fetch", [0, 1])
    assert ranks.told() == [((0, 1, 2), (("/far",),))]
    assert stages.config.store is not None
    assert silent_places(stages.config.store) == ("/far",)


@pytest.mark.parametrize(("store", "asked"), [(None, [0]), (STORE, [])], ids=["no store", "no ranks"])
def test_nobody_is_asked_for_nothing(store: Any, asked: list[int]) -> None:
    ranks = Ranks(("/far",), (), ())
    stages_of(ranks, store).agree_on_silence("load", asked)
    assert ranks.calls == []


class Late(Ranks):
    """The store fails rank 0; rank 1 answers, rank 2 does not; all that takes a while."""

    def __init__(self, took_s: float) -> None:
        super().__init__()
        self.now_s = 0.0
        self._took_s = took_s

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        del method, arguments, timeout_s
        self.now_s += self._took_s
        yield 0, WorkerFailure(rank=0, stage=stage, kind="StoreError", message="no space", store_fault=True)
        yield 1, "done"


@pytest.mark.parametrize(("took_s", "silent"), [(600.0, {2}), (1.0, set())])
def test_rank_that_let_the_whole_time_pass_is_late_although_the_store_failed_another(
    took_s: float, silent: set[int]
) -> None:
    ranks = Late(took_s)
    data = {"workload": {"entrypoint": "a:b"}, "ranks": 3, "parallel": {"dp": 3}, "store": STORE}
    stages = Stages(parse(data), ranks, silence, clock=lambda: ranks.now_s)
    answers = stages.try_ask("fetch", "fetch", dict.fromkeys(range(3), ()))
    late = {rank for rank, found in answers.items() if getattr(found, "kind", "") == TIMEOUT}
    assert late == silent
    assert answers[1] == "done"
