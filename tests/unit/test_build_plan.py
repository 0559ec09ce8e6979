"""Which ranks an offline build makes, and what the others get."""

from __future__ import annotations

from pathlib import Path

from tests.support.stored import make_partition
from warmrank.cache_store.records.manifest import PartitionManifest
from warmrank.orchestrator.build.plan import built_ranks, differences, model_rank, replica
from warmrank.orchestrator.config.reading import Config, groups, parse
from warmrank.worker.results import FunctionProbe, FunctionResult


def config_of(*, tp: int = 2, pp: int = 2, dp: int = 4) -> Config:
    data = {
        "workload": {"entrypoint": "models.tiny:workload"},
        "ranks": tp * pp * dp,
        "parallel": {"tp": tp, "pp": pp, "dp": dp},
    }
    return parse(data)


def manifest_of(cache: Path) -> PartitionManifest:
    return make_partition(cache, rank=1, world_size=16)


def test_first_rank_of_each_position_and_the_last_rank_are_built():
    assert built_ranks(config_of(), every_rank=False) == (0, 1, 2, 3, 15)
    assert built_ranks(config_of(dp=1), every_rank=False) == (0, 1, 2, 3)
    assert built_ranks(config_of(dp=2), every_rank=True) == tuple(range(8))


def test_ranks_that_share_all_but_their_data_parallel_group_have_one_model():
    config = config_of()
    for members in groups(config)["dp"]:
        assert {model_rank(rank, config) for rank in members} == {members[0]}


def test_replica_is_the_other_ranks_partition_with_the_same_bytes(tmp_path):
    found = replica(manifest_of(tmp_path), 13)
    assert found == make_partition(tmp_path / "other", rank=13, world_size=16)


def test_replica_moves_only_the_component_that_is_the_partition(tmp_path):
    manifest = manifest_of(tmp_path)
    entry = manifest.artifacts[0].model_copy(
        update={"path": "world16global_rank1_a/world16global_rank1_tp_rank1/f/compiled_module"}
    )
    found = replica(manifest.model_copy(update={"artifacts": (entry,)}), 5)
    assert found.artifacts[0].path == "world16global_rank1_a/world16global_rank5_tp_rank1/f/compiled_module"


def probe(function: str = "Tiny.f", **components: str) -> FunctionProbe:
    return FunctionProbe(function=function, request_key="", components=components, state="miss", reason="")


def result(digest: str = "d", reason: str = "") -> FunctionResult:
    return FunctionResult(function="Tiny.f", ok=True, outcome="adopted", reason=reason, digest=digest)


def test_witness_with_the_same_request_and_artifact_differs_in_nothing():
    results = {(3, "Tiny.f"): result(), (15, "Tiny.f"): result()}
    assert differences(config_of(), {3: (probe(a="1"),), 15: (probe(a="1"),)}, results, ()) == ()


def test_differences_of_a_witness_name_component_artifact_and_missing_call():
    config = config_of()
    other = {(3, "Tiny.f"): result("d"), (15, "Tiny.f"): result("e", "rank: 3 -> 15")}
    assert differences(config, {3: (probe(a="1"),), 15: (probe(a="2"),)}, other, ()) == ("Tiny.f: a 1 -> 2",)
    assert differences(config, {3: (probe(),), 15: (probe(),)}, other, ()) == ("Tiny.f: rank: 3 -> 15",)
    missing = differences(
        config, {3: (probe(), probe("Tiny.g")), 15: (probe(),)}, {**other, (15, "Tiny.f"): result()}, ()
    )
    assert missing == ("Tiny.g: only one of them calls it",)
