"""Why nothing lies under a request."""

from __future__ import annotations

from pathlib import Path

from tests.support.stored import COMPONENTS, lay_artifact
from warmrank.worker.engines import engine_named
from warmrank.worker.keys.request import Request
from warmrank.worker.runtime.describe import explain_absence

ASKED = Request(components={**COMPONENTS, "torch": "2.13.1"}, key="0f", engine=engine_named("graph"))
MODEL_DIR = "Llama_dynamic_aclgraphcache_0f"


def test_absence_in_an_empty_cache_names_class_and_function(tmp_path: Path) -> None:
    reason = explain_absence(tmp_path / MODEL_DIR, "decode", ASKED)
    assert reason == "the cache holds nothing for Llama.decode"


def test_absence_names_the_components_that_differ(tmp_path: Path) -> None:
    lay_artifact(tmp_path / "Llama_dynamic_aclgraphcache_1a" / "decode")
    reason = explain_absence(tmp_path / MODEL_DIR, "decode", ASKED)
    assert reason == "nearest artifact differs: torch 2.13.0 -> 2.13.1"


def test_artifact_of_the_same_model_is_nearer_than_that_of_another_tp_size(tmp_path: Path) -> None:
    for directory, components in (
        ("1a", {**ASKED.components, "parameters": "of tp 2"}),
        ("2b", {**COMPONENTS, "cann": "7"}),
    ):
        lay_artifact(tmp_path / f"Llama_dynamic_aclgraphcache_{directory}" / "decode", components)
    reason = explain_absence(tmp_path / MODEL_DIR, "decode", ASKED)
    assert "torch 2.13.0 -> 2.13.1" in reason
    assert "parameters" not in reason


def test_absence_names_a_few_conditions_each_once_and_counts_the_rest(tmp_path: Path) -> None:
    lay_artifact(tmp_path / "Llama_dynamic_aclgraphcache_1a" / "decode", {"module": "aa"})
    asked = Request(components={**COMPONENTS, "module": "bb"}, key="0f", engine=engine_named("graph"))
    missing = [f"self._modules['{index}'] is missing" for index in (6, 6, 6, 7, 8, 9, 10)]
    reason = explain_absence(tmp_path / MODEL_DIR, "decode", asked, lambda _path: tuple(missing))
    named = "; ".join([*dict.fromkeys(missing[:5]), "and 2 more"])
    assert reason.endswith(f"({named})")
