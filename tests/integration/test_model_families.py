"""Models of transformers and diffusers, and a server that starts twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkout import python
from tests.support.families import Found, run

FAMILIES = {
    "transformers": (
        "llama", "llama-generate", "mistral", "qwen2", "gemma2", "gemma3", "phi3", "gptneox", "opt", "falcon",
        "bloom", "gpt2", "qwen2_moe", "olmoe", "mamba", "mamba2", "bert", "roberta", "distilbert", "albert",
        "electra", "modernbert", "t5", "t5-forward", "bart", "vit", "dinov2", "clip", "convnext",
    ),
    "diffusers": ("transformer", "resnet", "joint", "down", "up"),
}  # fmt: skip
# Attention of a model with a cache runs another kernel while traced; fused kernels round otherwise.
TOLERANCE = {"reduce-overhead": 2e-6, "max-autotune": 1e-4}


QUICK = ("llama-generate", "t5")


def case(package: str, mode: str, name: str) -> object:
    reason = f"{package} comes with pip install 'warmrank[test]'"
    marks = [pytest.mark.skipif(find_spec(package) is None, reason=reason)]
    if name not in QUICK or mode != "reduce-overhead":
        marks.append(pytest.mark.slow)
    return pytest.param(package, mode, name, marks=marks)


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], dict[str, Found]]:
    """What the models of a package that this session asks for do in a mode, by phase; run once."""
    items: list[Any] = [item for item in request.session.items if item.path == request.path]

    @cache
    def of(package: str, mode: str) -> dict[str, Found]:
        asked = [item.callspec.params for item in items if hasattr(item, "callspec")]
        names = [each["name"] for each in asked if (each["package"], each["mode"]) == (package, mode)]
        return run(f"tests.support.{package}_families", tmp_path_factory.mktemp(mode), mode, names)

    return of


@pytest.mark.timeout(6000)
@pytest.mark.parametrize(
    ("package", "mode", "name"),
    [case(*asked, name) for asked in product(FAMILIES, TOLERANCE) for name in FAMILIES[asked[0]]],
)
def test_model_is_compiled_and_loaded_with_other_weights(
    found: Callable[[str, str], dict[str, Found]], package: str, mode: str, name: str
) -> None:
    phases = found(package, mode)
    for phase, outcome in (("cold", "compiled"), ("warm", "loaded")):
        ran = phases[phase][name]
        assert "error" not in ran, ran["error"]
        assert set(ran["outcomes"]) == {outcome}
        assert ran["far"] <= TOLERANCE[mode]
    assert not phases["warm"][name]["imported"]


@pytest.mark.ray
@pytest.mark.slow
def test_only_the_first_replica_compiles(tmp_path: Path) -> None:
    changes = {
        "cache_dir": tmp_path / "cache", "store.path": tmp_path / "store", "workload.arguments.layers": 1,
    }  # fmt: skip
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    options = (*settings, "--replicas", "1", "--add", "1", "--json", str(tmp_path / "answers.json"))
    python("-m", "warmrank.examples.serve_llama", "cluster_configs/llama-cpu.yaml", *options)
    answers = json.loads((tmp_path / "answers.json").read_text())
    told = [(answer["moment"], answer["way"], answer["compiled"]) for answer in answers]
    assert told == [("start", "launch", 2), ("added", "preseed", 0), ("start again", "preseed", 0)]
    assert len({json.dumps(answer["tokens"]) for answer in answers}) == 1
