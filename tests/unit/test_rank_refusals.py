"""A rank whose engine does not take a whole artifact: it takes another one, or compiles; it does not stop."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import rank_spec
from warmrank.worker.engines.graph import GraphEngine
from warmrank.worker.errors import ArtifactCorrupt
from warmrank.worker.rank.rank_worker import RankWorker
from warmrank.worker.results import FunctionResult
from warmrank.worker.runtime.artifact import parse

pytestmark = pytest.mark.usefixtures("no_grad")

UNITS = ("Plain.affine", "Plain.affine[1]")
WHY = "its code is not taken"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory with what rank 0 of two compiled."""
    cache = tmp_path_factory.mktemp("refusals") / "cache"
    (result, _) = probed(cache).compile(UNITS)
    assert result.outcome == "compiled"
    return cache


@pytest.fixture
def cache(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, and an engine that takes no artifact that was broken."""
    load = GraphEngine.load

    def picky(self: GraphEngine, sections: Any, *args: Any, **kwargs: Any) -> Any:
        if "broken" in sections:
            raise ArtifactCorrupt(WHY, where="here", why=WHY)
        return load(self, sections, *args, **kwargs)

    monkeypatch.setattr(GraphEngine, "load", picky)
    shutil.copytree(compiled, tmp_path / "cache")
    return tmp_path / "cache"


def probed(cache: Path, *, rank: int = 0) -> RankWorker:
    worker = RankWorker(rank_spec(cache, rank=rank, world_size=2, local_rank=rank), None)
    worker.start()
    worker.build()
    worker.probe()
    return worker


def break_artifact(path: Path) -> None:
    artifact = parse(path.read_bytes(), str(path))
    path.write_bytes(replace(artifact, sections={**artifact.sections, "broken": b""}).to_bytes())


def file_of(cache: Path, rank: int) -> Path:
    return next(cache.glob("Plain_*")) / f"world2global_rank{rank}" / "affine" / "compiled_module"


def load(worker: RankWorker) -> tuple[FunctionResult, ...]:
    return worker.load(UNITS)


def test_the_other_ranks_artifact_is_adopted_with_the_reason(cache: Path) -> None:
    own = file_of(cache, 1)
    shutil.copytree(file_of(cache, 0).parent, own.parent)
    break_artifact(own)
    first, second = load(probed(cache, rank=1))
    assert (first.ok, first.outcome) == (True, "adopted")
    assert first.reason == f"{WHY}; fits world2global_rank0"
    assert second.digest == first.digest


def test_without_another_one_the_rank_is_refused_and_then_compiles(cache: Path) -> None:
    break_artifact(file_of(cache, 0))
    worker = probed(cache)
    refused, _ = load(worker)
    assert (refused.ok, refused.guard_failed) == (False, False)
    assert WHY in refused.reason
    compiled, again = worker.compile(UNITS)
    assert (compiled.ok, compiled.outcome, compiled.reason) == (True, "compiled", WHY)
    assert again.digest == compiled.digest


def test_later_launch_passes_over_what_was_refused(cache: Path) -> None:
    break_artifact(file_of(cache, 0))
    worker = probed(cache)
    load(worker)
    compiled, _ = worker.compile(UNITS)
    later, _ = load(probed(cache))
    assert (later.outcome, later.reason, later.digest) == ("loaded", WHY, compiled.digest)
