"""Reading a store and a cache directory again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.launching import loaded_config, store_launch
from tests.support.stored import blob_path, make_artifact, overwrite
from warmrank.cache_store.cache_dir.local import add_companion, add_variant
from warmrank.cache_store.digests import digest_bytes
from warmrank.orchestrator.look.store_contents import open_to_look
from warmrank.orchestrator.look.verify import verify, verify_cache
from warmrank.worker.runtime.artifact import ArtifactFile


def cached(tmp_path: Path, data: bytes = b"nothing of ours") -> Path:
    path = tmp_path / "cache" / "Tiny_static_0f" / "double" / "compiled_module"
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def test_damaged_blob_is_a_fault(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work", functions={"Llama.decode": b"right"})
    overwrite(blob_path(tmp_path / "store", b"right"), b"wrong")
    assert verify(open_to_look(config, None), None, signatures_checked=True).faults


def test_file_that_is_no_artifact_is_a_fault(tmp_path: Path):
    path = cached(tmp_path)
    report = verify_cache(tmp_path / "cache")
    assert report.num_files == 1
    assert str(path) in report.faults[0]


def test_file_that_others_may_read_is_a_fault(tmp_path: Path):
    cached(tmp_path).chmod(0o644)
    assert "0600" in verify_cache(tmp_path / "cache").faults[0]


def kernels(tmp_path: Path, data: bytes = b"kernels") -> tuple[Path, Path]:
    """An artifact that is whole, and the file that it needs beside it."""
    digest = digest_bytes(data)
    name = f"ge_cache_{digest.sha256[:16]}.pt2"
    file = ArtifactFile(name=name, sha256=digest.sha256, size_bytes=digest.size_bytes)
    function_dir = tmp_path / "cache" / "Tiny_static_0f" / "double"
    beside = add_companion(function_dir, name, data)
    return add_variant(function_dir, make_artifact(files=(file,)).to_bytes()), beside


@pytest.mark.parametrize("is_needed", [True, False], ids=["needed", "orphan"])
def test_flipped_byte_beside_an_artifact_is_a_fault(tmp_path: Path, is_needed: bool):
    artifact, beside = kernels(tmp_path)
    beside.write_bytes(b"kernelz")
    if not is_needed:
        artifact.unlink()
        other, _ = kernels(tmp_path, b"other")
        assert other.parent == beside.parent
    (fault,) = verify_cache(tmp_path / "cache").faults
    assert str(beside) in fault


def test_missing_file_beside_an_artifact_is_a_fault(tmp_path: Path):
    _, beside = kernels(tmp_path)
    beside.unlink()
    found = verify_cache(tmp_path / "cache")
    assert (found.num_artifacts, found.num_files) == (1, 1)
    assert found.faults[0].startswith(f"{beside} is missing")
