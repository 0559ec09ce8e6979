"""Whether the cluster's head is there, without a cluster: a socket that listens stands in for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.processes import await_true
from tests.support.ray_cluster import free_ports
from warmrank.orchestrator.causes import CLUSTER_LOST
from warmrank.orchestrator.config.models import WatchConfig
from warmrank.orchestrator.gang.eligible import HeadWatch

QUICK = WatchConfig(every_s=0.05, node_silent_s=0.5)
PATIENT = WatchConfig(every_s=300, node_silent_s=600, lease_s=600)


@pytest.fixture
def head() -> Iterator[socket.socket]:
    # Not one of the kernel's choice, which anybody may get when it is closed.
    with socket.create_server(("127.0.0.1", *free_ports(1))) as listening:
        yield listening


def watch_of(head: socket.socket, settings: WatchConfig, *, connect_s: float = 0.3) -> HeadWatch:
    return HeadWatch(f"127.0.0.1:{head.getsockname()[1]}", settings, connect_s=connect_s)


def test_head_that_is_silent_for_the_limit_is_lost_for_good(head: socket.socket) -> None:
    watch = watch_of(head, QUICK)
    address = head.getsockname()
    head.close()
    assert await_true(lambda: watch.loss, timeout_s=30)
    assert "has not answered for 0.5 s" in watch.loss
    assert [(failure.rank, failure.kind) for failure in watch.failures(2, "build")] == [
        (0, CLUSTER_LOST),
        (1, CLUSTER_LOST),
    ]
    with socket.create_server(address):
        assert not watch.is_there()
    watch.stop()


class Greeting:
    """Greets whoever connects, as gRPC does, until it is stopped; connections are taken even then."""

    def __init__(self, head: socket.socket) -> None:
        self._head = head
        self._is_stopped = threading.Event()
        self.num_greeted = 0
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._is_stopped.set()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            connection, _ = self._head.accept()
            with connection:
                connection.sendall(b"\0")
            self.num_greeted += 1


def test_head_that_is_stopped_takes_connections_and_is_lost_all_the_same(head: socket.socket) -> None:
    # What greets late at first counts as one that never does, and a busy machine greets late.
    greeting, watch = Greeting(head), watch_of(head, QUICK, connect_s=60.0)
    assert await_true(lambda: greeting.num_greeted >= 2, timeout_s=60)
    assert watch.loss == ""
    watch._connect_s = 0.3
    greeting.stop()
    assert await_true(lambda: watch.loss, timeout_s=30)
    watch.stop()


def test_time_in_which_the_driver_stood_still_is_no_silence_of_the_head(
    head: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watch_of(head, PATIENT)
    watch.stop()
    monkeypatch.setattr(watch, "_tried_s", watch._tried_s - 3600)
    assert watch.loss == ""
    monkeypatch.setattr(watch, "_reaches", lambda: False)
    watch._try()
    assert watch.loss == ""
