"""The tiny workload with faults that a test plans: in a stage, on a rank, each of them once.

Faults come one after the other, an attempt of the launch each: a rank carries out the first that has not
left its file in the directory of marks. A fault begins in the call that the driver makes of the rank in that
stage, so the rank is in the stage for certain, however short the stage is.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
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

# A helper in a session of its own whose parent is gone: only what it inherited leads back to its rank.
_ORPHAN = (
    "import subprocess as s, sys; print(s.Popen(sys.argv[1:], start_new_session=True, stdout=s.DEVNULL).pid)"
)
_SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(600)")


def fault(stage: str, kind: str, rank: int = 1) -> dict[str, Any]:
    """One fault, as `workload` takes it; ``kind`` is one of `KINDS`."""
    return {"stage": stage, "kind": kind, "rank": rank}


def workload(
    context: RankContext,
    *,
    marks: str,
    faults: tuple[dict[str, Any], ...] = (),
    helpers: bool = False,
    linger_s: float = 0.0,
    rows: int = 3,
) -> Workload:
    """The workload.

    Args:
        context: of the rank.
        marks: directory, shared by all ranks.
        faults: as `fault` makes them, in order; no two that follow each other in the same stage.
        helpers: each rank starts two processes: a child, and an orphan in a session of its own.
        linger_s: how long each rank waits in every stage from the build on, so that it can be hit there.
        rows: of the example inputs; another number is another request.
    """
    if helpers:
        _start_helpers(Path(marks), context.rank)
    if linger_s:
        time.sleep(linger_s)
        for method in METHODS.values():
            _begin_in(method, lambda: time.sleep(linger_s))
    waiting = ((Path(marks) / f"fault{index}", fault) for index, fault in enumerate(faults))
    file, planned = next(((file, fault) for file, fault in waiting if not file.exists()), (None, None))
    if file is not None and planned is not None and planned["rank"] == context.rank:
        begin = _begin(file, KINDS[planned["kind"]])
        if planned["stage"] == "build":
            begin()
        else:
            _begin_in(METHODS[planned["stage"]], begin)
    return tiny_workload.workload(context, rows=rows)


def staying(context: RankContext, *, stages: list[str], held: str, spared: str) -> Workload:
    """The tiny workload, in which the first rank that reaches a stage on a node not spared stays in it.

    Whoever comes after it passes, and the next attempt stays elsewhere.

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
            _stay_once(file)
        else:
            _begin_in(METHODS[file.name], partial(_stay_once, file))
    return tiny_workload.workload(context)


def _stay_once(file: Path) -> None:
    """Stay here for ever, if nobody stayed before."""
    host = os.uname().nodename
    own = file.with_name(f"{file.name}.{host}.{os.getpid()}")
    own.write_text(host)
    try:
        os.link(own, file)  # with its text or not at all
    except FileExistsError:
        return
    _stay()


def _start_helpers(marks: Path, rank: int) -> None:
    child = subprocess.Popen(_SLEEP)
    orphan = subprocess.run(
        (sys.executable, "-S", "-c", _ORPHAN, *_SLEEP), stdout=subprocess.PIPE, check=True
    )
    text = f"{os.getpid()} {child.pid} {orphan.stdout.decode().strip()}\n"
    (marks / f"helpers{rank}.{os.getpid()}").write_text(text)


def helpers_of(marks: Path) -> tuple[int, ...]:
    """Every rank that wrote down its helpers, and these."""
    return tuple(int(pid) for path in marks.glob("helpers*") for pid in path.read_text().split())


def _begin(file: Path, carry_out: Callable[[], Any]) -> Callable[[], Any]:
    def begin() -> None:
        file.write_text(str(os.getpid()))
        carry_out()

    return begin


def _begin_in(method: str, begin: Callable[[], Any]) -> None:
    call = RankHost.call

    def call_with_fault(self: RankHost, called: str, arguments: tuple[Any, ...]) -> Any:
        if called == method:
            begin()
        return call(self, called, arguments)

    RankHost.call = call_with_fault  # type: ignore[method-assign, assignment]


def _stay() -> None:
    while True:
        time.sleep(60)


KINDS: dict[str, Callable[[], Any]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    # Called with the GIL held, which `ctypes.CDLL` would let go of: no other thread of the rank runs on.
    "native": lambda: ctypes.PyDLL(None).sleep(600),
    "stay": _stay,
}
