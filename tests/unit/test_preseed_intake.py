"""The bandwidth limit, what a preseed that was killed leaves, and what is read again."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest
from filelock import FileLock, Timeout
from hypothesis import given
from hypothesis import strategies as st

from tests.support.launched import loaded_config, store_launch
from tests.support.stored import REPOSITORY, blob_path, overwrite, tree
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.errors import Corrupt, UnusableCache
from warmrank.cache_store.fetching import arrivals as arrivals_room
from warmrank.cache_store.fetching import copying
from warmrank.cache_store.fetching.arrivals import INCOMING, Arrivals
from warmrank.cache_store.fetching.copying import BlobSource, CountBytes
from warmrank.cache_store.fetching.intake import Intake
from warmrank.cache_store.fetching.pace import BURST_S, Pace
from warmrank.cache_store.node.private_files import DEBRIS_AGE_S, create_private
from warmrank.cache_store.node.single_flight import BEAT_NAME, LOCKS, acquire, single_flight
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.seed.here import intake_of, seed_here
from warmrank.orchestrator.seed.options import SeedOptions, parse_rate

A, B = digest_bytes(b"a" * 100), digest_bytes(b"b" * 100)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@given(
    st.lists(
        st.tuples(st.integers(min_value=1, max_value=10**6), st.floats(min_value=0, max_value=9)), max_size=30
    )
)
def test_limit_holds_over_any_span(takes: list[tuple[int, float]]):
    now = Time()
    pace = Pace(10_000.0, clock=now, sleep=now.sleep)
    began_s, total = now.now_s, 0
    for num_bytes, idle_s in takes:
        now.now_s += idle_s
        pace.take(num_bytes)
        total += num_bytes
        assert total <= 10_000.0 * (now.now_s - began_s + BURST_S) * (1 + 1e-9) + 1e-3


def test_limit_is_used_to_the_full():
    now = Time()
    pace = Pace(1000.0, clock=now, sleep=now.sleep)
    for _ in range(100):
        pace.take(100)
    assert now.now_s - 50.0 == pytest.approx(10.0 - BURST_S)


def test_pause_is_not_made_up_for():
    now = Time()
    pace = Pace(1000.0, clock=now, sleep=now.sleep)
    now.now_s += 1000.0
    began_s = now.now_s
    pace.take(10_000)
    assert now.now_s - began_s == pytest.approx(10.0 - BURST_S)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100MB/s", 1e8),
        ("1.5GiB/s", 1.5 * 2**30),
        ("800k", 8e5),
        ("250000", 250000.0),
        ("2 MiB", 2.0**21),
        ("64KB/s", 64e3),
    ],
)
def test_rate_is_read(text: str, rate: float):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1MB/s", "0", "10", "1e9", "100Mbit/s", "MB", "nan", "ki"])
def test_rate_that_is_none_is_refused(text: str):
    with pytest.raises(BadArgument, match="--limit: expected"):
        parse_rate(text)


def test_store_is_read_no_faster_than_the_limit(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", functions={"Llama.decode": b"d" * 5000})
    slept: list[float] = []
    seed_here(config, intake=Intake(pace=Pace(1000.0, clock=lambda: 0.0, sleep=slept.append)))
    assert max(slept) == pytest.approx(5.0 - BURST_S)


def test_fetch_under_a_low_limit_says_often_that_it_gets_on(tmp_path: Path):
    """A piece that took longer than others wait would let them go on beside it."""
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", functions={"Llama.decode": bytes(200_000)})
    now, counted_s = Time(), [50.0]
    pace = Pace(10_000.0, clock=now, sleep=now.sleep)
    take = pace.take

    def noted(num_bytes: int) -> None:
        take(num_bytes)
        counted_s.append(now.now_s)

    pace.take = noted  # type: ignore[method-assign]
    seed_here(config, intake=Intake(pace=pace))
    assert now.now_s > 69.0
    assert max(later - earlier for earlier, later in itertools.pairwise(counted_s)) < 2.0


def arrive(arrivals: Arrivals, data: bytes) -> None:
    part = arrivals.part()
    with create_private(part) as file:
        file.write(data)
    arrivals.accept(part, digest_bytes(data))


def test_blobs_of_a_fetch_that_failed_are_left_to_the_next_one(tmp_path: Path):
    first = Arrivals(tmp_path)
    arrive(first, b"a" * 100)
    first.close()
    counted: list[int] = []
    assert Arrivals(tmp_path).resume([A, B], counted.append) == [B]
    assert counted == [100]


def test_blobs_of_a_fetch_that_runs_are_its_own(tmp_path: Path):
    first = Arrivals(tmp_path)
    arrive(first, b"a" * 100)
    assert Arrivals(tmp_path).resume([A], lambda _: None) == [A]
    assert first.path(A).exists()


def test_process_of_another_container_keeps_its_blobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Containers may share a host's name, and then what this one takes for an ended process may run."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    name = f"{os.uname().nodename}-{ended.pid}-{'0' * 32}"
    monkeypatch.setattr(arrivals_room, "temporary_name", lambda: name)
    theirs = Arrivals(tmp_path)
    arrive(theirs, b"a" * 100)
    part = theirs.part()
    create_private(part).close()
    monkeypatch.undo()
    arrivals_room._open_names.discard(name)
    ours = Arrivals(tmp_path)
    assert ours.resume([A], lambda _: None) == [A]
    ours.close()
    theirs.keep(part, A)
    theirs.hand_over(A, tmp_path / "there")
    theirs.close()
    assert list((tmp_path / INCOMING).iterdir()) == []


def test_full_disk_is_not_kept_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What has arrived is worth less than the room that a launch needs to compile."""
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", functions={"Llama.small": b"s" * 100, "Llama.large": b"l" * 5000})
    copy_blob = copying.copy_blob

    def copy(source: BlobSource, path: Path, count: CountBytes) -> Digest:
        if source.size_bytes == 5000:
            full = OSError(errno.ENOSPC, "No space left on device")
            raise UnusableCache(what="f", where="w", expected="e", actual="a", remedy="r") from full
        return copy_blob(source, path, count)

    monkeypatch.setattr(copying, "copy_blob", copy)
    assert seed_here(config).faults
    assert list((config.cache_dir / INCOMING).rglob("*")) == []


def test_blob_that_was_damaged_meanwhile_is_not_taken_over(tmp_path: Path):
    first = Arrivals(tmp_path)
    arrive(first, b"a" * 100)
    first.close()
    (left,) = (tmp_path / INCOMING).glob(f"*/{A.sha256}")
    left.write_bytes(b"x" * 100)
    assert Arrivals(tmp_path).resume([A], lambda _: None) == [A]
    assert not left.exists()


def test_what_is_not_the_blob_is_thrown_away(tmp_path: Path):
    arrivals = Arrivals(tmp_path)
    part = arrivals.part()
    create_private(part).close()
    with pytest.raises(Corrupt):
        arrivals.accept(part, A)
    assert not arrivals.has(A)
    assert not part.exists()


def test_what_nobody_comes_for_goes_after_a_day(tmp_path: Path):
    first = Arrivals(tmp_path)
    arrive(first, b"a" * 100)
    first.close()
    (left,) = (tmp_path / INCOMING).iterdir()
    Arrivals(tmp_path).close()
    assert left.exists()
    old_s = time.time() - DEBRIS_AGE_S - 1
    os.utime(left, (old_s, old_s))
    Arrivals(tmp_path).close()
    assert not left.exists()


def test_nothing_is_left_of_a_fetch_that_ends_well(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work")
    seed_here(config)
    assert list((config.cache_dir / INCOMING).iterdir()) == []


KILLED = """
import os, signal, sys
from warmrank.cache_store.fetching.intake import Intake
from warmrank.cache_store.fetching.pace import Pace
from warmrank.orchestrator.config.reading import load
from warmrank.orchestrator.seed.here import seed_here
from pathlib import Path

def sleep(_):
    begun = [p for p in Path(sys.argv[2]).rglob("*") if len(p.name) == 64]
    if len(begun) >= 6:  # at most two of them on their way
        os.kill(os.getpid(), signal.SIGKILL)

seed_here(load(Path(sys.argv[1])), intake=Intake(pace=Pace(1.0, sleep=sleep)))
"""


def test_killed_preseed_leaves_verified_blobs_and_the_next_copies_what_is_missing(tmp_path: Path):
    config = loaded_config(tmp_path)
    functions = {f"Llama.f{number}": bytes([number]) * 1000 for number in range(8)}
    store_launch(config, tmp_path / "work", functions=functions)
    command = [sys.executable, "-c", KILLED, str(tmp_path / "tiny.yaml"), str(config.cache_dir)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    found = seed_here(config)
    assert (found.faults, found.num_files) == ((), 16)
    assert found.bytes_resumed >= 3000
    assert found.bytes_resumed + found.bytes_from_store == 8000
    assert not list((config.cache_dir / INCOMING).rglob("*.part"))


def test_fault_of_one_blob_keeps_the_others_for_the_next_try(tmp_path: Path):
    config = loaded_config(tmp_path)
    functions = {"Llama.good": b"good" * 100, "Llama.bad": b"bad" * 100}
    store_launch(config, tmp_path / "work", functions=functions)
    overwrite(blob_path(tmp_path / "store", functions["Llama.bad"]), b"x" * 300)
    assert seed_here(config).faults
    assert tree(config.cache_dir).keys() == {".unverified"} & tree(config.cache_dir).keys()
    store_launch(config, tmp_path / "work", functions=functions)  # which mends it
    found = seed_here(config)
    assert (found.faults, found.bytes_resumed, found.bytes_from_store) == ((), 400, 300)


def test_verify_reads_again_what_did_not_seem_to_change(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", functions={"Llama.decode": b"right"})
    seed_here(config)
    opened: list[str] = []
    damaged = next(path for path in config.cache_dir.rglob("compiled_module"))
    status = damaged.stat()
    damaged.write_bytes(b"wrong")
    os.utime(damaged, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = seed_here(config, intake=intake_of(SeedOptions(verify=True)))
    opened += [path.read_text() for path in sorted(damaged.parent.glob("compiled_module*"))]
    assert (found.bytes_copied, sorted(opened)) == (5, ["right", "wrong"])


class HeldLock:
    """A lock that another process has for so many looks, and gets on with its work during some of them."""

    def __init__(self, now: Time, beat_file: Path, *, looks: int, beats: int) -> None:
        self.timeout = 0.0
        self.is_taken = False
        self._now, self._beat_file = now, beat_file
        self._looks, self._beats = looks, beats

    def acquire(self) -> None:
        self._now.now_s += self.timeout
        self._looks, self._beats = self._looks - 1, self._beats - 1
        if self._beats >= 0:
            self._beat_file.touch()
            os.utime(self._beat_file, (self._now.now_s, self._now.now_s))
        if self._looks >= 0:
            raise Timeout("fetch.lock")
        self.is_taken = True


def test_waiter_stays_for_as_long_as_the_holder_gets_on(tmp_path: Path):
    """A limit makes a fetch longer than any wait that is counted from its begin."""
    now = Time()
    lock = HeldLock(now, tmp_path / "beat", looks=500, beats=500)
    acquire(cast("FileLock", lock), tmp_path / "beat", 60.0, clock=now)
    assert lock.is_taken


def test_waiter_goes_on_beside_a_holder_that_fell_silent(tmp_path: Path):
    now = Time()
    lock = HeldLock(now, tmp_path / "beat", looks=500, beats=100)
    with pytest.raises(Timeout):
        acquire(cast("FileLock", lock), tmp_path / "beat", 60.0, clock=now)
    assert now.now_s - 50.0 == pytest.approx(161.0, abs=2.0)


def test_holder_says_that_it_gets_on(tmp_path: Path):
    with single_flight(tmp_path, timeout_s=1.0) as flight:
        flight.beat()
        assert flight.beat_file.exists()


def test_waiters_hear_of_a_holder_that_only_reads_what_is_there(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work")
    seed_here(config)
    beat_file = config.cache_dir / LOCKS / BEAT_NAME
    beat_file.unlink(missing_ok=True)
    seed_here(config, intake=intake_of(SeedOptions(verify=True)))
    assert beat_file.exists()
