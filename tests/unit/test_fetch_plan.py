from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stored import make_partition
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, NotInStore
from warmrank.cache_store.fetch.staging import (
    Partition,
    Target,
    by_digest,
    by_function_dir,
    partition_of,
)
from warmrank.cache_store.records.manifest import PartitionRef

REF = PartitionRef(partition="world1global_rank0", rank=0, manifest_key="0" * 64, manifest_sha256="1" * 64)
SMALL, LARGE = digest_bytes(b"a"), digest_bytes(b"long")
MISSING = NotInStore(what="blob", where="store")


@pytest.fixture
def partition(tmp_path: Path) -> Partition:
    return partition_of(REF, make_partition(tmp_path), {})


def test_partition_wants_each_artifact_of_its_manifest(partition, tmp_path):
    assert list(partition.functions.values()) == ["Llama.prefill", "Llama.decode"]
    assert [target.function_dir.rpartition("/")[2] for target in partition.functions] == ["prefill", "decode"]


def test_equal_bytes_of_one_function_are_one_target(tmp_path):
    manifest = make_partition(tmp_path)
    first = manifest.artifacts[0]
    again = first.model_copy(update={"path": f"{first.path}.1"})
    twice = manifest.model_copy(update={"artifacts": (first, again)})
    assert len(partition_of(REF, twice, {}).functions) == 1


def test_partitions_share_their_targets(tmp_path):
    known: dict[Target, Target] = {}
    one = partition_of(REF, make_partition(tmp_path), known)
    other = partition_of(REF, make_partition(tmp_path), known)
    assert [id(target) for target in one.functions] == [id(target) for target in other.functions]


def test_fault_names_all_missing_blobs(partition):
    error = partition.fault(dict.fromkeys(partition.functions, MISSING))
    assert isinstance(error, NotInStore)
    assert error.what.count(" of Llama.") == 2
    assert error.where == REF.partition


def test_damage_says_more_than_a_miss(partition):
    one, other = partition.functions
    damage = Corrupt(what="blob", where="store", expected="a", actual="b")
    assert partition.fault({one: MISSING, other: damage}) is damage


def test_fault_of_another_partition_is_none(partition):
    assert partition.fault({Target("elsewhere", SMALL): MISSING}) is None


def test_blob_with_the_most_bytes_to_write_comes_first():
    targets = [Target("one", LARGE), *(Target(f"{number}", SMALL) for number in range(5))]
    assert list(by_digest(targets)) == [SMALL, LARGE]


def test_variants_of_a_function_keep_their_order():
    targets = [Target("f", SMALL), Target("g", SMALL), Target("f", LARGE)]
    assert by_function_dir(targets)["f"] == [targets[0], targets[2]]
