"""Models of transformers, which nobody here wrote: compiled in one process, loaded in the next.

The package imports the tracer by itself, so what counts is that a warm process imports no more of it, and
that compiling is forbidden there. Each group has a process of its own, because some of the package's tables
grow with every model that a process makes, and traced code reads them. The process of the tests imports
nothing of the package, which adds a method to ``nn.Module``. Only those that a session runs are compiled.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import PYTHONPATH

pytest.importorskip("transformers", reason="transformers comes with pip install 'warmrank[test]'")
pytestmark = pytest.mark.slow  # in `make test` stand other families of it, in `test_model_families.py`

ROOT = Path(__file__).parents[2]
GROUPS = (
    ("llama-eager", "llama-sdpa", "qwen3-sdpa", "gpt2-eager", "gpt2-sdpa"),
    ("mixtral-eager", "qwen3_moe-sdpa", "bert-eager", "bert-sdpa"),
)
MODELS = [name for group in GROUPS for name in group]
EAGER, DECORATED = "refused", "decorated"
CHECKED_EACH_TIME = "gpt2-eager"
ALWAYS = f"{CHECKED_EACH_TIME}@always"  # served from what the model has kept
BESIDE_TORCH_COMPILE = "llama-sdpa"
# Attention sdpa of a model with a cache: while it is traced, transformers builds the mask that it leaves out
# otherwise, and another kernel runs. All others are equal to eager to the bit.
TOLERANCE = 2e-6

Found = Mapping[str, Mapping[str, Any]]


def run(cache: Path, *names: str, **environment: str) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-m", "tests.support.transformers_child", str(cache), *names],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": PYTHONPATH,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def groups(request: pytest.FixtureRequest) -> list[tuple[str, ...]]:
    """The models that this session runs, by group."""
    of_module = [item for item in request.session.items if item.path == request.path]
    of_models = [item for item in of_module if hasattr(item, "callspec")]
    chosen = {item.callspec.params.get("name") for item in of_models}
    if len(of_models) < len(of_module):
        chosen |= {BESIDE_TORCH_COMPILE, CHECKED_EACH_TIME}
    return [tuple(name for name in group if name in chosen) for group in GROUPS]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("transformers")


@pytest.fixture(scope="module")
def cold(cache: Path, groups: list[tuple[str, ...]]) -> Found:
    with ThreadPoolExecutor(2) as pool:
        one, other = groups[0], (*groups[1], EAGER, DECORATED)
        runs = [pool.submit(run, cache, *names, PYTHONHASHSEED="1") for names in (one, other)]
        return {name: found for ran in runs for name, found in ran.result()["found"].items()}


@pytest.fixture(scope="module")
def warm(cache: Path, groups: list[tuple[str, ...]], cold: Found) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(2) as pool:
        one, other = (*groups[0], *([ALWAYS] if CHECKED_EACH_TIME in groups[0] else [])), groups[1]
        runs = [
            pool.submit(run, cache, *names, PYTHONHASHSEED="2", WARMRANK_NO_COMPILE="1")
            for names in (one, other)
        ]
        return [ran.result() for ran in runs]


def in_either(warm: list[dict[str, Any]], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(ran["found"][name] for ran in warm if name in ran["found"])
    return found


def tolerance(name: str) -> float:
    return TOLERANCE if name.endswith("-sdpa") and not name.startswith("bert") else 0.0


@pytest.mark.parametrize("name", MODELS)
def test_first_process_compiles_each_function_once_for_all_sizes(name: str, cold: Found) -> None:
    assert set(cold[name]["outcomes"]) == {"compiled"}
    assert set(cold[name]["variants"]) == {1}


@pytest.mark.parametrize("name", MODELS)
def test_first_process_equals_eager(name: str, cold: Found) -> None:
    assert cold[name]["far"] <= tolerance(name)


def test_attention_that_transformers_chooses_while_traced_equals_torch_compiles_to_the_bit(
    cold: Found,
) -> None:
    assert cold[BESIDE_TORCH_COMPILE]["from torch.compile"] == 0.0


@pytest.mark.parametrize("name", MODELS)
def test_second_process_loads_and_equals_eager(name: str, warm: list[dict[str, Any]]) -> None:
    found = in_either(warm, name)
    assert set(found["outcomes"]) == {"loaded"}
    assert set(found["variants"]) == {1}
    assert found["far"] <= tolerance(name)


def test_guards_checked_at_every_call_hold_for_every_step(warm: list[dict[str, Any]]) -> None:
    found = in_either(warm, ALWAYS)
    assert set(found["outcomes"]) == {"loaded"}
    assert set(found["variants"]) == {1}
    assert found["far"] == 0.0


def test_second_process_imports_no_more_of_the_tracer(warm: list[dict[str, Any]]) -> None:
    assert [ran["imported"] for ran in warm] == [[], []]


def test_experts_chosen_in_a_loop_over_data_are_refused_with_their_line(cold: Found) -> None:
    assert cold[EAGER]["error"] == "GraphBreak"
    assert "for expert_idx in expert_hit" in cold[EAGER]["message"]
    assert "modeling_mixtral.py" in cold[EAGER]["message"]


def test_decorated_forward_of_a_model_is_refused_with_the_remedy(cold: Found) -> None:
    assert cold[DECORATED]["error"] == "BadFunction"
    message = cold[DECORATED]["message"]
    assert re.search(r"forward is decorated.*a module of your own that holds this one", message)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the C++ compiler takes minutes on a busy machine
@pytest.mark.parametrize("model", ["llama-sdpa", "gpt2-sdpa", "mixtral-eager"])
def test_kernels_kept_in_one_process_serve_the_next_one(model: str, tmp_path: Path) -> None:
    """Mode max-autotune with ``ge_cache``; kernels that Inductor fuses round otherwise than eager's."""
    name = f"{model}@max-autotune"
    for outcome, environment in (("compiled", {}), ("loaded", {"WARMRANK_NO_COMPILE": "1"})):
        ran = run(tmp_path, name, **environment)
        found = ran["found"][name]
        assert set(found["outcomes"]) == {outcome}
        assert set(found["variants"]) == {1}
        assert found["far"] <= 1e-5
    assert ran["imported"] == []
