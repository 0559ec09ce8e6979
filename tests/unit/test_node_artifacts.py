"""Node artifacts through the store: published with a node's first rank, fetched once by every node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.fake_rank import FakeWorld
from tests.support.launching import loaded_config
from tests.support.node_artifacts import destinations, kept, publish_nodes, write
from tests.support.stored import (
    CREATED,
    ENVIRONMENT,
    LAUNCH_KEY,
    OFF,
    blob_path,
    make_partition,
    make_record,
    open_store,
    overwrite,
    publish_launch,
    store_config,
)
from warmrank.cache_store.cache_dir.marks import SIGNERS, UNVERIFIED
from warmrank.cache_store.cache_dir.node_files import NodeFile, kept_files, kept_path
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.fetch.manifests import take_pinned
from warmrank.cache_store.gc.evict_plan import EvictPolicy
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.publish_pending import (
    AwaitedPartition,
    WaitingLaunch,
    add_launch,
    add_partition,
    publish_pending,
)
from warmrank.cache_store.records.manifest import PartitionManifest
from warmrank.cache_store.seed import NodeSeedReport, SeedReport, Wanted, seed
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.reading import Config, load, node_caches_of, parse
from warmrank.orchestrator.errors import ConfigError
from warmrank.orchestrator.gang.launcher import Process, seat_ranks
from warmrank.orchestrator.gang.node_artifacts import NodeKeeper
from warmrank.orchestrator.gang.rank_host import InProcessLauncher, RankHost, RankInit
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.identity import identity, launch_key
from warmrank.orchestrator.launch.report import Report, from_json, to_json
from warmrank.orchestrator.look.verify import verify_cache
from warmrank.orchestrator.nodes import NodeArtifacts
from warmrank.orchestrator.seed.here import seed_here
from warmrank.worker.keys.environment import environment
from warmrank.worker.rank.manifests import with_node_files
from warmrank.worker.rank.rank_worker import RankWorker

ADD, MUL = "operators/kernel_cache/add.o", "operators/kernel_cache/mul.o"
EARLY, LATE = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"


def run(store: Store, node: Path, **changes: Any) -> SeedReport:
    """Seed a node, which has its cache directory and its tools' directories below ``node``."""
    arguments: dict[str, Any] = {
        "launch_key": LAUNCH_KEY,
        "environment": ENVIRONMENT,
        "world_size": 4,
        "ranks": None,
        "node_caches": destinations(node),
    }
    return seed(store, Wanted(**(arguments | changes)), node / "cache")


def placed(node: Path) -> dict[str, bytes]:
    """What a node's tools find."""
    roots = {"operators": node / "atc_data", "mine": node / "mine", "ge": node / "ge"}
    return {
        f"{name}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for name, root in roots.items()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not {UNVERIFIED, SIGNERS} & set(path.parts)
    }


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "node").mkdir(mode=0o700)
    return tmp_path / "node"


def test_node_gets_the_artifacts_of_the_node_that_hosted_its_ranks(store, source, tmp_path):
    publish_nodes(store, source, {0: {ADD: b"of node 0"}, 2: {ADD: b"of node 1"}}, world_size=4)
    for first, expected in ((0, b"of node 0"), (2, b"of node 1")):
        node = tmp_path / f"node{first}"
        node.mkdir()
        report = run(store, node, ranks=(first, first + 1))
        assert placed(node) == {ADD: expected}
        assert (report.node.num_fetched, report.node.num_placed, report.node.skipped) == (1, 1, ())


def test_larger_node_gets_those_of_every_smaller_one_that_it_replaces(store, source, node):
    publish_nodes(store, source, {0: {ADD: b"add"}, 2: {MUL: b"mul"}}, world_size=4)
    run(store, node, ranks=(0, 1, 2, 3))
    assert placed(node) == {ADD: b"add", MUL: b"mul"}


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_another_world_gets_those_of_each_distinct_set_of_artifacts(store, source, node, world_size):
    functions = {rank: {"M.f": b"stage 0" if rank < 2 else b"stage 1"} for rank in range(4)}
    nodes = {0: {ADD: b"of stage 0"}, 2: {MUL: b"of stage 1"}}
    publish_nodes(store, source, nodes, world_size=4, functions=functions)
    run(store, node, world_size=world_size, ranks=tuple(range(world_size)))
    assert placed(node) == {ADD: b"of stage 0", MUL: b"of stage 1"}


def test_stage_that_no_first_rank_hosts_counts_with_its_node(store, source, node):
    # Nodes of two ranks: rank 3 runs another stage than rank 2, which keeps the node's artifacts.
    functions = {rank: {"M.f": b"last" if rank == 3 else b"usual"} for rank in range(4)}
    publish_nodes(store, source, {0: {ADD: b"0"}, 2: {MUL: b"2"}}, world_size=4, functions=functions)
    run(store, node, world_size=8, ranks=(0, 1))
    assert placed(node) == {ADD: b"0", MUL: b"2"}


def test_of_each_path_the_newest_launch_counts(store, source, node):
    publish_nodes(store, source, {0: {ADD: b"early", MUL: b"early"}}, world_size=4, created=EARLY)
    publish_nodes(store, source, {0: {ADD: b"late"}}, world_size=4, created=LATE)
    run(store, node, ranks=(0, 1))
    assert placed(node) == {ADD: b"late", MUL: b"early"}


def test_what_is_gone_of_the_newest_launch_comes_from_an_earlier_one(store, root, source, node):
    publish_nodes(store, source, {0: {ADD: b"early", MUL: b"early"}}, world_size=4, created=EARLY)
    publish_nodes(store, source, {0: {ADD: b"late", MUL: b"late too"}}, world_size=4, created=LATE)
    blob_path(root, b"late").unlink()
    report = run(store, node, ranks=(0, 1)).node
    assert placed(node) == {ADD: b"early", MUL: b"late too"}
    assert ADD in report.skipped[0]


def test_of_an_engines_artifact_one_whole_set_comes(store, root, source, node):
    early = {f"ge/a/c/set1/{name}": name.encode() for name in ("g.om", "g.idx")}
    late = {f"ge/a/c/set2/{name}": f"late {name}".encode() for name in ("g.om", "g.idx")}
    publish_nodes(store, source, {0: early}, world_size=4, created=EARLY)
    publish_nodes(store, source, {0: late | {"ge/b/c/set/g.om": b"b"}}, world_size=4, created=LATE)
    run(store, node, ranks=(0, 1))
    assert placed(node) == late | {"ge/b/c/set/g.om": b"b"}
    blob_path(root, b"late g.om").unlink()
    other = node.parent / "other"
    other.mkdir(mode=0o700)
    run(store, other, ranks=(0, 1))
    assert placed(other) == early | {"ge/b/c/set/g.om": b"b"}


def test_what_the_node_does_not_declare_is_not_fetched(store, source, node):
    files = {ADD: b"add", "strange/x": b"x", "operators/startup.sh": b"sh"}
    publish_nodes(store, source, {0: files}, world_size=4)
    report = run(store, node, ranks=(0, 1)).node
    assert (placed(node), len(kept_files(node / "cache"))) == ({ADD: b"add"}, 1)
    assert [reason.split(",")[0] for reason in report.skipped] == [
        "node/operators: 1 file",
        "node/strange: 1 file",
    ]


def test_one_budget_holds_for_all_launches_and_nodes(store, source, node, monkeypatch):
    from warmrank.cache_store.fetch import node_artifacts as node_offers

    functions = {rank: {"M.f": f"{rank}".encode()} for rank in range(4)}
    for created in (EARLY, LATE):
        nodes = {rank: {f"mine/{rank}{created[6]}": f"{rank}{created}".encode()} for rank in range(4)}
        publish_nodes(store, source, nodes, world_size=4, functions=functions, created=created)
    monkeypatch.setattr(node_offers, "MAX_FILES", 3)
    report = run(store, node, world_size=8, ranks=(0,)).node
    assert sorted(placed(node)) == ["mine/02", "mine/12", "mine/22"]
    assert (report.num_fetched, len(report.skipped)) == (3, 5)
    assert "more than 3 files" in report.skipped[0]


# What goes wrong keeps nothing else back.


def test_missing_blob_of_a_node_artifact_keeps_no_partition_back(store, root, source, node):
    publish_nodes(store, source, {0: {ADD: b"add", MUL: b"mul"}}, world_size=4)
    blob_path(root, b"add").unlink()
    report = run(store, node, ranks=(0, 1))
    assert (len(report.partitions), report.faults) == (2, ())
    assert placed(node) == {MUL: b"mul"}
    assert report.node.skipped[0].startswith("node/operators/kernel_cache/add.o: ")


def test_damaged_blob_of_a_node_artifact_is_never_placed(store, root, source, node):
    publish_nodes(store, source, {0: {ADD: b"add"}}, world_size=4)
    overwrite(blob_path(root, b"add"), b"bad")
    report = run(store, node, ranks=(0, 1))
    assert (len(report.partitions), placed(node), kept_files(node / "cache")) == (2, {}, ())
    assert "corrupt" in report.node.skipped[0]


# Trust.


def test_unsigned_node_artifacts_mark_the_nodes_own_directories(store, root, source, node):
    publish_nodes(store, source, {0: {ADD: b"add"}}, world_size=4)
    run(store, node, ranks=(0, 1))
    assert (node / "atc_data" / UNVERIFIED).exists()
    strict = open_store(root, Trust(policy="require"))
    (node / "cache").rename(node / "former_cache")
    report = run(strict, node, ranks=(0, 1))
    assert report.node.skipped[0].startswith("node cache operators: ")
    assert (report.node.files, kept_files(node / "cache")) == ((), ())


def test_cache_directory_is_marked_for_unsigned_names_of_bytes_that_it_kept_before(
    store, source, node, tmp_path
):
    record = publish_nodes(store, source, {0: {ADD: b"add"}}, world_size=4)
    kept(node / "cache", tmp_path / "tools", ADD, b"add")
    found = store.fetch_node_files(record.partitions, destinations(node), node / "cache")
    assert (found.num_copied, len(found.files)) == (0, 1)
    assert (node / "cache" / UNVERIFIED).exists()


# The rest of a manifest's life.


def test_evict_takes_node_artifacts_with_their_launch_and_keeps_those_of_others(store, root, source):
    for created, data in ((EARLY, b"early"), (LATE, b"late")):
        publish_nodes(store, source, {0: {ADD: data}}, world_size=2, created=created)
    store.evict(EvictPolicy(older_than_s=0.0, keep=1, grace_s=0.0, quarantine_s=0.0))
    assert not blob_path(root, b"early").exists()
    assert blob_path(root, b"late").exists()


def test_verify_says_that_a_node_artifact_is_missing(store, root, source):
    publish_nodes(store, source, {0: {ADD: b"add"}}, world_size=2)
    assert store.verify().faults == ()
    blob_path(root, b"add").unlink()
    (fault,) = store.verify().faults
    assert blob_name(digest_bytes(b"add").sha256) in fault


def test_later_node_artifacts_make_a_manifest_of_their_own(store, source, tmp_path):
    manifest = make_partition(source)
    keys = {
        store.publish_partition(
            LAUNCH_KEY,
            with_node_files(manifest, [kept(source, tmp_path / "tools", ADD, data)] if data else []),
            source,
        ).key
        for data in (b"", b"one", b"two")
    }
    assert len(keys) == 3
    assert all(store.manifest(key).partition == manifest.partition for key in keys)


def test_node_artifacts_wait_with_their_partition_while_the_store_is_away(store, source, node, tmp_path):
    files = [kept(source, tmp_path / "tools", ADD, b"add")]
    manifest = with_node_files(make_partition(source), files)
    key = add_partition(source, LAUNCH_KEY, manifest)
    awaited = AwaitedPartition(partition=manifest.partition, rank=0, manifest_key=key)
    add_launch(
        source,
        WaitingLaunch(
            launch_key=LAUNCH_KEY, identity={}, world_size=1, environment=ENVIRONMENT,
            partitions=(awaited,), created=CREATED,
        ),
    )  # fmt: skip
    report = publish_pending(store, source)
    assert (report.published, report.kept, report.dropped) == ((key,), {}, {})
    run(store, node, world_size=1, ranks=(0,))
    assert placed(node) == {ADD: b"add"}


def test_later_launches_take_no_kept_bytes_away_from_what_waits(store, source, tmp_path):
    waiting = with_node_files(make_partition(source), [kept(source, tmp_path / "tools", ADD, b"early")])
    kept(source, tmp_path / "tools", ADD, b"late")
    assert kept_path(source, digest_bytes(b"early").sha256).read_bytes() == b"early"
    assert store.publish_partition(LAUNCH_KEY, waiting, source).created


def test_launches_without_node_artifacts_look_no_further_than_a_large_nodes_ranks(
    store, source, node, monkeypatch
):
    from warmrank.cache_store.fetch import node_artifacts

    monkeypatch.setattr(node_artifacts, "MAX_NODE_RANKS", 2)
    publish_launch(store, source, world_size=4)
    looked: list[int] = []
    real = take_pinned

    def note(documents: Any, refs: Any, keep: Any) -> Any:
        looked.extend(ref.rank for ref in refs)
        return real(documents, refs, keep)

    monkeypatch.setattr(node_artifacts, "take_pinned", note)
    run(store, node, ranks=(3,), launch_key=LAUNCH_KEY)
    assert looked == [3, 2, 1]


def test_nearer_place_gets_the_blobs_of_node_artifacts(tmp_path, source, node):
    from warmrank.cache_store.connect import TierSpec
    from warmrank.cache_store.connect import open_store as open_tiers

    near, far = tmp_path / "near", tmp_path / "far"
    publish_nodes(open_store(far), source, {0: {ADD: b"add"}}, world_size=4)
    both = open_tiers([TierSpec(location=str(near)), TierSpec(location=str(far))], trust=OFF)
    run(both, node, ranks=(0, 1))
    assert blob_path(near, b"add").exists()


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


KERNEL = "atc_data/kernel_cache/Ascend910/add.o"


class Cluster:
    """A store, and nodes with a home and a cache directory each; a tool compiles what its home lacks."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, patch
        self.num_compiles = 0
        first_call = RankWorker.first_call

        def with_tool(worker: RankWorker, place: int) -> Any:
            self._run_tool(self.root / self.node / KERNEL)
            return first_call(worker, place)

        patch.setattr(RankWorker, "first_call", with_tool)
        self.node = ""

    def _run_tool(self, kernel: Path) -> None:
        if not kernel.exists():
            self.num_compiles += 1
            kernel.parent.mkdir(parents=True, mode=0o700)
            kernel.write_bytes(b"kernel")

    def launch(self, node: str, num_ranks: int) -> Report:
        self.node = node
        self.patch.setenv("HOME", str(self.root / node))
        config = parse(
            {
                "workload": {"entrypoint": "tests.support.tiny_workload:workload"},
                "ranks": num_ranks,
                "parallel": {"dp": num_ranks},
                "cache_dir": str(self.root / node / "cache"),
                "store": store_config(self.root / "store"),
                "node_caches": {"operators": {"path": "~/atc_data", "patterns": ["kernel_cache*/*"]}},
            }
        )
        report = launch(config, launcher=InProcessLauncher())
        return from_json(to_json(report))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


def of(report: Report) -> NodeArtifacts:
    (node,) = report.node_artifacts
    return node.artifacts


@pytest.mark.slow
def test_new_node_finds_what_another_ones_tools_made(cluster: Cluster) -> None:
    cold = of(cluster.launch("one", 2))
    assert (cold.num_new, cold.num_files, cold.num_fetched, cluster.num_compiles) == (1, 1, 0, 1)
    report = cluster.launch("two", 4)
    assert (of(report).num_fetched, of(report).num_placed, of(report).num_new) == (1, 1, 0)
    assert (cluster.num_compiles, report.totals.num_compiled) == (1, 0)
    assert (cluster.root / "two" / KERNEL).read_bytes() == b"kernel"
    # What came from the store stays in the manifests of those who use it.
    assert of(cluster.launch("three", 4)).num_placed == 1
