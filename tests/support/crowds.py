"""Many processes at one store, and evicts beside them."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

from tests.support.forks import FORK, crowd, in_a_fork
from tests.support.sealed_launches import fetch_laid, files_of, launch_key, lay_launch, publish_laid
from tests.support.stored import FUNCTIONS, LAUNCH_KEY, make_partition, make_record, open_store
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Conflict, NotInStore
from warmrank.cache_store.gc import evict as evicting
from warmrank.cache_store.gc.evict import EvictPolicy
from warmrank.cache_store.layout import blob_name, record_name, trash_name
from warmrank.cache_store.records.manifest import utc_now
from warmrank.cache_store.steps import EVENT

THREADS = 4
_ENOUGH_MOVES = 50


def race_for_names(store: Path, processes: int, rounds: int) -> list[str]:
    """Writers, each with bytes of its own, for one name a round; says what is wrong."""
    barrier = FORK.Barrier(processes * THREADS)

    def work(index: int) -> dict[int, list[str]]:
        backend = DirectoryBackend(store)
        with ThreadPoolExecutor(THREADS) as pool:
            won = pool.map(lambda n: _race(backend, barrier, index * THREADS + n, rounds), range(THREADS))
            return {index * THREADS + n: names for n, names in enumerate(won)}

    DirectoryBackend(store)
    winners: dict[str, list[int]] = {}
    for said in crowd(processes, work):
        for writer, names in said.items():
            for name in names:
                winners.setdefault(name, []).append(writer)
    problems = []
    for turn in range(rounds):
        name = _contested(turn)
        (winner, *others) = winners.get(name, [-1])
        if winner < 0 or others or (store / name).read_bytes() != _bytes_of(winner, turn):
            problems.append(f"round {turn}: winners {winners.get(name, [])}")
    return problems


def _race(backend: DirectoryBackend, barrier: Barrier, writer: int, rounds: int) -> list[str]:
    won: list[str] = []
    for turn in range(rounds):
        data = _bytes_of(writer, turn)
        file = NewFile(name=_contested(turn), source=data, expected=digest_bytes(data))
        barrier.wait()
        won += backend.put_new([file])
    return won


def _contested(turn: int) -> str:
    return record_name("launch", launch_key(turn), launch_key(turn))


def _bytes_of(writer: int, turn: int) -> bytes:
    return f"{writer} {turn} ".encode() * 50


def race_for_manifests(root: Path, processes: int, rounds: int) -> dict[str, Any]:
    """Publishers of one partition, each with other bytes of one function; how many manifests each created."""
    barrier = FORK.Barrier(processes)

    def work(index: int) -> dict[str, Any]:
        created, refs = 0, []
        for turn in range(rounds):
            cache = root / f"cache{index}-{turn}"
            own = {"Llama.decode": f"compiled by {index}".encode()}
            manifest = make_partition(cache, functions=FUNCTIONS | own)
            store = open_store(root / f"store{turn}")
            barrier.wait()
            report = store.publish_partition(LAUNCH_KEY, manifest, cache)
            created += report.created
            refs.append(report.ref.manifest_sha256)
            record = make_record((report.ref,), created=utc_now())
            store.commit_launch(record)
        return {"created": created, "refs": refs}

    said = crowd(processes, work)
    faults = [open_store(root / f"store{turn}").verify().faults for turn in range(rounds)]
    return {
        "created": sum(item["created"] for item in said),
        "versions": [len({item["refs"][turn] for item in said}) for turn in range(rounds)],
        "faults": [fault for found in faults for fault in found],
    }


def read_while_others_write(store: Path, readers: int, reads: int) -> dict[str, Any]:
    """Readers of blobs that another process publishes, moves into the trash and back; what is wrong.

    Each reads so often, and on until the other has moved some.
    """
    moved = FORK.Event()
    datas = [random.Random(number).randbytes(40 + 997 * number) for number in range(24)]
    names = [blob_name(digest_bytes(data).sha256) for data in datas]

    def work(index: int) -> dict[str, Any]:
        backend = DirectoryBackend(store)
        if index == 0:
            return _come_and_go(backend, dict(zip(names, datas, strict=True)), store / "stop", moved)
        done, found, partial = 0, 0, []
        randomness = random.Random(index)
        while done < reads or not moved.is_set():
            done += 1
            number = randomness.randrange(len(names))
            try:
                with backend.open(names[number]) as file:
                    data = file.read()
            except NotInStore:
                continue
            found += 1
            if data != datas[number]:
                partial.append(names[number])
        with (store / "stop").open("a") as file:
            file.write("x")
        return {"done": done, "found": found, "partial": partial}

    DirectoryBackend(store)
    (store / "stop").touch()
    said = crowd(1 + readers, work)
    return {
        "moves": said[0]["moves"],
        "done": sum(item["done"] for item in said[1:]),
        "found": sum(item["found"] for item in said[1:]),
        "partial": [name for item in said[1:] for name in item["partial"]],
    }


def _come_and_go(
    backend: DirectoryBackend, datas: dict[str, bytes], stop: Path, moved: Event
) -> dict[str, Any]:
    """Publish, take away, bring back and delete, until the first reader is done."""
    from datetime import UTC, datetime

    moves = 0
    randomness = random.Random(0)
    while moves <= _ENOUGH_MOVES or not stop.stat().st_size:
        name = randomness.choice(list(datas))
        trash = trash_name(name, datetime.now(UTC))
        backend.put_new([NewFile(name=name, source=datas[name], expected=digest_bytes(datas[name]))])
        moves += backend.move(name, trash)
        if randomness.random() < 0.5:
            backend.move(trash, name)
        backend.move(trash, None)
        if moves == _ENOUGH_MOVES:
            moved.set()
    return {"moves": moves}


def fetch_at_once(store: Path, source: Path, cache: Path, seed: int, fetchers: int) -> list[dict[str, Any]]:
    """Fetchers of one launch into one cache directory; what each copied, and the memory that it took."""
    manifests = lay_launch(source, seed, 2)
    in_a_fork(lambda: publish_laid(open_store(store), source, seed, manifests)[0])
    barrier = FORK.Barrier(fetchers)

    def work(index: int) -> dict[str, Any]:
        opened = open_store(store)
        records = opened.launches(launch_key(seed))
        before = _peak_bytes()
        barrier.wait()
        outcome = opened.fetch_partitions(records[0].partitions, cache)
        return {
            "read": outcome.bytes_read,
            "faults": [str(fault.error) for fault in outcome.faults],
            "partitions": len(outcome.partitions),
            "memory": _peak_bytes() - before,
        }

    return crowd(fetchers, work)


def launch_of_many_ranks(
    store: Path, source: Path, cache: Path, seed: int, world_size: int
) -> dict[str, Any]:
    """Publish, commit and fetch a launch of many ranks; what is wrong, and the memory that it took."""
    manifests = lay_launch(source, seed, world_size)
    before = _peak_bytes()
    opened = open_store(store)
    publish_laid(opened, source, seed, manifests)
    num_partitions, errors = fetch_laid(opened, cache, seed)
    memory = _peak_bytes() - before
    problems = [*opened.verify().faults, *(str(error) for error in errors)]
    return {"partitions": num_partitions, "problems": problems, "memory": memory}


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


GRACE_S = 3600.0
WORLD_SIZE = 2
_READS_WITHIN_S = 60.0


def lay_store(store: Path, source: Path, seeds: list[int]) -> None:
    """Publish and commit launches."""
    for seed in seeds:
        root = source / str(seed)
        publish_laid(open_store(store), root, seed, lay_launch(root, seed, WORLD_SIZE))


def evict_ahead(
    store: Path, graces: float, keep: int = 1, older: bool = False, pin: int | None = None
) -> list[int]:
    """Evict once, when so many graces have passed; a launch may be pinned before."""
    if pin is not None:
        open_store(store).pin(launch_key(pin))
    return evict_at(store, graces, keep=keep, older=older)


def evict_at(store: Path, graces: float, *, keep: int, older: bool) -> list[int]:
    """Evict when so many graces have passed: numbers of files taken and deleted."""
    evicting.store_time_s = lambda places: time.time() + graces * GRACE_S
    policy = EvictPolicy(older_than_s=0.0 if older else None, keep=keep, grace_s=GRACE_S)
    (report,) = open_store(store).evict(policy).reports
    return [len(report.taken), report.num_deleted]


def publish_stopped(store: Path, source: Path, seed: int, step: str, nth: int) -> dict[str, Any]:
    """Publish and commit, but stand still at a step while another process evicts, three graces long."""
    root = source / str(seed)
    manifests = lay_launch(root, seed, WORLD_SIZE)
    evicter, tell = _start_evicter(store)
    stop_at(step, nth, tell)
    opened = open_store(store)
    refused = ""
    try:
        publish_laid(opened, root, seed, manifests)
    except (NotInStore, Conflict) as error:
        refused = str(error)
    os.close(tell)
    evicter.join()
    faults = list(opened.verify().faults)
    if refused:
        publish_laid(opened, root, seed, manifests)
    return {
        "evicter": evicter.exitcode,
        "evicted": json.loads(_said(store).read_text() or "[]"),
        "refused": refused,
        "faults": [*faults, *opened.verify().faults],
        "launches": len(opened.launches(launch_key(seed))),
    }


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


def _start_evicter(store: Path) -> tuple[ForkProcess, int]:
    """A process that evicts when it is told, and wakes this one; and where to tell it."""
    hear, tell = os.pipe()
    publisher = os.getpid()
    _said(store).write_text("")

    def evict() -> None:
        os.close(tell)
        try:
            if os.read(hear, 8):
                while _state(publisher) != "T":
                    time.sleep(0.0005)
                numbers = [evict_at(store, graces, keep=1, older=False) for graces in (1.5, 3.0, 4.5)]
                _said(store).write_text(json.dumps(numbers))
        finally:
            os.kill(publisher, signal.SIGCONT)

    evicter = FORK.Process(target=evict)
    evicter.start()
    os.close(hear)
    return evicter, tell


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def read_while_evicting(
    store: Path, source: Path, cache: Path, seed: int, pin: int, rounds: int
) -> dict[str, int]:
    """Launch and evict the same launch over and over, while another process fetches it."""
    root = source / str(seed)
    manifests = lay_launch(root, seed, WORLD_SIZE)
    hear, tell = os.pipe()
    reader = FORK.Process(target=_read_for_ever, args=(store, cache, seed, tell))
    reader.start()
    os.close(tell)
    try:
        opened = open_store(store)
        opened.pin(launch_key(pin))
        for _ in range(rounds):
            publish_laid(opened, root, seed, manifests)
            for graces in (1.5, 3.0):
                evict_at(store, graces, keep=0, older=True)
        select.select([hear], [], [], _READS_WITHIN_S)  # once, however little of this machine it gets
    finally:
        reader.kill()
        reader.join()
    with os.fdopen(hear, "rb") as said:
        outcomes = said.read()
    return {kind: outcomes.count(kind[:1].encode()) for kind in ("whole", "missed", "bad")}


def _read_for_ever(store: Path, cache: Path, seed: int, tell: int) -> None:
    """Fetch over and over, and tell what came of it: all, a miss, or wrong bytes."""
    expected = files_of(seed, WORLD_SIZE)
    while True:
        outcome = b"b"
        try:
            shutil.rmtree(cache, ignore_errors=True)
            num_partitions, errors = fetch_laid(open_store(store), cache, seed)
            data = {name: (cache / name).read_bytes() for name in expected if (cache / name).is_file()}
            if all(isinstance(error, NotInStore) for error in errors):
                if num_partitions and not errors:
                    outcome = b"w" if data == expected else b"b"
                else:
                    outcome = b"m" if all(expected[name] == data[name] for name in data) else b"b"
        finally:
            os.write(tell, outcome)
