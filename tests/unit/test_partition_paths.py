"""TorchAir's paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmrank.cache_store.cache_dir.local import add_variant
from warmrank.worker.runtime.find import model_directory, partition_name, sibling_variants


@pytest.mark.parametrize(
    ("dynamic", "mode", "expected"),
    [
        (True, "reduce-overhead", "Llama_dynamic_aclgraphcache_0f"),
        (False, "reduce-overhead", "Llama_static_aclgraphcache_0f"),
        (True, "npugraph_ex", "Llama_dynamic_aclgraphcache_0f"),
        (True, "max-autotune", "Llama_dynamic_0f"),
    ],
)
def test_model_directory_is_torchairs(dynamic: bool, mode: str, expected: str) -> None:
    assert model_directory("Llama", dynamic=dynamic, mode=mode, key="0f") == expected


@pytest.mark.parametrize(
    ("world_size", "rank", "tp_rank", "pp_rank", "expected"),
    [
        (1, 0, None, None, ""),
        (2, 1, None, None, "world2global_rank1"),
        (4, 3, 1, None, "world4global_rank3_tp_rank1"),
        (4, 3, None, 0, "world4global_rank3_pp_rank0"),
        (4, 3, 1, 0, "world4global_rank3_tp_rank1_pp_rank0"),
        (1, 0, 0, 0, "tp_rank0_pp_rank0"),
    ],
)
def test_partition_name_appends_what_was_given(world_size, rank, tp_rank, pp_rank, expected):
    assert partition_name(world_size=world_size, rank=rank, tp_rank=tp_rank, pp_rank=pp_rank) == expected


def test_siblings_are_the_same_function_of_other_partitions(tmp_path: Path) -> None:
    for partition in ("world2global_rank1", "world2global_rank0", "world1"):
        add_variant(tmp_path / partition / "decode", partition.encode())
        add_variant(tmp_path / partition / "prefill", partition.encode())
    own = tmp_path / "world2global_rank0" / "decode"
    assert [path.parent.parent.name for path in sibling_variants(own, tmp_path)] == [
        "world1",
        "world2global_rank1",
    ]


def test_siblings_of_a_partition_include_the_artifact_of_a_single_rank(tmp_path: Path) -> None:
    alone = add_variant(tmp_path / "decode", b"made by one rank")
    own = tmp_path / "world2global_rank0" / "decode"
    assert sibling_variants(own, tmp_path) == (alone,)
