"""Trees in which no byte repeats, of many small files or one large: each verb beside ``cp``, and its CPU."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

from benchmarks.store_parts.timing import in_turn, settle, shell, timed
from benchmarks.store_parts.tree import MIB, describe, function_dir
from benchmarks.store_parts.verbs import open_store, publish, remove
from warmrank.cache_store.digests import CHUNK_BYTES, digest_file
from warmrank.cache_store.records.manifest import PartitionRef
from warmrank.cache_store.store import Store

KEYS = {"model": "benchmark"}
TOOL = "torchair"


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueShape:
    """A tree of ``num_files`` files of ``size_bytes`` of random bytes each."""

    num_files: int
    size_bytes: int


UNIQUE = (UniqueShape(num_files=3200, size_bytes=20 << 10), UniqueShape(num_files=1, size_bytes=2 << 30))
UNIQUE_SMALL = (UniqueShape(num_files=20, size_bytes=20 << 10), UniqueShape(num_files=1, size_bytes=2 * MIB))


def unique(work: Path, shape: UniqueShape, rounds: int) -> dict[str, Any]:
    """All verbs over one tree, each in turn with its peer, and its CPU beside hashing and copying once."""
    tree, store, fetched, pulled = work / "tree", work / "store", work / "fetched", work / "pulled"
    make(tree, shape)
    manifest = describe(tree, 0, 1, shape.num_files)
    beside = _Beside(work, rounds, floor_cpu_s(tree, work / "copy"))
    verbs: dict[str, Any] = {
        "publish": beside.measure(
            lambda: publish(store, tree, [manifest]), fresh=[store, tree / ".index"], peer=beside.cp_and_sync
        )
    }
    refs, reader = publish(store, tree, [manifest]), open_store(store)
    verbs["first fetch"] = beside.measure(
        lambda: fetch(reader, refs, fetched), fresh=[fetched], peer=beside.cp
    )
    verbs["fetch again"] = beside.measure(lambda: fetch(reader, refs, fetched), fresh=[], peer=beside.cp)
    verbs["sync push"] = beside.measure(lambda: push(store, tree), fresh=[store], peer=beside.cp_and_sync)
    beginning = open_store(store)

    def pull() -> None:
        beginning.pull_directory(TOOL, pulled, KEYS)

    verbs["sync pull"] = beside.measure(pull, fresh=[pulled, work / ".pulled.warmrank"], peer=beside.cp)
    verbs["pull again"] = beside.measure(pull, fresh=[], peer=beside.cp)
    return {"num_files": shape.num_files, "size_bytes": shape.size_bytes, "verbs": verbs}


class _Beside:
    """Measures verbs over the tree in ``work``, each beside a command that copies it."""

    def __init__(self, work: Path, rounds: int, floor_s: float) -> None:
        self._work, self._rounds, self._floor_s = work, rounds, floor_s
        self._tree, self._copy = work / "tree", work / "copy"

    def cp(self) -> None:
        """Copy the tree."""
        shell("cp", "-r", str(self._tree), str(self._copy))

    def cp_and_sync(self) -> None:
        """Copy the tree, durably."""
        shell("sh", "-c", f"cp -r '{self._tree}' '{self._copy}' && sync -f '{self._copy}'")

    def measure(
        self, verb: Callable[[], object], *, fresh: Sequence[Path], peer: Callable[[], None]
    ) -> dict[str, Any]:
        """Seconds of both, their ratio, and the verb's CPU time beside that of hashing and copying once."""
        cpu_s: list[float] = []

        def ours() -> float:
            remove(*fresh)
            settle(self._work)
            started_s = process_time()
            seconds = timed(verb)
            cpu_s.append(process_time() - started_s)
            return seconds

        def theirs() -> float:
            remove(self._copy)
            settle(self._work)
            return timed(peer)

        found = in_turn(self._rounds, ours, theirs)
        median_s = statistics.median(cpu_s)
        return found | {"cpu_s": median_s, "cpu_ratio": median_s / self._floor_s}


def make(tree: Path, shape: UniqueShape) -> None:
    """Write the tree."""
    for number in range(shape.num_files):
        path = tree / function_dir(0, 1, number) / "compiled_module"
        path.parent.mkdir(parents=True, mode=0o700)
        with path.open("wb") as file:
            path.chmod(0o600)
            for start in range(0, shape.size_bytes, CHUNK_BYTES):
                file.write(os.urandom(min(CHUNK_BYTES, shape.size_bytes - start)))
    tree.chmod(0o700)


def fetch(store: Store, refs: Sequence[PartitionRef], target: Path) -> None:
    """Fetch; a fault ends the benchmark."""
    outcome = store.fetch_partitions(refs, target)
    if outcome.faults:
        raise RuntimeError(f"not fetched: {outcome.faults[0].error}")


def push(store: Path, tree: Path) -> None:
    """Push into a store, which is made if absent."""
    open_store(store).push_directory(TOOL, tree, KEYS)


def floor_cpu_s(tree: Path, copy: Path) -> float:
    """CPU seconds of hashing all files once and of copying them once, in this thread."""
    files = [path for path in tree.rglob("*") if path.is_file()]
    copy.mkdir()
    started_s = process_time()
    for number, path in enumerate(files):
        digest_file(path)
        shutil.copyfile(path, copy / str(number))
    return process_time() - started_s
