"""What the driver of `warmrank exec` makes of several nodes' answers: statuses, losses, output."""

from __future__ import annotations

import io
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from tests.support.launching import loaded_config
from warmrank.orchestrator.exec import node
from warmrank.orchestrator.exec.driver import MAX_WAITING, Options, Outcome, Output, Run
from warmrank.orchestrator.exec.node import ExecNode, State, Synced
from warmrank.orchestrator.exec.placement import parse_when
from warmrank.orchestrator.gang.node_group import Lost
from warmrank.orchestrator.nodes import Node

WAIT_S = 60.0
RUNS = State()


def ended(status: int) -> State:
    return State(output=[("out", b"bye\n")], status=status)


class FakeNodes:
    """Nodes that answer polls by a script, one list for each; the last answer stays."""

    captured = True

    def __init__(self, *polls: Sequence[State | Lost]) -> None:
        self.nodes = tuple(Node(node_id=str(n), address=f"10.0.0.{n}", host="n") for n in range(len(polls)))
        self.ports = tuple(range(len(polls)))
        self.asked: list[tuple[str, dict[int, Any]]] = []
        self.lost_at = ""
        self.answers: dict[str, Any] = {
            "prepare": (True, Synced(said=["fetched"])),
            "push": Synced(),
            "work": {(2, 0): Counter(compiled=1), (2, 1): Counter(compiled=1)},
        }
        self._polls = [list(answers) for answers in polls]

    def ask(
        self,
        method: Callable[..., Any],
        arguments: Mapping[int, Sequence[Any]],
        *,
        timeout_s: float | None,
    ) -> dict[int, Any]:
        assert getattr(ExecNode, method.__name__) is method
        self.asked.append((method.__name__, dict(arguments)))
        return {index: self._answer(method.__name__, index) for index in arguments}

    def _answer(self, method: str, index: int) -> Any:
        if method == self.lost_at:
            return Lost(reason="cut off")
        if method == "poll" and "poll" not in self.answers:
            answers = self._polls[index]
            return answers.pop(0) if len(answers) > 1 else answers[0]
        found = self.answers.get(method)
        return found() if callable(found) else found

    def sent(self, method: str) -> list[dict[int, Any]]:
        return [arguments for name, arguments in self.asked if name == method]

    def close(self) -> None:
        """Nothing runs."""


class Ran:
    """One run over fake nodes."""

    def __init__(self, tmp_path: Path, nodes: FakeNodes, *, when: str = "none") -> None:
        self.said: list[str] = []
        self.out = io.BytesIO()
        options = Options(when=parse_when(when), grace_s=0.1)
        run = Run(loaded_config(tmp_path), nodes, options, self.said.append)
        self.outcome: Outcome = run.run(("serve",), self.out, io.BytesIO())


@pytest.mark.parametrize(
    ("failure", "exit_code", "said"),
    [
        (ended(7), 7, "the command ended with status 7; it is stopped on the other nodes"),
        (Lost(reason="no answer in 15 s"), 1, "the node was lost: no answer in 15 s"),
    ],
)
def test_first_failure_ends_the_others_and_is_the_status(
    tmp_path: Path, failure: State | Lost, exit_code: int, said: str
) -> None:
    nodes = FakeNodes([RUNS, RUNS, ended(143)], [failure])
    ran = Ran(tmp_path, nodes)
    assert ran.outcome.exit_code == exit_code
    assert nodes.sent("signal") == [{0: (signal.SIGTERM,)}]
    assert [node.status for node in ran.outcome.nodes] == [143, getattr(failure, "status", None)]
    assert said in " ".join(ran.said)


def test_nodes_hear_of_the_driver_while_they_publish(tmp_path: Path) -> None:
    """A slow store must not let the lease of a running command expire, nor a failing one end it."""
    nodes = FakeNodes([State(is_ready=True)])
    may_end = threading.Event()

    def publish() -> None:
        assert may_end.wait(WAIT_S)
        raise OSError("no store")

    def poll() -> State:
        num_polls = len(nodes.sent("poll"))
        if nodes.sent("publish") and num_polls > 3:
            may_end.set()
        return ended(0) if num_polls > 6 and may_end.is_set() else State(is_ready=True)

    nodes.answers |= {"publish": publish, "poll": poll}
    ran = Ran(tmp_path, nodes, when="9")
    assert (ran.outcome.exit_code, ran.outcome.problems) == (0, ("not published: no store",))


class Blocked(io.RawIOBase):
    """A pager that nobody scrolls."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.got = b""

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        assert self.goes_on.wait(WAIT_S)
        self.got += data
        return len(data)


def written(names: Sequence[str], *writes: tuple[int, bytes]) -> bytes:
    out = io.BytesIO()
    output = Output(names, out, io.BytesIO())
    for index, data in writes:
        output.write(index, [("out", data)])
    output.finish(lambda: False)
    return out.getvalue()


def test_lines_of_several_nodes_bear_their_names() -> None:
    found = written(("0 a", "1 bcd"), (0, b"on"), (1, b"two\nthr"), (0, b"e\n"))
    assert found == b"1 bcd | two\n0 a   | one\n1 bcd | thr\n"
    assert written(("0 a",), (0, b"50 %\r")) == b"50 %\r"


def test_reader_that_stops_holds_up_the_command_and_not_the_driver() -> None:
    blocked = Blocked()
    output = Output((), cast("BinaryIO", blocked), io.BytesIO())
    for _ in range(MAX_WAITING + 2):
        output.write(0, [("out", b"x")])
    assert output.is_behind
    output.finish(lambda: True)  # a signal: it is left
    assert blocked.got == b""
    blocked.goes_on.set()
    output.finish(lambda: False)
    assert (output.is_behind, len(blocked.got)) == (False, MAX_WAITING + 2)


@pytest.mark.parametrize(("of_ray", "kept"), [(True, {}), (False, {"RAY_CGRAPH_get_timeout": "9"})])
def test_variables_of_ray_are_kept_from_commands_of_its_workers_only(
    monkeypatch: pytest.MonkeyPatch, of_ray: bool, kept: dict[str, str]
) -> None:
    monkeypatch.setattr("os.environ", {"RAY_CGRAPH_get_timeout": "9", "RAY_ADDRESS": "a", "HOME": "/h"})
    assert node.own_environ(of_ray=of_ray) == {"RAY_ADDRESS": "a", "HOME": "/h", **kept}
