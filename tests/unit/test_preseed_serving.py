"""A node that serves: what it gives before it has all, how much it keeps in memory, to how many at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_seed_cluster import Clock
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.orchestrator.seed.serving import Answer, Part, Serving
from warmrank.orchestrator.seed.shelf import KEEP_S, LEASE_S, Shelf

CHUNK = 1000
ALONE = Part(num_sources=1, position=0, num_receivers=1)


class Served:
    """A node with files of its own, and what it puts where others can take it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.put: list[bytes] = []
        self.serving: Serving[bytes] = Serving(self._remember, chunk_bytes=CHUNK)
        self.serving.begin(ALONE)

    def _remember(self, data: bytes) -> bytes:
        self.put.append(data)
        return data

    def write(self, data: bytes) -> Path:
        path = self.directory / "file"
        path.touch(mode=0o600)
        path.write_bytes(data)
        return path

    def ask(self, *wanted: int) -> Answer[bytes]:
        return self.serving.offer(0, wanted)


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served(tmp_path)


BLOB = bytes(range(250)) * 10
WHOLE = digest_bytes(BLOB)


def test_plan_is_told_before_the_first_byte_has_come(served: Served):
    assert served.serving.plan([WHOLE]) == (WHOLE,)
    answer = served.ask()
    assert [sum(segment.num_bytes for segment in chunk) for chunk in answer.news] == [1000, 1000, 500]
    assert served.ask(0, 1, 2).index is None
    assert served.serving.offer(2, ()).news == answer.news[2:]


def test_chunk_is_given_while_the_rest_of_its_blob_still_comes(served: Served):
    served.serving.plan([WHOLE])
    served.serving.note(WHOLE, served.write(BLOB[:1999]))
    assert (served.ask(1, 0, 2).index, served.ask(1, 2).index) == (0, None)
    served.write(BLOB)
    assert served.ask(1, 2).refs == (BLOB[1000:2000],)


def test_what_is_on_its_way_from_one_place_to_another_is_asked_for_again(served: Served):
    served.serving.plan([WHOLE])
    path = served.write(BLOB)
    served.serving.note(WHOLE, path)
    moved = path.rename(path.with_name("moved"))
    assert (served.ask(0).index, served.ask(0).lost) == (None, ())
    served.serving.hold([NewFile(name="blob", source=moved, expected=WHOLE)])
    assert served.ask(0).index == 0


def test_node_that_is_through_says_what_never_comes(served: Served):
    served.serving.plan([WHOLE])
    served.serving.close()
    assert served.ask(0, 2).lost == (0, 2)
    assert served.ask().is_closed


def test_blob_that_the_store_did_not_give_is_not_waited_for(served: Served):
    other = digest_bytes(b"other")
    served.serving.plan([WHOLE, other])
    served.serving.lose(WHOLE)
    served.serving.note(other, served.write(b"other"))
    answer = served.ask(0, 1, 2)
    assert (answer.lost, answer.index) == ((0, 1, 2), None)  # the small one went with the end of the other


def test_file_of_others_is_not_given(served: Served):
    path = served.write(BLOB)
    path.chmod(0o644)
    served.serving.hold([NewFile(name="blob", source=path, expected=WHOLE)])
    assert served.ask(0).index is None


def test_only_the_own_share_is_planned(tmp_path: Path):
    served = Served(tmp_path)
    served.serving.begin(Part(num_sources=3, position=1, num_receivers=2))
    blobs = [Digest(sha256=f"{number:064x}", size_bytes=100) for number in range(9)]
    share = served.serving.plan(blobs)
    assert len(share) == 3
    assert {segment.sha256 for chunk in served.ask().news for segment in chunk} == {b.sha256 for b in share}
    served.serving.hold([NewFile(name="b", source=tmp_path / "f", expected=blob) for blob in blobs])
    assert len(served.ask().news) == 1


class Shelved:
    """A shelf on a clock that a test moves; chunk n has n in each byte."""

    def __init__(self, *, num_takers: int, room: int) -> None:
        self.clock = Clock()
        self.put: list[int] = []
        self.shelf: Shelf[int] = Shelf(self._remember, clock=self.clock)
        self.shelf.num_takers, self.shelf.room_bytes = num_takers, room * CHUNK

    def _remember(self, data: bytes) -> int:
        self.put.append(data[0])
        return data[0]

    def give(self, *wanted: int) -> int | None:
        given = self.shelf.give(dict.fromkeys(wanted, CHUNK), lambda index: bytes([index]) * CHUNK)
        return None if given is None else given[0]


def test_chunk_is_put_once_and_forgotten_when_all_have_it():
    shelved = Shelved(num_takers=2, room=4)
    for _ in range(2):
        assert shelved.give(7) == 7
        shelved.shelf.had(7)
    assert (shelved.put, shelved.shelf.kept_bytes) == ([7], 0)


def test_each_taker_is_given_another_chunk_while_there_is_room():
    shelved = Shelved(num_takers=9, room=3)
    assert [shelved.give(1, 2, 3, 4) for _ in range(4)] == [1, 2, 3, None]
    assert shelved.shelf.kept_bytes == 3 * CHUNK


def test_chunk_goes_to_as_many_at_once_as_have_it_and_one_more():
    shelved = Shelved(num_takers=9, room=1)
    assert [shelved.give(1), shelved.give(1)] == [1, None]
    shelved.shelf.had(1)
    assert [shelved.give(1), shelved.give(1), shelved.give(1)] == [1, 1, None]


def test_taker_that_died_is_not_waited_for():
    shelved = Shelved(num_takers=9, room=1)
    assert [shelved.give(1), shelved.give(1), shelved.give(2)] == [1, None, None]
    shelved.clock.now_s += LEASE_S
    assert shelved.give(2) == 2
    assert shelved.shelf.kept_bytes == CHUNK


def test_chunk_that_nobody_wants_any_more_makes_room():
    shelved = Shelved(num_takers=9, room=1)
    assert shelved.give(1) == 1
    shelved.shelf.had(1)
    assert shelved.give(2) is None
    shelved.clock.now_s += KEEP_S
    assert shelved.give(2) == 2
    shelved.shelf.had(2)
    shelved.clock.now_s += KEEP_S
    assert shelved.give(1) == 1
    assert shelved.put == [1, 2, 1]


def test_chunk_larger_than_the_room_stands_alone():
    shelved = Shelved(num_takers=9, room=0)
    assert [shelved.give(1), shelved.give(2)] == [1, None]
