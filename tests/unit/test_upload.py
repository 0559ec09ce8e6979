"""What goes to a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray._private.thirdparty.pathspec.pathspec import PathSpec

from tests.support.launching import loaded_config
from warmrank.orchestrator.gang.upload import (
    measure_upload,
    private_keys,
    runtime_env,
    upload_notes,
)


def fill(directory: Path, **sizes: int) -> None:
    for name, size in sizes.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


@pytest.mark.parametrize("name", [".git", ".venv", "warmrank-out", "sub/.torchair_cache", "x.egg-info"])
def test_measure_leaves_out_what_never_goes(tmp_path: Path, name: str):
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "file").write_text("x")
    assert measure_upload(tmp_path).num_files == 0


def test_packages_go_along_where_the_directory_lacks_them(tmp_path: Path):
    env = runtime_env(tmp_path)
    assert [Path(path).name for path in env["py_modules"]] == ["warmrank"]


PEM = "-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n"


def uploaded(env: dict[str, Any]) -> set[str]:
    """The files that Ray takes with this runtime environment."""
    root = Path(env["working_dir"])
    excludes = PathSpec.from_lines("gitwildmatch", env["excludes"])
    paths = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return {path for path in paths if not excludes.match_file(path)}


@pytest.mark.parametrize("name", ["publisher.pem", "sub/my [1] #key.key", "id_rsa"])
def test_private_key_is_not_uploaded(tmp_path: Path, name: str):
    fill(tmp_path, a=3)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(PEM)
    assert uploaded(runtime_env(tmp_path)) == {"a"}
    (note,) = upload_notes(tmp_path)
    assert f"not uploaded: {name}" in note


def test_private_key_behind_a_linked_directory_is_found(tmp_path: Path):
    project, keys = tmp_path / "project", tmp_path / "keys"
    fill(project, a=3)
    fill(keys, b=3)
    (keys / "k.key").write_text(PEM)
    (project / "linked").symlink_to(keys)
    (project / "loop").symlink_to(project)
    assert private_keys(project) == ("linked/k.key",)


def test_signing_key_cache_and_store_of_the_config_are_not_uploaded(tmp_path: Path):
    fill(tmp_path, a=3, cache__x=4, store__FORMAT=5, signer=6)
    trust = {"signing_key": str(tmp_path / "signer")}
    config = loaded_config(tmp_path, store={"path": str(tmp_path / "store"), "trust": trust})
    assert uploaded(runtime_env(tmp_path, config)) == {"a", "tiny.yaml"}
