"""What goes to a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import upload
from orchestrator.upload import measure_upload, package_root, place_notes, runtime_env, upload_notes
from tests.support.launched import loaded_config


def fill(directory: Path, **sizes: int) -> None:
    for name, size in sizes.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def test_measure_counts_files_at_any_depth(tmp_path: Path):
    fill(tmp_path, a=3, sub__b=4)
    found = measure_upload(tmp_path)
    assert (found.num_files, found.size_bytes, found.largest) == (2, 7, (("sub/b", 4), ("a", 3)))


@pytest.mark.parametrize("name", [".git", ".venv", "warmrank-out", "sub/.torchair_cache", "x.egg-info"])
def test_measure_leaves_out_what_never_goes(tmp_path: Path, name: str):
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "file").write_text("x")
    assert measure_upload(tmp_path).num_files == 0


def test_measure_does_not_follow_links_to_directories(tmp_path: Path):
    (tmp_path / "loop").symlink_to(tmp_path)
    assert measure_upload(tmp_path).num_files == 0


def test_small_upload_needs_no_note(tmp_path: Path):
    fill(tmp_path, a=3)
    assert upload_notes(tmp_path) == ()


def test_large_upload_names_the_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upload, "LARGE_UPLOAD_BYTES", 10)
    fill(tmp_path, weights=2048, a=3)
    (note,) = upload_notes(tmp_path)
    assert "weights (2.0 KiB)" in note
    assert ".rayignore" in note


def test_packages_go_along_where_the_directory_lacks_them(tmp_path: Path):
    env = runtime_env(tmp_path, package_root())
    assert [Path(path).name for path in env["py_modules"]] == ["cache_store", "worker", "orchestrator"]


def test_packages_of_the_directory_win():
    assert "py_modules" not in runtime_env(package_root(), package_root())


def test_places_in_the_current_directory_are_warned_of(tmp_path: Path):
    notes = place_notes(loaded_config(tmp_path), tmp_path)
    assert [note.split()[0] for note in notes] == ["cache_dir", "store.path"]


def test_places_elsewhere_need_no_note(tmp_path: Path):
    assert place_notes(loaded_config(tmp_path), tmp_path / "project") == ()
