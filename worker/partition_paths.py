"""TorchAir's paths: ``<cache_dir>/<Class>_<dynamic|static>[_aclgraphcache]_<key>/[<partition>/]<func>/``."""

from __future__ import annotations

from pathlib import Path

from warmrank.cache_store.cache_dir.local import variants


def model_directory(class_name: str, *, dynamic: bool, mode: str, key: str) -> str:
    """Name of the directory that all partitions of one model and configuration share."""
    parts = [class_name, "dynamic" if dynamic else "static"]
    if mode in ("reduce-overhead", "npugraph_ex"):
        parts.append("aclgraphcache")
    return "_".join([*parts, key])


def partition_name(
    *, world_size: int, rank: int, tp_rank: int | None = None, pp_rank: int | None = None
) -> str:
    """Name of a rank's partition; empty for a single rank without parallel ranks, as in TorchAir."""
    parts = [f"world{world_size}global_rank{rank}"] if world_size > 1 else []
    if tp_rank is not None:
        parts.append(f"tp_rank{tp_rank}")
    if pp_rank is not None:
        parts.append(f"pp_rank{pp_rank}")
    return "_".join(parts)


def sibling_variants(function_dir: Path, model_dir: Path) -> tuple[Path, ...]:
    """Artifacts of the same function in other partitions of the same model directory, in a fixed order."""
    if not model_dir.is_dir():
        return ()
    name = function_dir.name
    own = function_dir.parent
    partitions = [model_dir, *sorted(path for path in model_dir.iterdir() if _is_partition(path))]
    return tuple(path for partition in partitions if partition != own for path in variants(partition / name))


def _is_partition(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")
