"""Ranks that are only numbers: what a launch's planner and store are told of them, and nothing else.

Tensor parallel 8 (fastest), pipeline 4, data parallel the rest. Ranks of one pipeline stage ask for the same,
so a cold launch compiles once a stage; what distinguishes them otherwise (their groups) is bound at load.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.cache_dir.private_files import make_private_directories
from warmrank.cache_store.canonical import key_of
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.cache_store.records.manifest import (
    ArtifactEntry,
    CaptureEntry,
    PartitionManifest,
    RequestEntry,
    utc_now,
)
from warmrank.worker.results import CaptureProposal, FunctionProbe

FUNCTIONS = ("Llama.prefill", "Llama.decode")
RANKS_A_NODE = 8
ENVIRONMENT = {f"component {number:02d}": f"version {number}.0.1+{'ab' * 8}" for number in range(24)}
"""About as many, and as long, as those of a real rank."""

LAUNCH_KEY = key_of({"benchmark": "scale"})


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A launch of so many ranks."""

    ranks: int

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return min(8, self.ranks)

    @property
    def pp(self) -> int:
        """Pipeline-parallel size, and so the number of classes of a function."""
        return min(4, self.ranks // self.tp)

    def stage(self, rank: int) -> int:
        """Pipeline stage of a rank."""
        return rank // self.tp % self.pp

    def nodes(self) -> dict[int, int]:
        """Node of every rank."""
        return {rank: rank // RANKS_A_NODE for rank in range(self.ranks)}


def artifact(function: str, stage: int) -> bytes:
    """The bytes that every rank of a stage compiles a function to."""
    return f"# {function} of stage {stage}\n".encode() * 400


def digest_of(function: str, stage: int) -> Digest:
    """Their digest."""
    return digest_bytes(artifact(function, stage))


def request_key(function: str, stage: int) -> str:
    """What the ranks of a stage ask for."""
    return key_of({"function": function, "stage": str(stage), **ENVIRONMENT})


def probes(world: World, *, state: str) -> dict[int, tuple[FunctionProbe, ...]]:
    """What all ranks find: a ``miss`` if cold, a ``hit`` if warm, ``adoptable`` after a change of size."""
    by_stage = {
        stage: tuple(_probe(function, stage, state) for function in FUNCTIONS) for stage in range(world.pp)
    }
    return {rank: by_stage[world.stage(rank)] for rank in range(world.ranks)}


def _probe(function: str, stage: int, state: str) -> FunctionProbe:
    return FunctionProbe(
        function=function,
        request_key=request_key(function, stage)[:32],
        components=ENVIRONMENT,
        state=state,  # type: ignore[arg-type]
        reason="nothing lies there" if state == "miss" else "",
        digest="" if state == "miss" else digest_of(function, stage).sha256,
    )


def proposals(world: World) -> dict[int, tuple[CaptureProposal, ...]]:
    """What all ranks would capture: two calls, and two graphs of an earlier plan."""
    own = tuple(
        CaptureProposal(
            function=function,
            signature="" if position < 2 else f"int64[{position}]",
            shapes="" if position < 2 else f"int64[{position}]",
            num_elements=100 - position,
            planned=position >= 2,
        )
        for position, function in enumerate(FUNCTIONS * 2)
    )
    return dict.fromkeys(range(world.ranks), own)


def write_artifacts(world: World, root: Path) -> dict[str, Path]:
    """Each distinct artifact once below a cache directory, by its sha256."""
    files: dict[str, Path] = {}
    make_private_directories(root)
    for stage in range(world.pp):
        for function in FUNCTIONS:
            sha256 = digest_of(function, stage).sha256
            files[sha256] = root / sha256
            files[sha256].touch(mode=0o600)
            files[sha256].write_bytes(artifact(function, stage))
    return files


def manifests(world: World) -> list[PartitionManifest]:
    """What every rank would publish."""
    created = utc_now()
    digests = {(name, stage): digest_of(name, stage) for name in FUNCTIONS for stage in range(world.pp)}
    keys = {(name, stage): request_key(name, stage) for name in FUNCTIONS for stage in range(world.pp)}
    return [
        _manifest(world, rank, digests=digests, keys=keys, created=created) for rank in range(world.ranks)
    ]


def _manifest(
    world: World,
    rank: int,
    *,
    digests: dict[tuple[str, int], Digest],
    keys: dict[tuple[str, int], str],
    created: str,
) -> PartitionManifest:
    partition, stage = f"world{world.ranks}global_rank{rank}", world.stage(rank)
    return PartitionManifest(
        partition=partition,
        rank=rank,
        world_size=world.ranks,
        environment=ENVIRONMENT,
        requests=tuple(
            RequestEntry(function=name, key=keys[name, stage], components=ENVIRONMENT) for name in FUNCTIONS
        ),
        artifacts=tuple(
            ArtifactEntry(
                function=name,
                path=f"Llama_dynamic_aclgraphcache_0f/{partition}/{name.rpartition('.')[2]}/compiled_module",
                request_key=keys[name, stage],
                provenance=keys[name, stage],
                sha256=digests[name, stage].sha256,
                size_bytes=digests[name, stage].size_bytes,
            )
            for name in FUNCTIONS
        ),
        captures=tuple(CaptureEntry(function=name, signature="int64[1, 8]") for name in FUNCTIONS),
        created=created,
    )
