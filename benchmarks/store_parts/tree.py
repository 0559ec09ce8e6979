"""Trees like those that a compile leaves, always the same bytes, and their manifests."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from math import exp
from pathlib import Path

from warmrank.cache_store.digests import digest_file
from warmrank.cache_store.records.manifest import ArtifactEntry, PartitionManifest, utc_now

MIB = 1 << 20
LAUNCH_KEY = "0f" * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A tree: ``num_shared`` functions are equal on all ranks, ``num_own`` differ on each."""

    num_ranks: int = 8
    num_shared: int = 243
    num_own: int = 28
    size_bytes: int = 1603 * MIB
    worlds: tuple[int, ...] = (16, 64, 256, 1024, 4096)


SMALL = Shape(num_ranks=4, num_shared=20, num_own=5, size_bytes=2 * MIB, worlds=(4, 16))


def function_dir(rank: int, world_size: int, function: int) -> str:
    """Where a function's artifacts lie."""
    return f"Llama_dynamic_aclgraphcache_0f/world{world_size}global_rank{rank}/f{function:03d}"


def make_tree(root: Path, shape: Shape) -> None:
    """Write the tree; sizes are log-normal, and three quarters of the bytes repeat, as in compiler output."""
    num_functions = shape.num_shared + shape.num_own
    normal = statistics.NormalDist(sigma=1.5)
    weights = [exp(normal.inv_cdf((i + 0.5) / num_functions)) for i in range(num_functions)]
    random.Random(0).shuffle(weights)  # noqa: S311 - the same each time
    scale = shape.size_bytes / (sum(weights) * shape.num_ranks)
    for function, weight in enumerate(weights):
        for rank in range(shape.num_ranks):
            seed = function if function < shape.num_shared else function * 1000 + rank
            path = root / function_dir(rank, shape.num_ranks, function) / "compiled_module"
            write_private(path, seed, int(weight * scale) + 1)


def write_private(path: Path, seed: int, size_bytes: int) -> None:
    """Write a file that depends on ``seed`` only."""
    path.parent.mkdir(parents=True, mode=0o700)
    source = random.Random(seed)  # noqa: S311 - the same each time
    with path.open("wb") as file:
        path.chmod(0o600)
        while (left := size_bytes - file.tell()) > 0:
            block = source.randbytes(min(16384, -(-left // 4)))
            file.write((block * 4)[:left])


def describe(root: Path, rank: int, world_size: int, num_functions: int) -> PartitionManifest:
    """The manifest of a rank, as a worker makes it after its compile: it knows the digests by then."""
    artifacts = []
    for function in range(num_functions):
        path = f"{function_dir(rank, world_size, function)}/compiled_module"
        digest = digest_file(root / path)
        artifacts.append(
            ArtifactEntry(
                function=f"Llama.f{function:03d}",
                path=path,
                request_key=LAUNCH_KEY,
                provenance=f"{function:064x}",
                sha256=digest.sha256,
                size_bytes=digest.size_bytes,
            )
        )
    return PartitionManifest(
        partition=f"world{world_size}global_rank{rank}",
        rank=rank,
        world_size=world_size,
        environment={},
        requests=(),
        artifacts=tuple(artifacts),
        captures=(),
        created=utc_now(),
    )
