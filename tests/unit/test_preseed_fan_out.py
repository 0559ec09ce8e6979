"""Bytes from node to node: which chunks there are, who reads which blobs, and what faults come to."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_chunks import FakeNodes, LocalSource
from tests.support.stored import blob_path
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.fetching.pace import Pace
from warmrank.orchestrator.nodes import Node
from warmrank.orchestrator.seed import peer as peers
from warmrank.orchestrator.seed.chunks import Segment, plan_chunks, share_out, size_of
from warmrank.orchestrator.seed.peer import BEGIN_S, PATIENCE_S, Peer
from warmrank.orchestrator.seed.serving import Answer, Serving
from warmrank.orchestrator.seed.waves import LONGEST_RETRY_S, MIN_FAN_OUT, MIN_SOURCES, plan_wave, retry_in_s

CHUNK = 1000
FUNCTIONS = {f"Llama.f{number}": random.Random(number).randbytes(300 * number + 1) for number in range(12)}
NUM_BYTES = sum(map(len, FUNCTIONS.values()))
A = "a" * 64


def digest(number: int, size_bytes: int) -> Digest:
    return Digest(sha256=f"{number:064x}", size_bytes=size_bytes)


@given(st.lists(st.integers(min_value=0, max_value=70), max_size=20), st.integers(min_value=1, max_value=30))
def test_chunks_hold_each_byte_once_and_no_more_than_their_size(sizes: list[int], chunk_bytes: int):
    blobs = [digest(number, size) for number, size in enumerate(sizes)]
    chunks = plan_chunks([*blobs, *blobs], chunk_bytes=chunk_bytes)
    assert all(0 < size_of(chunk) <= chunk_bytes for chunk in chunks)
    assert all(size_of(chunk) == chunk_bytes for chunk in chunks[:-1])
    covered: dict[str, list[int]] = {}
    for segment in (segment for chunk in chunks for segment in chunk):
        places = covered.setdefault(segment.sha256, [])
        places += range(segment.offset, segment.offset + segment.num_bytes)
    assert covered == {blob.sha256: list(range(blob.size_bytes)) for blob in blobs if blob.size_bytes}


@given(st.lists(st.integers(min_value=0, max_value=70), max_size=20), st.integers(min_value=1, max_value=9))
def test_shares_are_even_and_the_same_for_all_who_ask(sizes: list[int], num_nodes: int):
    blobs = [digest(number, size) for number, size in enumerate(sizes)]
    shares = share_out(blobs, num_nodes)
    assert shares == share_out([*reversed(blobs), *blobs], num_nodes)
    assert sorted(blob.sha256 for share in shares for blob in share) == [blob.sha256 for blob in blobs]
    loads = [sum(blob.size_bytes for blob in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


@pytest.fixture
def nodes(tmp_path: Path) -> FakeNodes:
    return FakeNodes(tmp_path, FUNCTIONS, chunk_bytes=CHUNK)


def test_nodes_read_the_store_once_among_them(nodes: FakeNodes):
    names = ["one", "two", "three"]
    seeds = nodes.fan_out(names)
    assert [(seed.faults, seed.reason) for seed in seeds] == [((), "")] * 3
    assert [nodes.files(name) for name in names] == [nodes.files("first")] * 3
    assert sum(seed.bytes_from_store for seed in seeds) == NUM_BYTES
    assert all(0 < seed.bytes_from_store < NUM_BYTES / 2 for seed in seeds)
    assert [seed.bytes_from_store + seed.bytes_from_nodes for seed in seeds] == [NUM_BYTES] * 3


@pytest.mark.parametrize("num_chunks", [0, 1, 3])
def test_node_that_dies_leaves_its_share_to_the_store(nodes: FakeNodes, num_chunks: int):
    def broken(position: int, serving: Serving[bytes]) -> LocalSource:
        return LocalSource(serving, dies_after=num_chunks if position == 1 else None)

    one, _, three = nodes.fan_out(["one", "two", "three"], broken=broken)
    assert [one.faults, three.faults] == [(), ()]
    assert "gone" in one.reason + three.reason
    assert nodes.files("one") == nodes.files("three") == nodes.files("first")
    assert NUM_BYTES / 3 < one.bytes_from_store + three.bytes_from_store < 2 * NUM_BYTES


def test_damage_from_one_node_of_many_is_never_laid_out(nodes: FakeNodes):
    def broken(position: int, serving: Serving[bytes]) -> LocalSource:
        return LocalSource(serving, damage=lambda _, data: bytes(len(data)) if position == 2 else data)

    seeds = nodes.fan_out(["one", "two", "three"], broken=broken)
    assert [seed.faults for seed in seeds] == [()] * 3
    assert [nodes.files(name) for name in ("one", "two", "three")] == [nodes.files("first")] * 3
    assert "corrupt" in seeds[0].reason
    assert seeds[2].reason == ""


def test_blob_that_the_store_has_damaged_is_a_fault_of_every_node(nodes: FakeNodes):
    data = FUNCTIONS["Llama.f11"]
    path = blob_path(nodes.root / "store", data)
    path.chmod(0o600)
    path.write_bytes(bytes(len(data)))
    seeds = nodes.fan_out(["one", "two"])
    assert all(seed.faults for seed in seeds)
    assert data not in nodes.files("one").values()
    assert data not in nodes.files("two").values()


def test_node_gets_everything_from_the_one_that_is_seeded(nodes: FakeNodes):
    for data in FUNCTIONS.values():  # nobody can read these any more
        path = blob_path(nodes.root / "store", data)
        path.chmod(0o600)
        path.write_bytes(bytes(len(data)))
    found = nodes.receive(source := LocalSource(nodes.serving))
    assert (found.faults, found.reason) == ((), "")
    assert nodes.files("other") == nodes.files("first")
    assert (found.bytes_from_nodes, found.bytes_from_store) == (NUM_BYTES, 0)
    assert len(source.taken) == len(set(source.taken)) == -(-NUM_BYTES // CHUNK)


def test_damaged_chunk_is_fetched_from_the_store_again_and_never_laid_out(nodes: FakeNodes):
    def damage(index: int, data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if index == 5 else data

    found = nodes.receive(LocalSource(nodes.serving, damage=damage))
    assert found.faults == ()
    assert "corrupt" in found.reason
    assert nodes.files("other") == nodes.files("first")
    assert 0 < found.bytes_from_store < NUM_BYTES
    assert found.bytes_from_store + found.bytes_from_nodes == NUM_BYTES


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1], lambda data: data + b"x", lambda _: b""],
    ids=["shorter", "longer", "empty"],
)
def test_chunk_of_another_length_is_damaged(nodes: FakeNodes, change: Callable[[bytes], bytes]):
    source = LocalSource(nodes.serving, damage=lambda index, data: change(data) if index == 2 else data)
    found = nodes.receive(source)
    assert (found.faults, nodes.files("other")) == ((), nodes.files("first"))
    assert found.bytes_from_store > 0


@pytest.mark.parametrize("num_chunks", [0, 1, 7])
def test_source_that_dies_leaves_the_rest_to_the_store(nodes: FakeNodes, num_chunks: int):
    found = nodes.receive(LocalSource(nodes.serving, dies_after=num_chunks))
    assert found.faults == ()
    assert "gone" in found.reason
    assert nodes.files("other") == nodes.files("first")
    assert found.bytes_from_store + found.bytes_from_nodes == NUM_BYTES
    assert found.bytes_from_store > 0


def test_source_that_answers_and_gets_no_further_is_left(nodes: FakeNodes, monkeypatch):
    monkeypatch.setattr(peers, "PATIENCE_S", 0.0)
    monkeypatch.setattr(peers, "BEGIN_S", 0.0)
    silent: Serving[bytes] = Serving(bytes)  # it has no part, so it plans nothing, and is never closed
    found = nodes.receive(LocalSource(silent))
    assert (found.faults, found.bytes_from_store) == ((), NUM_BYTES)
    assert "got no further" in found.reason


def test_source_that_has_nothing_leaves_all_to_the_store_at_once(nodes: FakeNodes):
    empty: Serving[bytes] = Serving(bytes)
    empty.close()
    found = nodes.receive(LocalSource(empty))
    assert (found.faults, found.reason, found.bytes_from_store) == ((), "", NUM_BYTES)


def test_nothing_is_left_of_blobs_that_did_not_become_whole(nodes: FakeNodes):
    nodes.receive(LocalSource(nodes.serving, dies_after=7))
    assert not list((nodes.root / "other").rglob("*.part"))


def test_file_that_changed_at_the_source_is_not_laid_out_elsewhere(nodes: FakeNodes):
    changed = max(nodes.files("first"), key=lambda name: len(nodes.files("first")[name]))
    path = nodes.root / "first" / changed
    path.write_bytes(path.read_bytes()[::-1])
    found = nodes.receive(LocalSource(nodes.serving))
    assert found.faults == ()
    assert nodes.files("other")[changed] == path.read_bytes()[::-1]


def test_what_is_there_already_is_not_taken(nodes: FakeNodes):
    nodes.receive(LocalSource(nodes.serving))
    again = LocalSource(nodes.serving)
    assert nodes.receive(again).bytes_copied == 0
    assert again.taken == []


def test_chunk_under_a_low_limit_is_taken_in_pieces(nodes: FakeNodes):
    """Whoever waits for the node, or watches it, must see that it gets on."""
    taken: list[int] = []
    pace = Pace(1.0, sleep=lambda _: None)
    take = pace.take

    def noted(num_bytes: int) -> None:
        taken.append(num_bytes)
        take(num_bytes)

    pace.take = noted  # type: ignore[method-assign]
    pace.piece_bytes = 100
    found = nodes.receive(LocalSource(nodes.serving), pace=pace)
    assert (found.faults, found.bytes_from_nodes) == ((), NUM_BYTES)
    assert max(taken) == 100
    assert sum(taken) == NUM_BYTES


def test_limit_counts_what_comes_from_nodes(nodes: FakeNodes):
    slept: list[float] = []
    pace = Pace(1000.0, clock=lambda: 0.0, sleep=slept.append)
    nodes.receive(LocalSource(nodes.serving), pace=pace)
    assert max(slept) == pytest.approx(NUM_BYTES / 1000.0 - 0.25)


def test_node_that_gets_on_is_waited_for_however_long_it_takes():
    peer = Peer({A}, 0.0)
    peer.hear(Answer(news=((Segment(A, 0, 1),),)), 0.0)
    for moves in range(1, 100):
        peer.hear(Answer(moves=moves), moves * (PATIENCE_S - 1))
    assert not peer.is_over
    peer.hear(Answer(moves=99), 99 * (PATIENCE_S - 1) + PATIENCE_S)
    assert peer.is_over
    assert "no further" in peer.problem


def test_node_without_a_plan_is_waited_for_not_so_long():
    peer = Peer({A}, 0.0)
    peer.hear(Answer(), BEGIN_S - 1)
    assert not peer.is_over
    peer.hear(Answer(), 2 * BEGIN_S - 1)
    assert peer.is_over


def test_node_is_asked_less_and_less_often_until_it_gives():
    peer = Peer({A}, 0.0)
    waits = []
    for now_s in range(10):
        peer.hear(Answer(moves=now_s), float(now_s))
        waits.append(peer.due_s - now_s)
    assert waits == sorted(waits)
    assert waits[-1] == peers.LONGEST_WAIT_S
    peer.hear(Answer(news=((Segment(A, 0, 1),),)), 10.0)
    assert peer.due_s == 10.0


def test_only_chunks_with_bytes_that_are_to_come_from_a_node_are_asked_of_it():
    peer = Peer({A}, 0.0)
    peer.hear(Answer(news=((Segment("b" * 64, 0, 1),), (Segment(A, 0, 1),), (Segment(A, 1, 1),))), 0.0)
    assert peer.wanted() == [1, 2]
    peer.hear(Answer(index=2, refs=("ref",), lost=(1,)), 0.0)
    assert peer.is_over


def cluster(count: int) -> list[Node]:
    return [Node(node_id=f"{number:056x}", address="10.0.0.1", host=f"n{number}") for number in range(count)]


def test_few_nodes_read_the_store_by_themselves():
    wave = plan_wave(due := cluster(MIN_FAN_OUT - 1), (), "auto")
    assert (wave.nodes, wave.sources) == (tuple(due), ())


def test_many_nodes_read_a_share_each():
    wave = plan_wave(due := cluster(MIN_FAN_OUT), (), "auto")
    assert (wave.nodes, wave.sources) == (tuple(due), tuple(due))


def test_seeded_nodes_are_the_sources_of_those_that_join():
    seeded, *due = cluster(3)
    wave = plan_wave(due, [seeded], "always")
    assert (wave.nodes, wave.sources) == (tuple(due), (seeded,))


def test_of_many_seeded_nodes_no_more_serve_than_join():
    every = cluster(100)
    assert len(plan_wave(every[:1], every[1:], "always").sources) == MIN_SOURCES
    assert len(plan_wave(every[:20], every[20:], "always").sources) == 20


def test_one_node_alone_has_no_source():
    assert plan_wave(cluster(1), (), "always").sources == ()


def test_fan_out_can_be_forbidden():
    assert plan_wave(cluster(100), (), "never").sources == ()


def test_retries_come_later_each_time_within_a_bound():
    waits = [retry_in_s(attempt) for attempt in range(1, 200)]
    assert waits == sorted(waits)
    assert waits[:3] == [5.0, 10.0, 20.0]
    assert waits[-1] == LONGEST_RETRY_S
