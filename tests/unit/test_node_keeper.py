"""What the first rank of a node does with the node's artifacts, and what the config and the report say."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.fake_rank import FakeWorld
from tests.support.launching import loaded_config
from tests.support.node_artifacts import kept, write
from tests.support.stored import make_partition, make_record, open_store
from warmrank.cache_store.cache_dir.node_files import NodeFile, kept_path
from warmrank.cache_store.publish_pending import add_partition
from warmrank.cache_store.records.manifest import PartitionManifest
from warmrank.cache_store.seed import NodeSeedReport
from warmrank.orchestrator.config.reading import Config, load, node_caches_of, parse
from warmrank.orchestrator.errors import ConfigError
from warmrank.orchestrator.gang.launcher import Process, seat_ranks
from warmrank.orchestrator.gang.node_artifacts import NodeKeeper
from warmrank.orchestrator.gang.rank_host import RankHost, RankInit
from warmrank.orchestrator.launch.identity import identity, launch_key
from warmrank.orchestrator.look.verify import verify_cache
from warmrank.orchestrator.seed.here import seed_here
from warmrank.worker.keys.environment import environment
from warmrank.worker.rank.manifests import with_node_files


def config(tmp_path: Path, **changes: Any) -> Config:
    return parse(
        {
            "workload": {"entrypoint": "models.tiny:workload"},
            "ranks": 4,
            "parallel": {"dp": 4},
            "cache_dir": str(tmp_path / "cache"),
            "node_caches": {"tools": {"path": str(tmp_path / "tools"), "patterns": ["*.o"]}},
            **changes,
        }
    )


def keeper(tmp_path: Path, **changes: Any) -> NodeKeeper:
    return NodeKeeper(config(tmp_path, **changes))


def manifest(tmp_path: Path) -> PartitionManifest:
    """What the first rank has by itself."""
    return make_partition(tmp_path / "work")


def init(tmp_path: Path, rank: int) -> RankInit:
    processes = [Process(node_id=node, host=node, address=node, pid=1) for node in "aabb"]
    seat = seat_ranks(processes)[1][rank]
    return RankInit(
        config=config(tmp_path), seat=seat, master_addr="10.0.0.1", master_port=1, no_compile=False
    )


# The config.


def names(found: Config) -> list[str]:
    return [item.name for item in node_caches_of(found)]


def test_npu_has_the_engines_own_node_caches_without_a_config(tmp_path: Path) -> None:
    assert names(config(tmp_path, device="npu")) == ["static_kernels", "ge", "tools"]
    assert names(config(tmp_path, device="npu", node_caches={"ge": None})) == ["static_kernels"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tools": {"pth": "/x"}}, "node_caches.tools.path"),
        ({"tools": {"path": ""}}, "of tools a path"),
        ({"triton": {}}, "of triton a path"),
        ({"ge": {"path": "/x"}}, "engine torchair looks"),
        ({"tools": {"path": "/x", "collect": "some"}}, "what a launch adds or changes"),
        ({"tools": {"path": "/x", "scope": "rank"}}, "once a node"),
        ({"Tools/x": {"path": "/x"}}, "mapping of a name"),
        ({"tools": {"path": "/x", "patterns": []}}, "list of patterns"),
    ],
)
def test_node_caches_that_are_none_are_refused(given: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        config(tmp_path, node_caches=given)
    assert expected in str(caught.value)


@pytest.mark.parametrize("path", ["/", "relative", "{root}/cache", "{root}"])
def test_place_that_no_node_can_use_is_an_error_of_the_config(path: str, tmp_path: Path) -> None:
    data = config(tmp_path, node_caches={"tools": {"path": path.format(root=tmp_path)}})
    file = tmp_path / "launch.yaml"
    file.write_text(yaml.safe_dump(data.model_dump(mode="json")))
    with pytest.raises(ConfigError, match=r"node_caches\.tools\.path"):
        load(file)


# The keeper.


def test_keeper_finds_what_the_launch_added(tmp_path: Path) -> None:
    write(tmp_path / "tools/old.o", b"old")
    found = keeper(tmp_path)
    found.begin()
    write(tmp_path / "tools/new.o", b"new")
    assert [file.relative for file in found.collect(manifest(tmp_path))] == ["new.o"]
    report = found.report()
    assert (report.num_files, report.size_bytes, report.num_new, report.bytes_new) == (1, 3, 1, 3)


@pytest.mark.parametrize("waits", [False, True])
def test_kept_files_are_dropped_unless_a_partition_waits_that_may_need_them(tmp_path, waits):
    cache = tmp_path / "cache"
    old = kept_path(cache, kept(cache, tmp_path / "other", "tools/a.o", b"a").digest.sha256)
    os.utime(old, (0, 0))
    if waits:
        add_partition(cache, "1" * 64, make_partition(cache))
    keeper(tmp_path).collect(manifest(tmp_path))
    assert old.exists() is waits


def test_what_was_placed_from_the_store_is_not_new(tmp_path: Path) -> None:
    found = keeper(tmp_path)
    found.begin()
    file = kept(tmp_path / "cache", tmp_path / "other", "tools/a.o", b"a")
    write(tmp_path / "tools/a.o", b"a")  # as the seeding of the node does
    found.take_over(NodeSeedReport(files=(file,), num_fetched=1, num_placed=1))
    assert found.collect(manifest(tmp_path)) == (file,)
    assert (found.report().num_new, found.report().num_fetched) == (0, 1)


# The rank's process.


class Worker:
    """A rank that keeps what it is told."""

    def __init__(self, *_: Any) -> None:
        self.files: tuple[NodeFile, ...] | None = None

    def start(self) -> Any:
        return FakeWorld().make_worker(rank_spec_like(), None).start()

    def keep_for_node(self, files: tuple[NodeFile, ...]) -> None:
        self.files = files

    def manifest(self) -> Any:
        return FakeWorld().make_worker(rank_spec_like(), None).manifest()


def rank_spec_like() -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(rank=0, world_size=4)


@pytest.mark.parametrize(("rank", "is_first"), [(0, True), (1, False), (2, True), (3, False)])
def test_only_the_first_rank_of_a_node_collects(rank: int, tmp_path: Path, *, is_first: bool) -> None:
    worker = Worker()
    host = RankHost(lambda *_: worker)
    host.open(init(tmp_path, rank))
    write(tmp_path / "tools/new.o", b"new")
    host.call("publish", ("1" * 64, True, False))
    assert (worker.files is not None, host.call("node_report", ()) is not None) == (is_first, is_first)


# Other commands.


def launched(tmp_path: Path) -> Config:
    """A config whose store has a launch with node artifacts, one of them a package."""
    found = loaded_config(
        tmp_path,
        node_caches={
            "tools": {"path": str(tmp_path / "tools")},
            "others": {"path": str(tmp_path / "others")},
        },
    )
    assert found.store is not None
    store, work = open_store(Path(found.store.tiers[0].path)), tmp_path / "work"
    refs = []
    for rank in range(2):
        manifest = make_partition(work, rank=rank, world_size=2, environment=environment())
        of_node = (
            kept(work, tmp_path / "made", f"{name}/a.o", name.encode()) for name in ("tools", "others")
        )
        files = tuple(of_node) if rank == 0 else ()
        refs.append(store.publish_partition(launch_key(found), with_node_files(manifest, files), work).ref)
    record = make_record(tuple(refs), launch_key=launch_key(found), environment=environment())
    store.commit_launch(record.model_copy(update={"identity": identity(found)}))
    return found


def test_preseed_puts_node_artifacts_in_place(tmp_path: Path) -> None:
    found = seed_here(launched(tmp_path))
    assert found.node_artifacts is not None
    assert (found.node_artifacts.num_fetched, found.node_artifacts.num_placed) == (2, 2)
    assert (tmp_path / "tools/a.o").read_bytes() == b"tools"
    assert found.node_artifacts.skipped == ()


def test_verify_reads_node_artifacts_of_a_cache_directory(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    file = kept(cache, tmp_path / "made", "tools/a.o", b"a")
    assert (verify_cache(cache).num_files, verify_cache(cache).faults) == (1, ())
    (path,) = cache.glob(f"node/??/{file.digest.sha256}")
    path.write_bytes(b"b")
    assert "its bytes have" in verify_cache(cache).faults[0]
