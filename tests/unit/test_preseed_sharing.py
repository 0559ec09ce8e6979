"""Blobs that one node shares with others: what they get, and what faults come to."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.launching import loaded_config, store_launch
from tests.support.stored import blob_path, overwrite, tree
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.orchestrator.seed import on_ray
from warmrank.orchestrator.seed.here import NodeSeed, seed_here
from warmrank.orchestrator.seed.on_ray import Share, SharedBlobs, share

PIECE = 1000
FUNCTIONS = {f"Llama.f{number}": random.Random(number).randbytes(300 * number + 1) for number in range(12)}
NUM_BYTES = sum(map(len, FUNCTIONS.values()))


class Nodes:
    """A store with a launch, and nodes with a directory each, of which the first shares what it read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = loaded_config(root)
        self.copies: list[NewFile] = []
        store_launch(self.config, root / "work", functions=FUNCTIONS)
        self.seed("first", FetchOptions(held=self.copies.extend))
        self.taken: list[bytes] = []

    def seed(self, name: str, options: FetchOptions) -> NodeSeed:
        return seed_here(self.config.model_copy(update={"cache_dir": self.root / name}), options=options)

    def share(self, room_bytes: int = NUM_BYTES) -> Share:
        return share(self.copies, bytes, room_bytes=room_bytes)

    def receive(self, shared: Share, get: Callable[[bytes], bytes] = bytes) -> NodeSeed:
        def noted(piece: bytes) -> bytes:
            self.taken.append(piece)
            return get(piece)

        return self.seed("other", FetchOptions(shared=SharedBlobs(shared, noted)))

    def files(self, name: str) -> dict[str, bytes]:
        return tree(self.root / name)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setattr(on_ray, "PIECE_BYTES", PIECE)
    return Nodes(tmp_path)


def test_node_gets_everything_from_the_one_that_is_seeded(nodes: Nodes):
    shared = nodes.share()
    assert [len(piece) for piece in shared.pieces[:-1]] == [PIECE] * (NUM_BYTES // PIECE)
    for data in FUNCTIONS.values():  # nobody can read these any more
        overwrite(blob_path(nodes.root / "store", data), bytes(len(data)))
    found = nodes.receive(shared)
    assert (found.faults, found.bytes_from_nodes, found.bytes_from_store) == ((), NUM_BYTES, 0)
    assert nodes.files("other") == nodes.files("first")


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data[:-1], lambda _: b""],
    ids=["changed", "shorter", "empty"],
)
def test_damaged_piece_is_read_from_the_store_and_never_laid_out(
    nodes: Nodes, damage: Callable[[bytes], bytes]
):
    shared = nodes.share()
    found = nodes.receive(shared, lambda data: damage(data) if data == shared.pieces[5] else data)
    assert (found.faults, nodes.files("other")) == ((), nodes.files("first"))
    assert 0 < found.bytes_from_store < NUM_BYTES
    assert found.bytes_from_store + found.bytes_from_nodes == NUM_BYTES


@pytest.mark.parametrize("num_pieces", [0, 1, 7])
def test_node_that_dies_leaves_the_rest_to_the_store_and_is_not_waited_for_again(
    nodes: Nodes, num_pieces: int
):
    def get(data: bytes) -> bytes:
        if len(nodes.taken) > num_pieces:
            raise StoreUnavailable(what="blob", where="another node", reason="it is gone")
        return data

    found = nodes.receive(nodes.share(), get)
    assert (found.faults, nodes.files("other")) == ((), nodes.files("first"))
    assert found.bytes_from_store > 0
    assert found.bytes_from_store + found.bytes_from_nodes == NUM_BYTES
    assert len(nodes.taken) <= num_pieces + 8  # one question for each thread


def test_no_more_is_shared_than_there_is_room_for_and_the_store_has_the_rest(nodes: Nodes):
    shared = nodes.share(room_bytes=NUM_BYTES // 2)
    assert sum(map(len, shared.pieces)) <= NUM_BYTES // 2
    found = nodes.receive(shared)
    assert (found.faults, nodes.files("other")) == ((), nodes.files("first"))
    assert found.bytes_from_nodes == sum(map(len, shared.pieces)) > 0


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes()[::-1]),
        lambda path: path.write_bytes(path.read_bytes()[:10]),
        lambda path: path.chmod(0o666),
        lambda path: path.unlink(),
    ],
    ids=["changed", "cut", "writable by others", "gone"],
)
def test_file_that_changed_at_the_source_harms_no_other(nodes: Nodes, change: Callable[[Path], None]):
    largest = max(nodes.copies, key=lambda copy: copy.expected.size_bytes)
    assert isinstance(largest.source, Path)
    before = nodes.files("first")
    change(largest.source)
    found = nodes.receive(nodes.share())
    assert (found.faults, nodes.files("other")) == ((), before)
    assert found.bytes_from_store == largest.expected.size_bytes
