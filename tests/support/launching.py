"""Configs and launches of the tiny workload, launchers and listeners for them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tests.support.in_process import InProcessLauncher
from tests.support.made_reports import made_report
from tests.support.stored import FUNCTIONS, make_partition, make_record, open_store, store_config
from warmrank.cache_store.records.manifest import LaunchRecord
from warmrank.orchestrator.config.models import identity, launch_key
from warmrank.orchestrator.config.reading import Config, load, parse
from warmrank.orchestrator.gang.launcher import Process, place_ranks
from warmrank.orchestrator.gang.rank_host import MakeWorker, RankInit
from warmrank.orchestrator.launch.driver import launch
from warmrank.orchestrator.launch.events import Listener, Timeline, silence
from warmrank.orchestrator.launch.report import Report, totals
from warmrank.orchestrator.nodes import Gang
from warmrank.worker.keys.request import environment
from warmrank.worker.rank.rank_worker import RankSpec
from warmrank.worker.results import Outcome, StageSeconds


def write_config(directory: Path, **changes: object) -> Path:
    """A config file whose cache and store lie beside it."""
    workload = {"entrypoint": "models.tiny:workload", "arguments": {"layers": 8}}
    path = directory / "tiny.yaml"
    path.write_text(yaml.safe_dump(data_of(directory, **{"workload": workload, **changes})))
    return path


def store_launch(
    config: Config,
    work: Path,
    *,
    world_size: int = 2,
    here: Mapping[str, str] | None = None,
    elsewhere: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
    created: str = "2026-01-31T12:00:00+00:00",
    functions: Mapping[str, bytes] = FUNCTIONS,
) -> LaunchRecord:
    """Publish a launch of ``config`` into its store; ``work`` is the cache directory that it comes from."""
    assert config.store is not None
    store = open_store(Path(config.store.tiers[0].path))
    here = environment() if here is None else here
    refs = []
    for rank in range(world_size):
        manifest = make_partition(
            work,
            rank=rank,
            world_size=world_size,
            environment=elsewhere.get(rank, here),
            created=created,
            functions=functions,
        )
        refs.append(store.publish_partition(launch_key(config), manifest, work).ref)
    record = make_record(
        tuple(refs), launch_key=launch_key(config), environment=here, elsewhere=elsewhere, created=created
    ).model_copy(update={"identity": identity(config)})
    store.commit_launch(record)
    return record


def loaded_config(directory: Path, **changes: object) -> Config:
    return load(write_config(directory, **changes))


def make_report(outcome: Outcome = "loaded", *, trace_s: float = 0.0, wall_s: float = 1.0) -> Report:
    """The report of a launch of two ranks with one function, without a store."""
    seconds = StageSeconds(trace_s=trace_s, compile_s=trace_s, load_s=0.01, capture_s=0.02, first_call_s=0.03)
    reason = "the cache holds nothing" if outcome == "compiled" else ""
    made = made_report(2)
    ranks = tuple(
        replace(rank, functions=(replace(found, outcome=outcome, reason=reason, seconds=seconds),))
        for rank in made.ranks
        for found in rank.functions[:1]
    )
    return replace(
        made,
        name="tiny",
        timeline=Timeline(),
        stages=(),
        store="",
        tiers=(),
        record="",
        ranks=ranks,
        fetches=(),
        publishes=(),
        totals=totals(ranks, wall_s=wall_s),
    )


ENTRYPOINT = "tests.support.tiny_workload:workload"


def data_of(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "tiny",
        "workload": {"entrypoint": ENTRYPOINT},
        "ranks": 2,
        "parallel": {"tp": 2},
        "cache_dir": str(tmp_path / "cache"),
        "store": store_config(tmp_path / "store"),
        **changes,
    }


def counts(report: Report) -> tuple[int, int, int]:
    return report.totals.num_compiled, report.totals.num_loaded, report.totals.num_adopted


class House:
    """A store, and any number of nodes with a disk each, for launches in this process."""

    def __init__(self, root: Path, **data: Any) -> None:
        self.root, self._data = root, data

    def config(self, num_ranks: int = 1, *, node: str = "n1", **changes: Any) -> Config:
        return parse(
            {
                **data_of(self.root, ranks=num_ranks, parallel={"dp": num_ranks}),
                "cache_dir": str(self.root / node),
                **self._data,
                **changes,
            }
        )

    def launch(self, num_ranks: int = 1, *, no_compile: bool = False, **changes: Any) -> Report:
        """Launch on one node."""
        return launch(self.config(num_ranks, **changes), no_compile=no_compile, launcher=InProcessLauncher())

    def launch_on(self, nodes: Sequence[str], *, listener: Listener = silence, **changes: Any) -> Report:
        """Launch a rank on each of these nodes, which may be named more than once."""
        launcher = NodeLauncher(nodes, self.root / "disks")
        return launch(self.config(len(nodes), **changes), listener=listener, launcher=launcher)


class NodeLauncher(InProcessLauncher):
    """Places ranks on named nodes; see `orchestrator.gang.launcher.Launcher`.

    Args:
        nodes: of every rank; those of one node stand together.
        disks: where each node's cache directory lies, under its name.
        make_worker: as in `RankHost`.
        host: the host name of all nodes; empty where the name of each is its host name.
    """

    def __init__(
        self, nodes: Sequence[str], disks: Path, make_worker: MakeWorker | None = None, *, host: str = ""
    ) -> None:
        super().__init__(make_worker)
        self._host = host
        self._nodes = tuple(nodes)
        self._disks = disks

    def start(self, num_ranks: int, *, timeout_s: float) -> Gang:
        """Make the ranks, and placement them."""
        gang = super().start(num_ranks, timeout_s=timeout_s)
        processes = [
            Process(node_id=node, host=self._host or node, address="127.0.0.1", pid=os.getpid())
            for node in self._nodes
        ]
        return replace(gang, placements=place_ranks(processes)[1], master_port=0)

    def call(
        self, stage: str, method: str, arguments: Mapping[int, tuple[Any, ...]], *, timeout_s: float
    ) -> Iterator[tuple[int, Any]]:
        """Call one rank after the other; what opens a rank names the disk of its node."""
        if method == "open":
            arguments = {rank: (self._init(rank, *values),) for rank, values in arguments.items()}
        return super().call(stage, method, arguments, timeout_s=timeout_s)

    def _init(self, rank: int, init: RankInit) -> RankInit:
        cache_dir = self._disks / self._nodes[rank]
        config = pickle.loads(init.config).model_copy(update={"cache_dir": cache_dir})  # noqa: S301 - its own
        return replace(init, spec=replace(init.spec, cache_dir=str(cache_dir)), config=pickle.dumps(config))


def rank_spec(cache_dir: Path, **changed: Any) -> RankSpec:
    """A rank without process groups; ``changed`` replaces single values."""
    world_size = changed.get("world_size", 1)
    values: dict[str, Any] = {
        "rank": 0,
        "world_size": world_size,
        "local_rank": 0,
        "local_world_size": world_size,
        "node_rank": 0,
        "master_addr": "127.0.0.1",
        "master_port": 0,
        "device_kind": "cpu",
        "groups": {"world": range(world_size)},
        "entrypoint": "tests.support.workloads:plain",
        "arguments": {},
        "cache_dir": str(cache_dir),
        "guards": "once",
        "timeout_s": 30.0,
    }
    return RankSpec(**{**values, **changed})
