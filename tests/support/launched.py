"""Configs, launches in a store, and reports, for tests of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import yaml

from tests.support.stored import FUNCTIONS, make_partition, make_record, open_store, store_config
from warmrank.cache_store.records.manifest import LaunchRecord
from warmrank.orchestrator.config.reading import Config, load
from warmrank.orchestrator.launch.identity import identity, launch_key
from warmrank.orchestrator.launch.report import (
    SCHEMA_VERSION,
    Committed,
    FunctionReport,
    RankReport,
    Report,
    totals,
)
from warmrank.orchestrator.launch.state import Course
from warmrank.worker.environment import environment
from warmrank.worker.results import Outcome, StageSeconds, Verification


def write_config(directory: Path, **changes: object) -> Path:
    """A config file whose cache and store lie beside it."""
    data: dict[str, object] = {
        "workload": {"entrypoint": "models.tiny:workload", "arguments": {"layers": 8}},
        "ranks": 2,
        "parallel": {"tp": 2},
        "cache_dir": str(directory / "cache"),
        "store": store_config(directory / "store"),
        **changes,
    }
    path = directory / "tiny.yaml"
    path.write_text(yaml.safe_dump(data))
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
    """The report of a launch of two ranks with one function."""
    seconds = StageSeconds(trace_s=trace_s, compile_s=trace_s, load_s=0.01, capture_s=0.02, first_call_s=0.03)
    function = FunctionReport(
        function="Tiny.double",
        outcome=outcome,
        reason="the cache holds nothing" if outcome == "compiled" else "",
        request_key="ab" * 16,
        digest="cd" * 32,
        size_bytes=2048,
        path="cache/Tiny/double/compiled_module",
        seconds=seconds,
    )
    check = Verification(ok=True, max_error=0.0, tolerance=1e-4, compared="double with arithmetic")
    ranks = tuple(
        RankReport(
            rank=rank,
            host="node",
            node_rank=0,
            local_rank=rank,
            pid=1,
            log="",
            functions=(function,),
            verification=check,
        )
        for rank in range(2)
    )
    return Report(
        schema_version=SCHEMA_VERSION,
        outcome="warm",
        exit_code=0,
        failure=None,
        course=Course(),
        name="tiny",
        launch_key="ef" * 32,
        identity={},
        environment={},
        other_environments=(),
        world_size=2,
        parallel={"tp": 2, "pp": 1, "dp": 1},
        started="2026-01-31T12:00:00+00:00",
        cache_dir="cache",
        store="",
        record="",
        tiers=(),
        ranks=ranks,
        fetches=(),
        publishes=(),
        nondeterministic=(),
        queued_on=(),
        stages=(),
        totals=totals(ranks, (), Committed(), wall_s),
        problems=(),
    )
