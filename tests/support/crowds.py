"""Crowds of processes that publish into, read from, or fetch from one store at once.

They run in a trial of `tests.support.fault_child`: the trial's process forks the crowd before any of it
starts a thread, and adds up what they say.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any, NoReturn

from tests.support.sealed_launches import fetch_laid, launch_key, lay_launch, publish_laid
from tests.support.stored import FUNCTIONS, LAUNCH_KEY, make_partition, make_record, open_store
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import NotInStore
from warmrank.cache_store.layout import blob_name, launch_name, trash_name
from warmrank.cache_store.records.manifest import utc_now

Act = Callable[[], Any]
THREADS = 4
_ENOUGH_MOVES = 50


def race_for_names(store: str, processes: int, rounds: int) -> Act:
    """Writers, each with bytes of its own, for one name a round; says what is wrong."""
    barrier = multiprocessing.get_context("fork").Barrier(processes * THREADS)

    def work(index: int) -> dict[int, list[str]]:
        backend = DirectoryBackend(Path(store))
        with ThreadPoolExecutor(THREADS) as pool:
            won = pool.map(lambda n: _race(backend, barrier, index * THREADS + n, rounds), range(THREADS))
            return {index * THREADS + n: names for n, names in enumerate(won)}

    def act() -> list[str]:
        DirectoryBackend(Path(store))
        winners: dict[str, list[int]] = {}
        for said in crowd(processes, work):
            for writer, names in said.items():
                for name in names:
                    winners.setdefault(name, []).append(int(writer))
        problems = []
        for turn in range(rounds):
            name = _contested(turn)
            (winner, *others) = winners.get(name, [-1])
            if winner < 0 or others or (Path(store) / name).read_bytes() != _bytes_of(winner, turn):
                problems.append(f"round {turn}: winners {winners.get(name, [])}")
        return problems

    return act


def _race(backend: DirectoryBackend, barrier: Barrier, writer: int, rounds: int) -> list[str]:
    won: list[str] = []
    for turn in range(rounds):
        data = _bytes_of(writer, turn)
        file = NewFile(name=_contested(turn), source=data, expected=digest_bytes(data))
        barrier.wait()
        won += backend.put_new([file])
    return won


def _contested(turn: int) -> str:
    return launch_name(launch_key(turn), launch_key(turn))


def _bytes_of(writer: int, turn: int) -> bytes:
    return f"{writer} {turn} ".encode() * 50


def race_for_manifests(root: str, processes: int, rounds: int) -> Act:
    """Publishers of one partition, each with other bytes of one function; how many manifests each created."""

    def act() -> dict[str, Any]:
        barrier = multiprocessing.get_context("fork").Barrier(processes)

        def work(index: int) -> dict[str, Any]:
            created, refs = 0, []
            for turn in range(rounds):
                cache = Path(root) / f"cache{index}-{turn}"
                own = {"Llama.decode": f"compiled by {index}".encode()}
                manifest = make_partition(cache, functions=FUNCTIONS | own)
                store = open_store(Path(root) / f"store{turn}")
                barrier.wait()
                report = store.publish_partition(LAUNCH_KEY, manifest, cache)
                created += report.created
                refs.append(report.ref.manifest_sha256)
                record = make_record((report.ref,), created=utc_now())
                store.commit_launch(record)
            return {"created": created, "refs": refs}

        said = crowd(processes, work)
        faults = [open_store(Path(root) / f"store{turn}").verify().faults for turn in range(rounds)]
        return {
            "created": sum(item["created"] for item in said),
            "versions": [len({item["refs"][turn] for item in said}) for turn in range(rounds)],
            "faults": [fault for found in faults for fault in found],
        }

    return act


def read_while_others_write(store: str, readers: int, reads: int) -> Act:
    """Readers of blobs that another process publishes, moves into the trash and back; what is wrong.

    Each reads so often, and on until the other has moved some.
    """
    moved = multiprocessing.get_context("fork").Event()
    datas = [random.Random(number).randbytes(40 + 997 * number) for number in range(24)]
    names = [blob_name(digest_bytes(data).sha256) for data in datas]

    def work(index: int) -> dict[str, Any]:
        backend = DirectoryBackend(Path(store))
        if index == 0:
            return _come_and_go(backend, dict(zip(names, datas, strict=True)), Path(store) / "stop", moved)
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
        with (Path(store) / "stop").open("a") as file:
            file.write("x")
        return {"done": done, "found": found, "partial": partial}

    def act() -> dict[str, Any]:
        DirectoryBackend(Path(store))
        (Path(store) / "stop").touch()
        said = crowd(1 + readers, work)
        return {
            "moves": said[0]["moves"],
            "done": sum(item["done"] for item in said[1:]),
            "found": sum(item["found"] for item in said[1:]),
            "partial": [name for item in said[1:] for name in item["partial"]],
        }

    return act


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


def fetch_at_once(store: str, source: str, cache: str, seed: int, fetchers: int) -> Act:
    """Fetchers of one launch into one cache directory; what each copied, and the memory that it took."""
    manifests = lay_launch(Path(source), seed, 2)

    def act() -> list[dict[str, Any]]:
        _in_a_fork(lambda: publish_laid(open_store(Path(store)), Path(source), seed, manifests)[0])
        barrier = multiprocessing.get_context("fork").Barrier(fetchers)

        def work(index: int) -> dict[str, Any]:
            opened = open_store(Path(store))
            records = opened.launches(launch_key(seed))
            before = _peak_bytes()
            barrier.wait()
            outcome = opened.fetch_partitions(records[0].partitions, Path(cache))
            return {
                "read": outcome.bytes_read,
                "faults": [str(fault.error) for fault in outcome.faults],
                "partitions": len(outcome.partitions),
                "memory": _peak_bytes() - before,
            }

        return crowd(fetchers, work)

    return act


def launch_of_many_ranks(store: str, source: str, cache: str, seed: int, world_size: int) -> Act:
    """Publish, commit and fetch a launch of many ranks; what is wrong, and the memory that it took."""
    manifests = lay_launch(Path(source), seed, world_size)

    def act() -> dict[str, Any]:
        before = _peak_bytes()
        opened = open_store(Path(store))
        publish_laid(opened, Path(source), seed, manifests)
        num_partitions, errors = fetch_laid(opened, Path(cache), seed)
        memory = _peak_bytes() - before
        problems = [*opened.verify().faults, *(str(error) for error in errors)]
        return {"partitions": num_partitions, "problems": problems, "memory": memory}

    return act


def crowd(size: int, work: Callable[[int], Any]) -> list[Any]:
    """What each of ``size`` forked processes returned, in their order; keys of mappings become text."""
    readers = [_start(index, work) for index in range(size)]
    answers: list[bytes] = [b""] * size

    def collect(index: int) -> None:
        with os.fdopen(readers[index][1], "rb") as file:
            answers[index] = file.read()
        os.waitpid(readers[index][0], 0)

    threads = [threading.Thread(target=collect, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if silent := [index for index, answer in enumerate(answers) if not answer]:
        raise AssertionError(f"processes {silent} of a crowd ended early")
    return [json.loads(answer) for answer in answers]


def _in_a_fork(work: Callable[[], Any]) -> Any:
    return crowd(1, lambda _: work())[0]


def _start(index: int, work: Callable[[int], Any]) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _work_and_end(index, work, writer)
    os.close(writer)
    return pid, reader


def _work_and_end(index: int, work: Callable[[int], Any], writer: int) -> NoReturn:
    try:
        answer = json.dumps(work(index)).encode()
        while answer:
            answer = answer[os.write(writer, answer) :]
    except BaseException:  # noqa: BLE001 - the edge of a process; it is printed
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
