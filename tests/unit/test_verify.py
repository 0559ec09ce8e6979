"""Reading a store and a cache directory again."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.errors import NothingThere
from orchestrator.look import open_to_look
from orchestrator.verify import cached_files, verify, verify_cache
from tests.support.launched import loaded_config, store_launch
from tests.support.stored import blob_path, overwrite


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


def test_only_artifacts_are_read(tmp_path: Path):
    path = cached(tmp_path)
    (path.parent / "compiled_module.txt").write_text("a note")
    assert cached_files(tmp_path / "cache") == (path,)
