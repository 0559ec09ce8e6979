"""Reading a store and a cache directory again."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.launching import loaded_config, store_launch
from tests.support.stored import blob_path, make_artifact, overwrite
from warmrank.cache_store.cache_dir.local import add_companion, add_variant
from warmrank.cache_store.digests import digest_bytes
from warmrank.orchestrator.errors import NothingThere
from warmrank.orchestrator.look.store_contents import open_to_look
from warmrank.orchestrator.look.verify import CacheReport, Verified, cached_files, verify, verify_cache
from warmrank.orchestrator.ui.table import render_verified
from warmrank.worker.runtime.artifact import ArtifactFile, parse


def cached(tmp_path: Path, data: bytes = b"nothing of ours") -> Path:
    path = tmp_path / "cache" / "Tiny_static_0f" / "double" / "compiled_module"
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def test_whole_store_has_no_faults(tmp_path: Path):
    config = loaded_config(tmp_path)
    store_launch(config, tmp_path / "work")
    found = verify(open_to_look(config, None), None, signatures_checked=True)
    assert found.faults == ()
    assert found.store is not None
    assert (found.store.num_launches, found.store.num_manifests, found.store.num_blobs) == (1, 2, 2)


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


def test_absent_cache_directory_is_an_error(tmp_path: Path):
    with pytest.raises(NothingThere, match="no cache directory"):
        verify_cache(tmp_path / "cache")


def kernels(tmp_path: Path, data: bytes = b"kernels") -> tuple[Path, Path]:
    """An artifact that is whole, and the file that it needs beside it."""
    digest = digest_bytes(data)
    name = f"ge_cache_{digest.sha256[:16]}.pt2"
    file = ArtifactFile(name=name, sha256=digest.sha256, size_bytes=digest.size_bytes)
    function_dir = tmp_path / "cache" / "Tiny_static_0f" / "double"
    beside = add_companion(function_dir, name, data)
    return add_variant(function_dir, make_artifact(files=(file,)).to_bytes()), beside


def test_files_beside_artifacts_are_read_and_counted(tmp_path: Path):
    artifact, beside = kernels(tmp_path)
    found = verify_cache(tmp_path / "cache")
    assert (found.num_artifacts, found.num_files, found.faults) == (1, 2, ())
    assert found.size_bytes == artifact.stat().st_size + beside.stat().st_size
    assert "1 artifact in 2 files" in shown(found)


def test_file_that_two_artifacts_need_counts_once(tmp_path: Path):
    artifact, _ = kernels(tmp_path)
    other = replace(parse(artifact.read_bytes(), "it"), name="N.f(x)")
    add_variant(artifact.parent, other.to_bytes())
    found = verify_cache(tmp_path / "cache")
    assert (found.num_artifacts, found.num_files, found.faults) == (2, 3, ())


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


def test_file_beside_an_artifact_that_others_may_read_is_a_fault(tmp_path: Path):
    _, beside = kernels(tmp_path)
    beside.chmod(0o644)
    assert "0600" in verify_cache(tmp_path / "cache").faults[0]


def shown(found: CacheReport) -> str:
    text = io.StringIO()
    verified = Verified(location="", store=None, signatures_checked=False, cache=found, faults=found.faults)
    Console(file=text, width=200).print(render_verified(verified))
    return text.getvalue()


def test_only_artifacts_are_read(tmp_path: Path):
    path = cached(tmp_path)
    (path.parent / "compiled_module.txt").write_text("a note")
    assert cached_files(tmp_path / "cache") == (path,)
