"""The tiny workload, in which the first rank that reaches a stage on another node than the head stays in it.

It stays in the call that its driver makes of it, until its node is lost: its ranks are then in that stage for
certain, however short the stage is. Whoever comes after it passes, and the next attempt stays elsewhere.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tests.support import tiny_workload
from warmrank.orchestrator.gang.rank_host import RankHost
from warmrank.worker.rank.workload import RankContext, Workload

METHODS = {
    "probe": "probe",
    "compile": "compile",
    "load": "settle",
    "capture": "capture",
    "first_call": "first_call",
    "verify": "verify",
    "commit": "partition",
}
"""What the driver calls in each stage that comes after the build."""


def workload(context: RankContext, *, stages: list[str], held: str, spared: str) -> Workload:
    """The workload.

    Args:
        context: of the rank.
        stages: in which a rank stays, one after the other: each attempt of the launch has its own.
        held: directory with a file for each stage in which a rank stayed, which holds its host's name.
        spared: host on which nobody stays.
    """
    files = [Path(held) / stage for stage in stages]
    file = next((file for file in files if not file.exists()), None)
    if file is not None and os.uname().nodename != spared:
        if file.name == "build":
            stay_once(file)
        else:
            _stay_in(METHODS[file.name], file)
    return tiny_workload.workload(context)


def stay_once(file: Path) -> None:
    """Stay here for ever, if nobody stayed before."""
    host = os.uname().nodename
    own = file.with_name(f"{file.name}.{host}.{os.getpid()}")
    own.write_text(host)
    try:
        os.link(own, file)  # with its text or not at all
    except FileExistsError:
        return
    while True:
        time.sleep(60)


def _stay_in(method: str, file: Path) -> None:
    call = RankHost.call

    def call_or_stay(self: RankHost, called: str, arguments: tuple[Any, ...]) -> Any:
        if called == method:
            stay_once(file)
        return call(self, called, arguments)

    RankHost.call = call_or_stay  # type: ignore[method-assign, assignment]
