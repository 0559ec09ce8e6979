"""Whether the cluster's head is there, asked from a thread: a connection may take its time to fail."""

from __future__ import annotations

import threading
import time

from warmrank.orchestrator.causes import CLUSTER_LOST, WorkerFailure
from warmrank.orchestrator.config.models import WatchConfig
from warmrank.orchestrator.gang.knocking import knock

_CONNECT_S = 2.0
_AGAIN_S = 0.2


class HeadWatch:
    """Tries to reach the cluster's head from a thread of its own; never stops the process from ending.

    Args:
        address: of the head.
        settings: how often it is tried, and how long it may be silent.
        connect_s: how long one try may take.
    """

    def __init__(self, address: str, settings: WatchConfig, *, connect_s: float = _CONNECT_S) -> None:
        self._connect_s = connect_s
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._settings = settings
        self._tried_s = time.monotonic()
        self._silent_s = 0.0
        self._is_lost = False
        self._greets: bool | None = None
        self._trying = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="head-watch", daemon=True).start()

    @property
    def loss(self) -> str:
        """What stands for a cluster without a head; empty while there is one. Once lost, it stays so."""
        where, silent_s = f"{self._host}:{self._port}", self._settings.node_silent_s
        return f"the cluster's head at {where} has not answered for {silent_s:g} s" if self._is_lost else ""

    def is_there(self) -> bool:
        """Whether the head answers, or is not lost yet; Ray would try for a minute, and end this process."""
        while not self._is_lost and not self._try():
            time.sleep(_AGAIN_S)
        return not self._is_lost

    def failures(self, num_ranks: int, stage: str) -> tuple[WorkerFailure, ...]:
        """The failures of all ranks that stand for `loss`; none while there is a head."""
        loss = self.loss
        remedy = "start the cluster anew, then launch again: what was compiled is kept"
        return tuple(
            WorkerFailure(rank=rank, stage=stage, kind=CLUSTER_LOST, message=loss, remedy=remedy)
            for rank in range(num_ranks if loss else 0)
        )

    def stop(self) -> None:
        """Look no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._settings.every_s):
            self._try()

    def _try(self) -> bool:
        with self._trying:
            is_reached, now_s = self._reaches(), time.monotonic()
            # Only tries count: who was stopped for an hour has not been left without an answer for one.
            tried_for_s = min(now_s - self._tried_s, self._settings.every_s + self._connect_s)
            self._tried_s = now_s
            self._silent_s = 0.0 if is_reached else self._silent_s + tried_for_s
            self._is_lost = self._is_lost or self._silent_s >= self._settings.node_silent_s
            return is_reached

    def _reaches(self) -> bool:
        where = self._host.strip("[]"), self._port
        heard = knock([where], timeout_s=self._connect_s)[where]
        if heard in {"refuses", "silent"}:
            return False
        # With TLS nobody is greeted: a head that did not greet at first needs not to later.
        if self._greets is None:
            self._greets = heard == "greets"
        return heard == "greets" or not self._greets
