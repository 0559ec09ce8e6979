"""Which ranks an offline build makes for themselves, and which get copies: pure functions.

Ranks that differ in their data-parallel position only are given the same model, so the first of each position
in the pipeline and the tensor-parallel group is built, and stands for the others. One of those, the last
rank of all, is built as well, as a witness. What a copy holds is checked again by every launch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from warmrank.cache_store.keys import changed_components
from warmrank.cache_store.records.manifest import ArtifactEntry, PartitionManifest
from warmrank.orchestrator.config.models import Config
from warmrank.orchestrator.launch.plan import Slot
from warmrank.worker.results import FunctionProbe, FunctionResult


def num_positions(config: Config) -> int:
    """Number of ranks that differ in more than their data-parallel position: ranks below it are the first."""
    return config.ranks // config.parallel.dp


def built_ranks(config: Config, *, every_rank: bool) -> tuple[int, ...]:
    """Ranks that are built: the first of each position and the witness, or all."""
    if every_rank:
        return tuple(range(config.ranks))
    return tuple(sorted({*range(num_positions(config)), config.ranks - 1}))


def model_rank(rank: int, config: Config) -> int:
    """The rank that stands for another; `orchestrator.config.models.groups` says how ranks are numbered."""
    return rank % num_positions(config)


def differences(
    config: Config,
    probes: Mapping[int, tuple[FunctionProbe, ...]],
    results: Mapping[Slot, FunctionResult],
    bound: Collection[str],
) -> tuple[str, ...]:
    """What the witness has other than the rank that stands for it, in words; empty if nothing.

    Args:
        config: the launch.
        probes: by rank.
        results: by rank and function.
        bound: functions that hold on one rank alone, which nothing stands for.
    """
    witness = max(probes)
    model = model_rank(witness, config)
    mine = {probe.function: probe for probe in probes[witness] if probe.function not in bound}
    theirs = {probe.function: probe for probe in probes[model] if probe.function not in bound}
    found = [f"{name}: only one of them calls it" for name in sorted(mine.keys() ^ theirs.keys())]
    for name in mine.keys() & theirs.keys():
        changes = changed_components(theirs[name].components, mine[name].components)
        if changes:
            found.append(f"{name}: {'; '.join(map(str, changes))}")
        elif results[witness, name].digest != results[model, name].digest:
            found.append(f"{name}: {results[witness, name].reason or 'its guards do not hold'}")
    return tuple(found)


def replica(manifest: PartitionManifest, rank: int, *, without: Collection[str] = ()) -> PartitionManifest:
    """The manifest of a rank for which another one stands.

    Args:
        manifest: of the rank that stands for it.
        rank: the rank.
        without: functions that the rank does not share.
    """
    old, new = (f"world{manifest.world_size}global_rank{number}" for number in (manifest.rank, rank))
    # A partition's name goes on with the tensor-parallel and pipeline rank, which both share.
    here = re.compile(rf"(?<=/){old}(?=[/_])")
    return manifest.model_copy(
        update={
            "partition": new,
            "rank": rank,
            "requests": tuple(item for item in manifest.requests if item.function not in without),
            "artifacts": tuple(
                _moved(item, here, new) for item in manifest.artifacts if item.function not in without
            ),
        }
    )


def _moved(entry: ArtifactEntry, here: re.Pattern[str], partition: str) -> ArtifactEntry:
    return entry.model_copy(update={"path": here.sub(partition, entry.path)})
