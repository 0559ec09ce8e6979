"""What the driver of `warmrank exec` makes of several nodes' answers: statuses, losses, who publishes."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.launched import loaded_config
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.orchestrator.errors import CannotStart
from warmrank.orchestrator.launch.identity import launch_key
from warmrank.orchestrator.serve import driver, publisher
from warmrank.orchestrator.serve.answers import Added, Prepared, State
from warmrank.orchestrator.serve.crew import Lost
from warmrank.orchestrator.serve.outcome import Options, Outcome
from warmrank.orchestrator.serve.places import Host
from warmrank.orchestrator.serve.publishing import RankWork
from warmrank.orchestrator.serve.readiness import parse_when
from warmrank.orchestrator.serve.streams import Streams
from warmrank.worker.results import Published

RUNS = State(output=(), status=None, is_ready=False)


def ended(status: int) -> State:
    return State(output=(("out", b"bye\n"),), status=status, is_ready=False)


class FakeCrew:
    """Nodes that answer polls by a script, one list for each; the last answer stays."""

    captured = True

    def __init__(self, *polls: Sequence[State | Lost]) -> None:
        self.hosts = tuple(
            Host(node_id=str(index), address=f"10.0.0.{index}", host="n", resources={})
            for index in range(len(polls))
        )
        self.asked: list[tuple[str, dict[int, Any]]] = []
        self.is_closed = False
        self.work: dict[int, tuple[RankWork, ...]] = {}
        self.added = Added()
        self.lost_at = ""
        self._polls = [list(answers) for answers in polls]

    def ask(self, method: str, arguments: Mapping[int, Sequence[Any]], *, timeout_s: float) -> dict[int, Any]:
        assert timeout_s > 0
        self.asked.append((method, dict(arguments)))
        return {index: self._answer(method, index) for index in arguments}

    def _answer(self, method: str, index: int) -> Any:
        if method == self.lost_at:
            return Lost(reason="cut off")
        if method == "poll":
            answers = self._polls[index]
            return answers.pop(0) if len(answers) > 1 else answers[0]
        prepared = Prepared(found=True, said=("fetched",), problems=())
        if method == "added":
            return self.added
        return {"port": 29500, "prepare": prepared, "work": self.work.get(index, ())}.get(method)

    def sent(self, method: str) -> list[dict[int, Any]]:
        return [arguments for name, arguments in self.asked if name == method]

    def close(self) -> None:
        self.is_closed = True


class Ran:
    """One run over fake nodes."""

    def __init__(
        self, tmp_path: Path, crew: FakeCrew, *, when: str = "none", replicate: bool = False
    ) -> None:
        self.said: list[str] = []
        self.out = io.BytesIO()
        options = Options(here=False, nodes=(), replicate=replicate, when=parse_when(when), grace_s=0.1)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(driver, "_crew", lambda *_: crew)
            self.outcome: Outcome = driver.execute(
                loaded_config(tmp_path),
                ("serve",),
                options,
                say=self.said.append,
                streams=lambda names: Streams(names, self.out, io.BytesIO()),
            )


def test_all_nodes_must_end_well(tmp_path: Path) -> None:
    crew = FakeCrew([RUNS, ended(0)], [ended(0)])
    ran = Ran(tmp_path, crew)
    assert (ran.outcome.exit_code, crew.sent("signal"), crew.is_closed) == (0, [], True)
    assert sorted(ran.out.getvalue().splitlines()) == [b"0 n | bye", b"1 n | bye"]


def test_first_failure_ends_the_others_and_is_the_status(tmp_path: Path) -> None:
    crew = FakeCrew([RUNS, RUNS, ended(143)], [ended(7)])
    ran = Ran(tmp_path, crew)
    assert ran.outcome.exit_code == 7
    assert crew.sent("signal") == [{0: (signal.SIGTERM,)}]
    assert [node.status for node in ran.outcome.nodes] == [143, 7]


def test_lost_node_ends_the_command_on_the_others(tmp_path: Path) -> None:
    crew = FakeCrew([RUNS, ended(143)], [Lost(reason="no answer in 15 s")])
    ran = Ran(tmp_path, crew)
    assert ran.outcome.exit_code == 1
    assert crew.sent("signal") == [{0: (signal.SIGTERM,)}]
    assert [node.status for node in ran.outcome.nodes] == [143, None]
    assert any("the node was lost: no answer in 15 s" in line for line in ran.said)


def test_node_lost_before_the_command_is_an_error(tmp_path: Path) -> None:
    crew = FakeCrew([RUNS], [RUNS])
    crew.lost_at = "prepare"
    with pytest.raises(CannotStart, match=r"n \(10.0.0.0\) was lost before the command began: cut off"):
        Ran(tmp_path, crew)
    assert crew.is_closed
    assert crew.sent("start") == []


def test_node_that_is_lost_while_it_publishes_leaves_the_status_alone(tmp_path: Path) -> None:
    crew = FakeCrew([ended(0)], [ended(0)])
    crew.lost_at = "begin_push"
    ran = Ran(tmp_path, crew, when="exit")
    assert (ran.outcome.exit_code, ran.outcome.problems) == (0, ("not published: a node was lost",))


def test_only_the_first_of_several_worlds_publishes(tmp_path: Path) -> None:
    crew = FakeCrew([ended(0)], [ended(0)])
    crew.lost_at = "begin_push"
    Ran(tmp_path, crew, when="exit", replicate=True)
    assert crew.sent("begin_push") == [{0: ()}]
    (orders,) = crew.sent("start")
    assert [orders[index][0].place.world for index in (0, 1)] == [0, 1]


class SlowCommit:
    """A store that takes its time, or fails, when the record is written."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_end = threading.Event()
        self._error = error

    def __call__(self, *_: object) -> tuple[str, str]:
        assert self.may_end.wait(30.0)
        if self._error is not None:
            raise self._error
        return "f" * 64, ""


def publishing_crew() -> FakeCrew:
    """A node whose ranks are ready at once, and whose command ends when the test says so."""
    crew = FakeCrew([replace(RUNS, is_ready=True)])
    crew.work = {
        0: tuple(RankWork(world_size=2, rank=rank, num_new=1, num_loaded=0) for rank in (0, 1)),
    }
    crew.added = Added(
        published={
            rank: Published(ref=None, environment={}, partition=f"world2global_rank{rank}", key="k")
            for rank in (0, 1)
        }
    )
    return crew


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, StoreUnavailable(what="s", where="s", reason="no", required=True)])
def test_nodes_hear_of_the_driver_while_the_record_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """A slow store must not let the lease of a running command expire, nor a required one end it."""
    commit = SlowCommit(error)
    monkeypatch.setattr(publisher, "commit_launch", commit)
    crew = publishing_crew()
    num_polls = 0

    def answer(method: str, index: int) -> object:
        nonlocal num_polls
        if method == "poll" and any(t.name == "exec-commit" for t in threading.enumerate()):
            num_polls += 1
            if num_polls > 3:
                commit.may_end.set()
        if method == "poll" and num_polls > 6:
            return ended(0)
        return FakeCrew._answer(crew, method, index)

    monkeypatch.setattr(crew, "_answer", answer)
    ran = Ran(tmp_path, crew, when="9")
    assert num_polls > 3
    assert (ran.outcome.exit_code, bool(ran.outcome.record)) == (0, error is None)
    assert bool(ran.outcome.problems) == (error is not None)
    said = f"published 2 ranks, 0 new artifacts, launch {launch_key(loaded_config(tmp_path))[:12]}"
    assert (said in ran.said) == (error is None)


def test_one_new_artifact_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "commit_launch", lambda *_: ("f" * 64, ""))
    crew = publishing_crew()
    published = dict(crew.added.published)
    crew.added = Added(published={**published, 1: replace(published[1], num_blobs_new=1)})
    crew._polls = [[replace(RUNS, is_ready=True), *[RUNS] * 20, ended(0)]]
    ran = Ran(tmp_path, crew, when="9")
    assert any(line.startswith("published 2 ranks, 1 new artifact, launch ") for line in ran.said)
