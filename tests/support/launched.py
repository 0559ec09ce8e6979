"""Configs, launches in a store, and reports, for tests of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import yaml

from tests.support.made_reports import made_report
from tests.support.stored import FUNCTIONS, make_partition, make_record, open_store, store_config
from warmrank.cache_store.records.manifest import LaunchRecord
from warmrank.orchestrator.config.reading import Config, load
from warmrank.orchestrator.launch.identity import identity, launch_key
from warmrank.orchestrator.launch.report import Committed, Report, totals
from warmrank.orchestrator.launch.state import Course
from warmrank.worker.keys.environment import environment
from warmrank.worker.results import Outcome, StageSeconds


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
        course=Course(),
        stages=(),
        store="",
        tiers=(),
        record="",
        ranks=ranks,
        fetches=(),
        publishes=(),
        totals=totals(ranks, (), Committed(), wall_s),
    )
