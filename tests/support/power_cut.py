"""Power cuts under writers: ``unshare ... python -m tests.support.power_cut OPTIONS`` prints what they lost.

Each cut: mount an image, let processes publish launches into a store on it and acknowledge each through a
pipe, cut the power at a random moment, kill the processes, mount again, and compare what is there
with what was acknowledged. The comparison knows every byte from the launch's number and does not rely on
the store's own `verify`, which runs beside it.

Invariant: this process forks, so it starts no thread and opens no store itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import select
import shutil
import stat
import sys
import time
from pathlib import Path
from typing import Literal

from tests.support.forks import FORK, in_a_fork
from tests.support.loop_mounts import FileSystem, LoopMount
from tests.support.sealed_launches import blobs_of, fetch_laid, launch_key, lay_launch, publish_laid
from tests.support.stored import OFF, stored
from warmrank.cache_store.backends import directory
from warmrank.cache_store.backends.directory import DirectoryBackend, Flush
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.layout import manifest_name, record_name
from warmrank.cache_store.store import Store

Leave = Literal["nothing", "files", "names", "both"]
WORLD_SIZE = 2
_WRITERS = 2
_CUTS_AN_IMAGE = 20
_FIRST_ANSWER_S = 20.0
_ROOM_FOR_SEEDS = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to try.

    Attributes:
        work: an empty directory for images, mount point and what is published.
        file_system: the image's type.
        flush: how the store flushes.
        cuts: how many.
        leave: which flushes are left out; with any of them the store must lose something.
        until_lost: stop at the first loss, because one is enough.
        seed: of the moments.
    """

    work: str
    file_system: FileSystem
    flush: Flush
    cuts: int
    leave: Leave = "nothing"
    until_lost: bool = False
    seed: int = 0


@dataclasses.dataclass(slots=True, kw_only=True)
class Toll:
    """What all cuts together cost.

    Attributes:
        cuts: power cuts.
        acknowledged: launches of which a writer said that they are committed.
        lost: acknowledged launches of which a file is not there.
        torn: files under their names that do not hold what they must, and stores that do not open.
        examples: the first few of them.
        seconds: for all cuts.
    """

    cuts: int = 0
    acknowledged: int = 0
    lost: int = 0
    torn: int = 0
    examples: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


def run(options: Options) -> Toll:
    toll = Toll()
    work = Path(options.work)
    mount = LoopMount(file_system=options.file_system, image=work / "image", point=work / "mounted")
    randomness = random.Random(options.seed)
    started = time.monotonic()
    acknowledged: dict[int, str] = {}
    for number in range(options.cuts):
        if number % _CUTS_AN_IMAGE == 0:
            acknowledged.clear()
            mount.make()
        mount.mount()
        try:
            new = _write_and_cut(options, mount, number, delay_s=randomness.uniform(0.005, 0.12))
        finally:
            mount.unmount()
        acknowledged.update(new)
        mount.mount()
        try:
            _take_stock(options, mount, number, acknowledged, toll)
        finally:
            mount.unmount()
        toll.cuts += 1
        toll.acknowledged += len(new)
        if options.until_lost and toll.lost:
            break
    toll.seconds = time.monotonic() - started
    return toll


def _write_and_cut(options: Options, mount: LoopMount, number: int, *, delay_s: float) -> dict[int, str]:
    """Number and record of each launch that was acknowledged before the cut."""
    reader, writer = os.pipe()
    writers = [
        FORK.Process(target=_publish_for_ever, args=(options, number, index, writer))
        for index in range(_WRITERS)
    ]
    for process in writers:
        process.start()
    os.close(writer)
    if number % 2 == 0:  # on a busy machine most cuts would come before anything was acknowledged
        select.select([reader], [], [], _FIRST_ANSWER_S)
    time.sleep(delay_s)
    mount.cut_power()
    for process in writers:
        process.kill()
        process.join()
    with os.fdopen(reader, "r") as lines:
        return {int(seed): record for seed, record in (line.split() for line in lines)}


def _publish_for_ever(options: Options, number: int, index: int, writer: int) -> None:
    _leave_out(options.leave)
    cache = Path(options.work) / f"cache{index}"
    with contextlib.suppress(StoreError):  # the power is off, or was off once too often without a flush
        store = _open(options)
        # Writers share every number but the last bit, and so some blobs.
        for turn in range(_ROOM_FOR_SEEDS // 2):
            seed = number * _ROOM_FOR_SEEDS + turn * _WRITERS + index
            shutil.rmtree(cache, ignore_errors=True)
            manifests = lay_launch(cache, seed, WORLD_SIZE)
            record, _ = publish_laid(store, cache, seed, manifests)
            os.write(writer, f"{seed} {record}\n".encode())


def _take_stock(
    options: Options, mount: LoopMount, number: int, acknowledged: dict[int, str], toll: Toll
) -> None:
    root = mount.point / "store"
    lost, torn = _compare(root, acknowledged)
    try:
        torn += in_a_fork(lambda: _ask_the_store(options, number))
    except EOFError:
        torn.append("the check of the store ended early")
    toll.lost += len(lost)
    toll.torn += len(torn)
    toll.examples += [f"cut {number}: {text}" for text in (*lost, *torn)][: 10 - len(toll.examples)]
    for seed in lost:
        del acknowledged[int(seed.split()[1])]  # counted once


def _compare(root: Path, acknowledged: dict[int, str]) -> tuple[list[str], list[str]]:
    """Acknowledged launches that are not whole, and blobs that do not hold what their names say."""
    torn = [
        f"{path.name[:12]} has {path.stat().st_size} bytes"
        for path in stored(root, "cas")
        if digest_bytes(path.read_bytes()).sha256 != path.name
    ]
    lost = [
        f"launch {seed} lacks {missing[0]}"
        for seed, record in acknowledged.items()
        if (missing := _missing(root, seed, record))
    ]
    return lost, torn


def _missing(root: Path, seed: int, record: str) -> list[str]:
    path = root / record_name("launch", launch_key(seed), record)
    names = [name for name in blobs_of(seed, WORLD_SIZE) if not (root / name).is_file()]
    if not path.is_file():
        return [*names, "its record"]
    try:
        payload = json.loads(path.read_bytes().split(b"\n")[1])
    except (ValueError, IndexError):
        return [*names, "a readable record"]
    manifests = [manifest_name(ref["manifest_key"]) for ref in payload["partitions"]]
    pinned = [ref["manifest_sha256"] for ref in payload["partitions"]]
    return names + [
        name
        for name, sha256 in zip(manifests, pinned, strict=True)
        if not (root / name).is_file() or digest_bytes((root / name).read_bytes()).sha256 != sha256
    ]


def _ask_the_store(options: Options, number: int) -> list[str]:
    """What the store itself says after the cut, and whether it can be published to again."""
    problems: list[str] = []
    try:
        store = _open(options)
        problems += store.verify().faults
        cache = Path(options.work) / "cache"
        seed = number * _ROOM_FOR_SEEDS + _ROOM_FOR_SEEDS - 1
        publish_laid(store, cache, seed, lay_launch(cache, seed, WORLD_SIZE))
        num_partitions, errors = fetch_laid(store, Path(options.work) / "fetched", seed)
        problems += [str(error) for error in errors]
        if num_partitions != WORLD_SIZE:
            problems.append(f"a launch published after the cut has {num_partitions} partitions")
    except StoreError as error:
        problems.append(str(error))
    finally:
        for name in ("cache", "fetched"):
            shutil.rmtree(Path(options.work) / name, ignore_errors=True)
    return problems


def _open(options: Options) -> Store:
    root = Path(options.work) / "mounted" / "store"
    return Store(DirectoryBackend(root, flush=options.flush), trust=OFF, location=str(root))


def _leave_out(leave: Leave) -> None:
    """Take flushes out of this process, which only writes and is killed soon."""
    if leave == "nothing":
        return
    real = os.fsync

    def fsync(descriptor: int) -> None:
        kind = "names" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "files"
        if leave not in (kind, "both"):
            real(descriptor)

    os.fsync = fsync  # type: ignore[assignment]
    directory._sync_file_system = lambda path: None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dataclasses.asdict(run(Options(**json.loads(sys.argv[1]))))))
