"""The process that forks a child for every trial of a fault: ``python -m tests.support.fault_child``.

A trial is a line of JSON: the name of an action, its arguments, and the `Plan`. An action prepares and
returns what the plan then happens to. Each answer is one line: how the child ended, and what it said.

Invariant: this process forks, so it starts no thread and opens no store itself; the children do.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import crowds
from tests.support.faults import Plan, Tape, install, telling
from tests.support.sealed_launches import fetch_laid, files_of, launch_key, lay_launch, publish_laid
from tests.support.stored import open_store, tree
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreError

DAY_S = 24 * 3600.0
Act = Callable[[], Any]


def publish(store: str, source: str, seed: int, world_size: int = 2) -> Act:
    """Publish a launch and commit it."""
    manifests = lay_launch(Path(source), seed, world_size)

    def act() -> str:
        record, _ = publish_laid(open_store(Path(store)), Path(source), seed, manifests)
        return record

    return act


def fetch(store: str, cache: str, seed: int) -> Act:
    """Fetch all partitions of the newest record of a launch."""

    def act() -> int:
        num_partitions, errors = fetch_laid(open_store(Path(store)), Path(cache), seed)
        if errors:
            raise errors[0]
        return num_partitions

    return act


def publish_and_fetch(store: str, source: str, cache: str, seed: int) -> Act:
    """Everything that a cold launch and a warm one do with the store."""
    publishing, fetching = publish(store, source, seed), fetch(store, cache, seed)
    return lambda: (publishing(), fetching())


def survey(store: str, cache: str, seed: int) -> Act:
    """Say everything that is wrong with a store and a cache directory after a fault, however small."""

    def act() -> dict[str, Any]:
        opened = open_store(Path(store))
        report = opened.verify()
        return {
            "problems": [*report.faults, *half_laid_out(Path(cache), seed)],
            "launches": len(opened.launches(launch_key(seed))),
            "debris": debris(Path(store), Path(cache)),
        }

    return act


def recover(store: str, source: str, cache: str, seed: int) -> Act:
    """What the next launch does: publish, fetch, and leave nothing of the one that ended behind."""
    shutil.rmtree(source, ignore_errors=True)
    publishing, fetching = publish(store, source, seed), fetch(store, cache, seed)

    def act() -> dict[str, Any]:
        publishing()
        num_partitions = fetching()
        expected = files_of(seed, num_partitions)
        actual = laid_out(Path(cache))
        wrong = [name for name in expected if actual.get(name) != expected[name]]
        opened = open_store(Path(store))
        return {
            "problems": [*opened.verify().faults, *(f"{name} is not what it was" for name in wrong)],
            "partitions": num_partitions,
            "debris": debris(Path(store), Path(cache)),
        }

    return act


def debris(store: Path, cache: Path) -> list[str]:
    """Temporary files and directories in a store and in a cache directory."""
    found = list((store / "tmp").glob("*"))
    found += [
        path for path in cache.rglob("*") if path.name.startswith(".tmp-") or path.suffix in {".tmp", ".part"}
    ]
    return [str(path) for path in found]


def laid_out(cache: Path) -> dict[str, bytes]:
    """The artifacts of a cache directory: what a rank would find there."""
    files = tree(cache).items()
    return {name: data for name, data in files if not any(part.startswith(".") for part in Path(name).parts)}


def half_laid_out(cache: Path, seed: int, world_size: int = 2) -> list[str]:
    """Artifacts under their names whose bytes are not those of the launch."""
    expected = files_of(seed, world_size)
    return [
        f"{name} has other bytes: {digest_bytes(data)}"
        for name, data in laid_out(cache).items()
        if data != expected.get(name)
    ]


ACTIONS: dict[str, Callable[..., Act]] = {
    action.__name__: action
    for action in (
        publish, fetch, publish_and_fetch, survey, recover, crowds.race_for_names,
        crowds.race_for_manifests, crowds.read_while_others_write, crowds.fetch_at_once,
        crowds.launch_of_many_ranks, crowds.lay_store, crowds.evict_ahead, crowds.publish_stopped,
        crowds.read_while_evicting,
    )
}  # fmt: skip


def _serve() -> None:
    for line in sys.stdin:
        trial = json.loads(line)
        sys.stdout.write(json.dumps(_try(trial)) + "\n")
        sys.stdout.flush()


def _try(trial: dict[str, Any]) -> dict[str, Any]:
    pid, reader = telling(lambda: _run(trial))
    answered, overran = _read_until(reader, trial["time_s"])
    if overran:
        os.kill(pid, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    said = json.loads(answered) if answered else {}
    return {"exit": os.waitstatus_to_exitcode(status), "overran": overran, **said}


def _read_until(reader: int, time_s: float) -> tuple[bytes, bool]:
    deadline = time.monotonic() + time_s
    answer = b""
    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return answer, False
        answer += chunk
    return b"", True


def _run(trial: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    tape: Tape | None = None
    try:
        act = ACTIONS[trial["action"]](**trial["arguments"])
        tape = install(Plan(**{name: _as_planned(value) for name, value in trial["plan"].items()}))
        said["result"] = act()
    except StoreError as error:
        said["error"] = f"{type(error).__name__}: {error}"
    except BaseException as error:  # noqa: BLE001 - the edge of a process; it is told
        said["bug"] = f"{type(error).__name__}: {error}"
        sys.excepthook(*sys.exc_info())
    if tape is not None:
        said |= {"steps": tape.steps, "calls": tape.calls}
        tape.plan = Plan()  # the answer itself must get through
    return said


def _as_planned(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value  # JSON knows no tuples


if __name__ == "__main__":
    _serve()
