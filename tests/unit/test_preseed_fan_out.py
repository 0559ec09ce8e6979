"""Bytes from node to node: which chunks there are, who keeps how many, and what faults come to."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.backends.backend import NewFile
from cache_store.digests import Digest, digest_bytes
from cache_store.errors import UnusableCache
from cache_store.fetching.intake import Intake
from cache_store.fetching.pace import Pace
from orchestrator.config.reading import Config
from orchestrator.seed.chunks import plan_chunks, shuffled, size_of
from orchestrator.seed.here import seed_here
from orchestrator.seed.nodes import Node
from orchestrator.seed.outcome import NodeSeed
from orchestrator.seed.receiving import Receiver
from orchestrator.seed.serving import Serving
from orchestrator.seed.waves import LONGEST_RETRY_S, MIN_FAN_OUT, plan_wave, retry_in_s
from tests.support.fake_chunks import LocalSource
from tests.support.launched import loaded_config, store_launch
from tests.support.stored import blob_path, tree

CHUNK = 1000
FUNCTIONS = {f"Llama.f{number}": random.Random(number).randbytes(300 * number + 1) for number in range(12)}
NUM_BYTES = sum(map(len, FUNCTIONS.values()))


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


def test_order_differs_within_windows_only():
    order = shuffled(list(range(64)), random.Random(1), window=16)
    assert sorted(order) == list(range(64))
    assert order != list(range(64))
    assert [sorted(order[start : start + 16]) for start in range(0, 64, 16)] == [
        list(range(start, start + 16)) for start in range(0, 64, 16)
    ]


class Nodes:
    """A store, a node that was seeded from it, and others that are not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = loaded_config(root)
        store_launch(self.config, root / "work", functions=FUNCTIONS)
        self.serving: Serving[bytes] = Serving(bytes, chunk_bytes=CHUNK)
        self.first = seed_here(self.node("first"), intake=Intake(held=self.serving.hold))
        self.serving.begin(1)

    def node(self, name: str) -> Config:
        return self.config.model_copy(update={"cache_dir": self.root / name})

    def receive(self, source: LocalSource, name: str = "other") -> NodeSeed:
        receiver = Receiver(source, pace=None, rng=random.Random(3))
        found = seed_here(self.node(name), intake=Intake(supply=receiver))
        return replace(found, reason=receiver.problem)

    def files(self, name: str) -> dict[str, bytes]:
        return tree(self.root / name)


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_node_gets_everything_from_the_other_one(nodes: Nodes):
    for data in FUNCTIONS.values():  # nobody can read these any more
        path = blob_path(nodes.root / "store", data)
        path.chmod(0o600)
        path.write_bytes(bytes(len(data)))
    found = nodes.receive(source := LocalSource(nodes.serving))
    assert (found.faults, found.reason) == ((), "")
    assert nodes.files("other") == nodes.files("first")
    assert (found.bytes_from_nodes, found.bytes_from_store) == (NUM_BYTES, 0)
    assert sorted(source.taken) == list(range(len(nodes.serving.plan())))
    assert source.most_at_once <= 2


def test_damaged_chunk_is_fetched_from_the_store_again_and_never_laid_out(nodes: Nodes):
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
def test_chunk_of_another_length_is_damaged(nodes: Nodes, change: Callable[[bytes], bytes]):
    source = LocalSource(nodes.serving, damage=lambda index, data: change(data) if index == 2 else data)
    found = nodes.receive(source)
    assert (found.faults, nodes.files("other")) == ((), nodes.files("first"))
    assert found.bytes_from_store > 0


@pytest.mark.parametrize("num_chunks", [0, 1, 7])
def test_source_that_dies_leaves_the_rest_to_the_store(nodes: Nodes, num_chunks: int):
    found = nodes.receive(LocalSource(nodes.serving, dies_after=num_chunks))
    assert found.faults == ()
    assert "gone" in found.reason
    assert nodes.files("other") == nodes.files("first")
    assert found.bytes_from_store + found.bytes_from_nodes == NUM_BYTES
    assert found.bytes_from_store > 0


def test_nothing_is_left_of_blobs_that_did_not_become_whole(nodes: Nodes):
    nodes.receive(LocalSource(nodes.serving, dies_after=7))
    assert not list((nodes.root / "other").rglob("*.part"))


def test_file_that_changed_at_the_source_is_not_laid_out_elsewhere(nodes: Nodes):
    changed = max(nodes.files("first"), key=lambda name: len(nodes.files("first")[name]))
    path = nodes.root / "first" / changed
    path.write_bytes(path.read_bytes()[::-1])
    found = nodes.receive(LocalSource(nodes.serving))
    assert found.faults == ()
    assert nodes.files("other")[changed] == path.read_bytes()[::-1]


def test_what_is_there_already_is_not_taken(nodes: Nodes):
    nodes.receive(LocalSource(nodes.serving))
    again = LocalSource(nodes.serving)
    assert nodes.receive(again).bytes_copied == 0
    assert again.taken == []


def test_chunk_under_a_low_limit_is_taken_in_pieces(nodes: Nodes):
    """Whoever waits for the node, or watches it, must see that it gets on."""
    taken: list[int] = []
    pace = Pace(1.0, sleep=lambda _: None)
    take = pace.take

    def noted(num_bytes: int) -> None:
        taken.append(num_bytes)
        take(num_bytes)

    pace.take = noted  # type: ignore[method-assign]
    pace.piece_bytes = 100
    counted: list[int] = []
    found = seed_here(
        nodes.node("other"),
        intake=Intake(supply=Receiver(LocalSource(nodes.serving), pace=pace), pace=pace),
        on_progress=lambda progress: counted.append(progress.done_bytes),
    )
    assert (found.faults, found.bytes_from_nodes) == ((), NUM_BYTES)
    assert max(taken) == 100
    assert sum(taken) == NUM_BYTES
    assert counted[-1] == 2 * NUM_BYTES  # two ranks


def test_limit_counts_what_comes_from_nodes(nodes: Nodes):
    slept: list[float] = []
    pace = Pace(1000.0, clock=lambda: 0.0, sleep=slept.append)
    receiver = Receiver(LocalSource(nodes.serving), pace=pace)
    seed_here(nodes.node("other"), intake=Intake(supply=receiver, pace=pace))
    assert max(slept) == pytest.approx(NUM_BYTES / 1000.0 - 0.25)


def test_chunk_is_put_once_and_forgotten_when_all_have_it(tmp_path: Path):
    put: list[bytes] = []
    serving = held(tmp_path, put, [b"a" * 1500])
    serving.begin(2)
    for _ in range(2):
        assert serving.chunk(0) == b"a" * CHUNK
        serving.had(0)
    assert (len(put), serving.kept_bytes) == (1, 0)


def test_no_more_is_kept_than_there_is_room_for(tmp_path: Path):
    put: list[bytes] = []
    serving = held(tmp_path, put, [bytes([number]) * CHUNK for number in range(8)])
    serving.begin(2, room_bytes=3 * CHUNK)
    for index in range(8):
        serving.chunk(index)
        assert serving.kept_bytes <= 3 * CHUNK
    serving.chunk(0)
    assert len(put) == 9  # the first had made room


def test_source_that_lost_a_file_says_so(tmp_path: Path):
    serving = held(tmp_path, [], [b"a" * 10])
    serving.begin(1)
    (tmp_path / "0").unlink()
    with pytest.raises(UnusableCache):
        serving.chunk(0)


def held(directory: Path, put: list[bytes], blobs: list[bytes]) -> Serving[bytes]:
    """A node that has these blobs, and says what it puts where others can take it."""

    def remember(data: bytes) -> bytes:
        put.append(data)
        return data

    serving = Serving(remember, chunk_bytes=CHUNK)
    for number, data in enumerate(blobs):
        path = directory / str(number)
        path.touch(mode=0o600)
        path.write_bytes(data)
        serving.hold([NewFile(name=f"blob{number}", source=path, expected=digest_bytes(data))])
    return serving


def cluster(count: int) -> list[Node]:
    return [Node(node_id=f"{number:056x}", address="10.0.0.1", host=f"n{number}") for number in range(count)]


def test_few_nodes_read_the_store_by_themselves():
    due = cluster(MIN_FAN_OUT - 1)
    assert plan_wave(due, (), "auto").source is None
    assert plan_wave(due, (), "auto").others == tuple(due)


def test_many_nodes_get_everything_from_the_first():
    first, *others = cluster(MIN_FAN_OUT)
    wave = plan_wave([first, *others], (), "auto")
    assert (wave.source, wave.others) == (first, tuple(others))


def test_seeded_node_is_the_source_of_those_that_join():
    seeded, *due = cluster(3)
    wave = plan_wave(due, [seeded], "always")
    assert (wave.source, wave.others) == (seeded, tuple(due))


def test_one_node_alone_has_no_source():
    assert plan_wave(cluster(1), (), "always").source is None


def test_fan_out_can_be_forbidden():
    assert plan_wave(cluster(100), (), "never").source is None


def test_retries_come_later_each_time_within_a_bound():
    waits = [retry_in_s(attempt) for attempt in range(1, 200)]
    assert waits == sorted(waits)
    assert waits[:3] == [5.0, 10.0, 20.0]
    assert waits[-1] == LONGEST_RETRY_S
