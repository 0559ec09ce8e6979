"""A blob that comes in pieces: what a preseed that was killed had of it, and what is done with that."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_chunks import FakeNodes, LocalSource
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.fetching.arrivals import INCOMING
from warmrank.cache_store.fetching.begun import BEGUN, SPANS, Begun, Spans, begin, take_over
from warmrank.orchestrator.seed.receiving import AT_A_TIME
from warmrank.orchestrator.seed.serving import Answer

CHUNK = 1000
LARGE = random.Random(8).randbytes(50_000)
NUM_CHUNKS = 51
NUM_BEFORE = 20


@given(st.lists(st.tuples(st.integers(min_value=0, max_value=60), st.integers(min_value=1, max_value=20))))
def test_spans_are_the_bytes_that_came(pieces: list[tuple[int, int]]):
    spans, there = Spans(), set[int]()
    for start, num_bytes in pieces:
        new = set(range(start, start + num_bytes)) - there
        assert spans.add(start, start + num_bytes) == len(new)
        there |= new
    assert spans.num_bytes == len(there)
    for start in range(70):
        for end in (start + 1, start + 5):
            assert spans.has(start, end) == (set(range(start, end)) <= there)


def begun(directory: Path, *, size_bytes: int = 10) -> Begun:
    return begin(directory / f"{'a' * 64}{BEGUN}", Digest(sha256="a" * 64, size_bytes=size_bytes))


def taken_over(one: Begun, *, size_bytes: int = 10) -> Begun:
    target = one.path.parent / "taken" / one.path.name
    target.parent.mkdir()
    return take_over(one.path, target, Digest(sha256="a" * 64, size_bytes=size_bytes))


def test_pieces_are_known_after_they_were_taken_over(tmp_path: Path):
    one = begun(tmp_path)
    one.write(6, memoryview(b"678"))
    one.write(0, memoryview(b"01"))
    other = taken_over(one)
    assert (other.num_bytes, other.has(6, 3), other.has(0, 2), other.has(1, 2)) == (5, True, True, False)
    other.write(2, memoryview(b"2345"))
    other.write(9, memoryview(b"9"))
    assert other.is_whole
    assert other.path.read_bytes() == b"0123456789"
    other.discard()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("line", [b"0 11", b"-1 4", b"5 0", b"x", b"8 3", b"", b"3", b"1 2 3"])
def test_line_that_cannot_be_is_not_believed(tmp_path: Path, line: bytes):
    one = begun(tmp_path)
    one.write(0, memoryview(b"0123456789"))
    one.path.with_suffix(SPANS).write_bytes(line + b"\n4 2\n7 ")
    assert taken_over(one).num_bytes == 2


def test_bytes_beyond_the_end_of_the_file_are_not_believed(tmp_path: Path):
    one = begun(tmp_path)
    one.write(0, memoryview(b"0123456789"))
    os.truncate(one.path, 4)
    assert taken_over(one).num_bytes == 0


class Killing(LocalSource):
    """Ends this process, as the kernel does, when it is asked for more than some chunks."""

    def fetch(self, answer: Answer[bytes]) -> bytes:
        if len(self.taken) >= NUM_BEFORE:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().fetch(answer)


@pytest.fixture
def nodes(tmp_path: Path) -> FakeNodes:
    """Of which one was killed while a large blob came from another one."""
    made = FakeNodes(tmp_path, {"Llama.large": LARGE, "Llama.small": b"small"}, chunk_bytes=CHUNK)
    child = os.fork()
    if not child:
        made.receive(Killing(made.serving))
        os._exit(1)  # it should have been killed
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return made


def left(nodes: FakeNodes, ending: str) -> list[Path]:
    return list((nodes.root / "other" / INCOMING).rglob(f"*{ending}"))


def test_next_preseed_asks_only_for_the_chunks_that_are_missing(nodes: FakeNodes):
    found = nodes.receive(source := LocalSource(nodes.serving))
    assert (found.faults, found.reason, found.bytes_from_store) == ((), "", 0)
    assert 0 < len(source.taken) <= NUM_CHUNKS - NUM_BEFORE + AT_A_TIME
    assert nodes.files("other") == nodes.files("first")
    assert left(nodes, BEGUN) == left(nodes, SPANS) == []


def overwrite_it(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def lose_it_in_a_power_cut(file: Path) -> None:
    """The list reached the disk, and what it speaks of did not."""
    os.truncate(file, 0)
    os.truncate(file, 40_000)
    file.with_suffix(SPANS).write_bytes(b"0 40000\n")


@pytest.mark.parametrize("harm", [overwrite_it, lose_it_in_a_power_cut])
def test_what_was_left_damaged_is_found_out_and_comes_from_the_store(
    nodes: FakeNodes, harm: Callable[[Path], None]
):
    (file,) = (path for path in left(nodes, BEGUN) if path.stat().st_size > CHUNK)
    harm(file)
    found = nodes.receive(LocalSource(nodes.serving))
    assert (found.faults, found.bytes_from_store) == ((), len(LARGE))
    assert "corrupt" in found.reason
    assert nodes.files("other") == nodes.files("first")


def test_what_others_could_have_written_is_not_taken_over(nodes: FakeNodes):
    for file in left(nodes, BEGUN):
        file.chmod(0o666)
    found = nodes.receive(source := LocalSource(nodes.serving))
    assert (found.faults, found.reason) == ((), "")
    assert len(source.taken) == NUM_CHUNKS
    assert left(nodes, BEGUN) == []


def test_preseed_from_the_store_removes_what_it_does_not_need(nodes: FakeNodes):
    nodes.fan_out(["other"])
    assert nodes.files("other") == nodes.files("first")
    assert left(nodes, BEGUN) == left(nodes, SPANS) == []
