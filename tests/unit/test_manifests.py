"""Manifests of a rank: from the units of a launch, and from the journal of a script."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import rank_spec
from tests.support.stored import make_artifact, open_store
from warmrank.cache_store.cache_dir.local import add_variant
from warmrank.cache_store.digests import Digest, digest_file
from warmrank.cache_store.store import Store
from warmrank.worker import journal
from warmrank.worker.rank import manifests
from warmrank.worker.rank.script import journal_of
from warmrank.worker.rank.start import RankSpec
from warmrank.worker.results import FunctionResult
from warmrank.worker.runtime.artifact import ArtifactFile

MODEL_DIR = "M_dynamic_aclgraphcache_0f"
LAUNCH_KEY = "0f" * 32


@pytest.fixture
def spec(tmp_path: Path) -> RankSpec:
    return rank_spec(tmp_path / "cache", rank=1, world_size=2, entrypoint="")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


def look_up(
    spec: RankSpec, function: str, *, outcome: Any = "compiled", root: Path | None = None, **changed: Any
) -> Path:
    """Leave an artifact and an entry in the journal, as a script's look-up does."""
    artifact = make_artifact(name=f"{function}(x)", **changed)
    root = root or Path(spec.cache_dir)
    name = function.rpartition(".")[2]
    path = add_variant(root / MODEL_DIR / "world2global_rank1" / name, artifact.to_bytes())
    digest = digest_file(path)
    result = FunctionResult(
        function=function, ok=True, outcome=outcome, reason="", digest=digest.sha256,
        size_bytes=digest.size_bytes, path=str(path), runtime_state=artifact.guards.runtime_state,
    )  # fmt: skip
    journal_of(spec).parent.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARMRANK_JOURNAL", str(journal_of(spec)))
        journal.append(result, artifact, root)
    return path


# Of a script.


def test_script_manifest_lists_the_files_beside_an_artifact(spec: RankSpec) -> None:
    file = ArtifactFile(name="ge_cache_0123456789abcdef.pt2", sha256="0123456789abcdef" * 4, size_bytes=7)
    path = look_up(spec, "M.decode", files=(file,))
    directory = path.parent.relative_to(spec.cache_dir).as_posix()
    entries = {entry.path: entry.digest for entry in manifests.of_script(spec).artifacts}
    assert entries == {
        f"{directory}/compiled_module": digest_file(path),
        f"{directory}/{file.name}": Digest(sha256=file.sha256, size_bytes=7),
    }


def test_script_manifest_leaves_out_what_was_abandoned(spec: RankSpec) -> None:
    kept = look_up(spec, "M.f")
    look_up(spec, "M.g").unlink()
    paths = [entry.path for entry in manifests.of_script(spec).artifacts]
    assert paths == [kept.relative_to(spec.cache_dir).as_posix()]


def test_script_manifest_leaves_out_a_cache_elsewhere_and_says_so(spec, tmp_path, caplog):
    path = look_up(spec, "M.f", root=tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING, logger="warmrank.worker.rank.manifests"):
        assert manifests.of_script(spec).artifacts == ()
    assert f"M.f is not published: its cache {path} lies outside of the launch's" in caplog.text


# Publishing.


def test_publish_names_functions_whose_compile_is_not_deterministic(spec, store, tmp_path):
    other = rank_spec(tmp_path / "other", rank=1, world_size=2, entrypoint="")
    look_up(spec, "M.f", sections={"graph.py": b"1"})
    look_up(other, "M.f", sections={"graph.py": b"2"})
    found = [
        manifests.publish(store, LAUNCH_KEY, manifests.of_script(rank), Path(rank.cache_dir)).conflicts
        for rank in (spec, other)
    ]
    assert found == [(), ("M.f",)]
