"""Preseed: from the store, from node to node, until all have it."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError
from typer.testing import Result

from tests.support.command_line import run
from tests.support.launching import loaded_config, store_launch, write_config
from tests.support.stored import save_key_pair, tree
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.cache_dir.private_files import check_private
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.signing.keyring import generate_key_pair
from warmrank.orchestrator.config.reading import load
from warmrank.orchestrator.inspect.store_contents import cached_files
from warmrank.orchestrator.nodes import Node, this_node
from warmrank.orchestrator.seed import on_ray
from warmrank.orchestrator.seed.on_ray import Share, opener, share
from warmrank.orchestrator.seed.seeding import (
    LOOK_EVERY_S,
    MAX_LOST_SOURCES,
    NodeSeed,
    Outcomes,
    Seeding,
    SeedPlan,
    failed,
    seed_here,
)


def command(project: Path, *options: str) -> Result:
    return run("preseed", project / "tiny.yaml", *options)


def test_without_a_cluster_this_machine_is_seeded_with_private_files(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work")
    done = command(tmp_path, "--json", "--verify", "--node", this_node().host)
    assert done.exit_code == 0
    (seed,) = json.loads(done.stdout)
    assert (seed["node"]["host"], seed["found"], seed["attempts"]) == (this_node().host, True, 1)
    assert (seed["bytes_from_store"] > 0, seed["bytes_from_nodes"]) == (True, 0)
    files = cached_files(config.cache_dir)
    assert (seed["num_partitions"], seed["num_files"], len(files)) == (2, 4, 4)
    for path in files:
        check_private(path)


@pytest.mark.parametrize(("mode", "code"), [("rw", 3), ("required", 4)])
def test_store_that_nobody_made_yet_is_a_miss_unless_it_is_required(tmp_path: Path, mode: str, code: int):
    write_config(tmp_path, store={"path": str(tmp_path / "store"), "mode": mode})
    done = command(tmp_path)
    assert (done.exit_code, "there is no store" in done.output) == (code, True)
    assert not (tmp_path / "store").exists()


def test_record_that_is_refused_is_told_once(tmp_path: Path):
    _, public = save_key_pair(generate_key_pair("ci"), tmp_path)
    trust = {"policy": "require", "trusted_keys": {"ci": str(public)}}
    path = write_config(tmp_path, store={"path": str(tmp_path / "store"), "trust": trust})
    store_launch(load(path), tmp_path / "work")
    done = command(tmp_path, "--here")
    assert (done.exit_code, done.output.count("it carries no signature")) == (4, 1)


def test_verify_reads_again_what_did_not_seem_to_change(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", functions={"Llama.decode": b"right"})
    seed_here(config)
    damaged = next(path for path in config.cache_dir.rglob("compiled_module"))
    status = damaged.stat()
    damaged.write_bytes(b"wrong")
    os.utime(damaged, ns=(status.st_atime_ns, status.st_mtime_ns))
    found = seed_here(config, options=FetchOptions(reread=True))
    variants = sorted(path.read_text() for path in damaged.parent.glob("compiled_module*"))
    assert (found.bytes_copied, variants) == (5, ["right", "wrong"])


@pytest.mark.parametrize(
    "options",
    ["--node elsewhere", "--here --watch", "--for 3", "--until 3", "--fan-out sometimes", "--watch"],
)
def test_bad_options_end_with_two(tmp_path: Path, options: str):
    loaded_config(tmp_path)
    assert command(tmp_path, *options.split()).exit_code == 2


FROM_STORE, FROM_NODES = {"bytes_from_store": 9}, {"bytes_from_nodes": 9}


def cluster_of(count: int) -> list[Node]:
    return [
        Node(node_id=f"{number:02d}ab" * 14, address=f"10.0.0.{number}", host=f"host{number}")
        for number in range(1, count + 1)
    ]


NODE_ONE, NODE_TWO = cluster_of(2)


class Stage:
    """A seeding with its clock; it is its own cluster.

    Attributes:
        alive: the nodes.
        started: hosts that were started, each with that of its source, or ``shares`` where it is one.
        stopped: hosts whose process was ended, in order.
        said: every line.
    """

    def __init__(self, *nodes: Node, limit_s: float = 600.0, **plan: Any) -> None:
        self.now_s = 1000.0
        self.alive, self.started, self.stopped = list(nodes), list[tuple[str, str]](), list[str]()
        self.said: list[str] = []
        self._ended: list[NodeSeed] = []
        self.outcomes = Outcomes(lambda line, _style: self.said.append(line))
        self.seeding = Seeding(
            self, SeedPlan(**plan), limit_s=limit_s, tell=self.outcomes.take, clock=lambda: self.now_s
        )
        self.seeding.step()

    def nodes(self) -> tuple[Node, ...]:
        return tuple(self.alive)

    def start(self, node: Node, *, source: Node | None = None, shares: bool = False) -> None:
        self.started.append((node.host, "shares" if shares else source.host if source else ""))

    def ended(self) -> list[NodeSeed]:
        ended, self._ended = self._ended, []
        return ended

    def stop(self, node: Node) -> None:
        self.stopped.append(node.host)

    def step(self, seconds: float = 0.0) -> None:
        self.now_s += seconds
        self.seeding.step()

    def end_well(self, *nodes: Node, **came: Any) -> None:
        self._ended += [NodeSeed(node=node, found=True, reason="launch 0f", **came) for node in nodes]
        self.step()

    def end_badly(self, node: Node, why: str = "disk full") -> None:
        self._ended.append(failed(node, why))
        self.step()

    def statuses(self) -> dict[str, str]:
        return {seed.node.host: seed.status for seed in self.outcomes.all()}


def test_every_node_is_seeded_from_the_store_once_whatever_happens_to_others():
    stage = Stage(NODE_ONE, NODE_TWO)
    assert stage.started == [("host1", ""), ("host2", "")]
    stage.end_badly(NODE_ONE)
    assert not stage.seeding.is_done
    stage.end_well(NODE_TWO)
    assert stage.seeding.is_done
    assert stage.statuses() == {"host1": "faults", "host2": "seeded"}
    assert (len(stage.started), stage.stopped) == (2, ["host1", "host2"])
    assert "faults: disk full (1 of 2)" in stage.said[-2]


def test_node_that_takes_too_long_fails_with_its_reason():
    stage = Stage(NODE_ONE, limit_s=60.0)
    stage.step(60.0)
    assert not stage.seeding.is_done
    stage.step(1.0)
    assert stage.seeding.is_done
    (seed,) = stage.outcomes.all()
    assert "longer than 60 s" in seed.reason
    assert stage.stopped == ["host1"]


def test_one_node_reads_the_store_and_others_take_it_in_growing_waves():
    nodes = cluster_of(12)
    stage = Stage(*nodes, fan_out="always")
    assert stage.started == [("host1", "shares")]
    stage.end_well(nodes[0], **FROM_STORE)
    assert stage.started[1:] == [("host2", "host1"), ("host3", "host1")]
    stage.end_well(nodes[1], **FROM_NODES)  # two have it now, so four take it
    assert [host for host, _ in stage.started[3:]] == ["host4", "host5", "host6"]
    stage.end_well(nodes[2], **FROM_NODES)
    assert len(stage.started) == 9
    stage.end_well(*nodes[3:9], **FROM_NODES)
    assert len(stage.started) == 12
    assert "host1" not in stage.stopped
    stage.end_well(*nodes[9:], **FROM_NODES)
    assert stage.seeding.is_done
    assert sorted(stage.stopped) == sorted(node.host for node in nodes)
    assert set(stage.statuses().values()) == {"seeded"}


def test_source_that_fails_is_replaced_and_after_some_the_nodes_read_the_store():
    nodes = cluster_of(10)
    stage = Stage(*nodes, fan_out="always")
    for number in range(MAX_LOST_SOURCES):
        assert stage.started[number:] == [(nodes[number].host, "shares")]
        stage.end_badly(nodes[number])
    assert stage.started[MAX_LOST_SOURCES:] == [(node.host, "") for node in nodes[MAX_LOST_SOURCES:]]


def test_watch_seeds_who_joins_and_nobody_twice_and_forgets_who_leaves():
    stage = Stage(NODE_ONE, watch=True)
    stage.end_well(NODE_ONE)
    assert not stage.seeding.is_done
    stage.alive.append(NODE_TWO)
    stage.step(LOOK_EVERY_S - 0.1)
    assert len(stage.started) == 1
    for _ in range(5):
        stage.step(LOOK_EVERY_S)
    assert stage.started == [("host1", ""), ("host2", "")]
    stage.end_well(NODE_TWO)
    stage.alive.remove(NODE_ONE)
    stage.step(LOOK_EVERY_S)
    assert stage.statuses() == {"host2": "seeded"}
    stage.alive.append(NODE_ONE)
    stage.step(LOOK_EVERY_S)
    assert stage.started[2:] == [("host1", "")]


def test_watch_tries_a_node_that_failed_again_later_each_time():
    stage = Stage(NODE_ONE, watch=True)
    for wait_s in (5.0, 10.0, 20.0):
        stage.end_badly(NODE_ONE)
        num_started = len(stage.started)
        stage.step(wait_s - 0.1)
        assert len(stage.started) == num_started
        stage.step(0.1)
        assert len(stage.started) == num_started + 1


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

        return self.seed("other", FetchOptions(shared=opener(shared, noted)))

    def files(self, name: str) -> dict[str, bytes]:
        return tree(self.root / name)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    monkeypatch.setattr(on_ray, "PIECE_BYTES", PIECE)
    return Nodes(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: data[:-1], lambda _: b""],
    ids=["changed", "shorter", "empty"],
)
def test_damaged_piece_is_read_from_the_store_and_never_laid_out(
    nodes: Nodes, damage: Callable[[bytes], bytes]
):
    shared = nodes.share()
    piece = shared[max(shared, key=lambda name: len(shared[name]))][1]
    found = nodes.receive(shared, lambda data: damage(data) if data == piece else data)
    assert (found.faults, nodes.files("other")) == ((), nodes.files("first"))
    assert 0 < found.bytes_from_store < NUM_BYTES
    assert found.bytes_from_store + found.bytes_from_nodes == NUM_BYTES


@pytest.mark.parametrize("num_pieces", [0, 1, 7])
def test_node_that_dies_leaves_the_rest_to_the_store_and_is_not_waited_for_again(
    nodes: Nodes, num_pieces: int
):
    def get(data: bytes) -> bytes:
        if len(nodes.taken) > num_pieces:
            raise GetTimeoutError("it is gone")
        return data

    found = nodes.receive(nodes.share(), get)
    assert (found.faults, nodes.files("other")) == ((), nodes.files("first"))
    assert found.bytes_from_store > 0
    assert found.bytes_from_store + found.bytes_from_nodes == NUM_BYTES
    assert len(nodes.taken) <= num_pieces + 8  # one question for each thread


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
