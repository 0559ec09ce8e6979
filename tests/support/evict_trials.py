"""Trials of evicts for `tests.support.fault_child`: each runs in a fork that has no threads yet.

The clock of an evict is set ahead by the hour, so that a grace passes without waiting for it.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tests.support.sealed_launches import fetch_laid, files_of, launch_key, lay_launch, publish_laid
from tests.support.stored import open_store
from warmrank.cache_store.errors import Conflict, NotInStore
from warmrank.cache_store.gc import evict as evicting
from warmrank.cache_store.gc.evict_plan import EvictPolicy
from warmrank.cache_store.steps import EVENT

GRACE_S = 3600.0
WORLD_SIZE = 2
_READS_WITHIN_S = 60.0
Act = Callable[[], Any]


def lay_store(store: str, source: str, seeds: list[int]) -> Act:
    """Publish and commit launches."""

    def act() -> None:
        for seed in seeds:
            root = Path(source) / str(seed)
            publish_laid(open_store(Path(store)), root, seed, lay_launch(root, seed, WORLD_SIZE))

    return act


def evict_ahead(store: str, graces: float, keep: int = 1, older: bool = False, pin: int | None = None) -> Act:
    """Evict once, when so many graces have passed; a launch may be pinned before."""

    def act() -> list[int]:
        if pin is not None:
            open_store(Path(store)).pin(launch_key(pin))
        return evict_at(Path(store), graces, keep=keep, older=older)

    return act


def evict_at(store: Path, graces: float, *, keep: int, older: bool) -> list[int]:
    """Evict when so many graces have passed: numbers of files taken and deleted."""
    evicting.store_time_s = lambda backend: time.time() + graces * GRACE_S
    policy = EvictPolicy(older_than_s=0.0 if older else None, keep=keep, grace_s=GRACE_S)
    (report,) = open_store(store).evict(policy).reports
    return [len(report.taken), report.num_deleted]


def publish_stopped(store: str, source: str, seed: int, step: str, nth: int) -> Act:
    """Publish and commit, but stand still at a step while another process evicts, three graces long."""
    root = Path(source) / str(seed)
    manifests = lay_launch(root, seed, WORLD_SIZE)

    def act() -> dict[str, Any]:
        evicter, tell = _start_evicter(Path(store))
        stop_at(step, nth, tell)
        opened = open_store(Path(store))
        refused = ""
        try:
            publish_laid(opened, root, seed, manifests)
        except (NotInStore, Conflict) as error:
            refused = str(error)
        os.close(tell)
        _, status = os.waitpid(evicter, 0)
        faults = list(opened.verify().faults)
        if refused:
            publish_laid(opened, root, seed, manifests)
        return {
            "evicter": os.waitstatus_to_exitcode(status),
            "evicted": json.loads(_said(Path(store)).read_text() or "[]"),
            "refused": refused,
            "faults": [*faults, *opened.verify().faults],
            "launches": len(opened.launches(launch_key(seed))),
        }

    return act


def stop_at(step: str, nth: int, tell: int) -> None:
    """Stop this process at the nth time that it reaches a step, and say so before."""
    reached: list[str] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == EVENT and arguments[0] == step:
            reached.append(step)
            if len(reached) == nth:
                os.write(tell, b"stopping")
                # To this thread: one to the process may stop it a moment later, when the next step is done.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    sys.addaudithook(hook)


def _said(store: Path) -> Path:
    return store.parent / "evicted.json"


def _start_evicter(store: Path) -> tuple[int, int]:
    """A process that evicts when it is told, and wakes this one; its id, and where to tell it."""
    hear, tell = os.pipe()
    publisher = os.getpid()
    _said(store).write_text("")
    pid = os.fork()
    if not pid:
        os.close(tell)
        _evict_while_stopped(store, hear, publisher)
    os.close(hear)
    return pid, tell


def _evict_while_stopped(store: Path, hear: int, publisher: int) -> NoReturn:
    status = 1
    try:
        if os.read(hear, 8):
            while _state(publisher) != "T":
                time.sleep(0.0005)
            numbers = [evict_at(store, graces, keep=1, older=False) for graces in (1.5, 3.0, 4.5)]
            _said(store).write_text(json.dumps(numbers))
            os.kill(publisher, signal.SIGCONT)
        status = 0
    except BaseException:  # noqa: BLE001 - the edge of a process
        sys.excepthook(*sys.exc_info())
        os.kill(publisher, signal.SIGCONT)
    os._exit(status)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def read_while_evicting(store: str, source: str, cache: str, seed: int, pin: int, rounds: int) -> Act:
    """Launch and evict the same launch over and over, while another process fetches it."""
    root = Path(source) / str(seed)
    manifests = lay_launch(root, seed, WORLD_SIZE)

    def act() -> dict[str, int]:
        hear, tell = os.pipe()
        reader = os.fork()
        if not reader:
            os.close(hear)
            _read_until_killed(Path(store), Path(cache), seed, tell)
        os.close(tell)
        try:
            opened = open_store(Path(store))
            opened.pin(launch_key(pin))
            for _ in range(rounds):
                publish_laid(opened, root, seed, manifests)
                for graces in (1.5, 3.0):
                    evict_at(Path(store), graces, keep=0, older=True)
            select.select([hear], [], [], _READS_WITHIN_S)  # once, however little of this machine it gets
        finally:
            os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)
        with os.fdopen(hear, "rb") as said:
            outcomes = said.read()
        return {kind: outcomes.count(kind[:1].encode()) for kind in ("whole", "missed", "bad")}

    return act


def _read_until_killed(store: Path, cache: Path, seed: int, tell: int) -> NoReturn:
    expected = files_of(seed, WORLD_SIZE)
    try:
        while True:
            shutil.rmtree(cache, ignore_errors=True)
            num_partitions, errors = fetch_laid(open_store(store), cache, seed)
            data = {name: (cache / name).read_bytes() for name in expected if (cache / name).is_file()}
            if any(not isinstance(error, NotInStore) for error in errors):
                os.write(tell, b"b")
            elif num_partitions and not errors:
                os.write(tell, b"w" if data == expected else b"b")
            else:
                os.write(tell, b"m" if all(expected[name] == data[name] for name in data) else b"b")
    except BaseException:  # noqa: BLE001 - the edge of a process
        sys.excepthook(*sys.exc_info())
        os.write(tell, b"b")
    os._exit(1)
