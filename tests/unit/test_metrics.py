"""A launch in numbers, and the text that a collector reads."""

from __future__ import annotations

import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.made_reports import MIB, made_report, whole
from warmrank.orchestrator.launch.state import LaunchState
from warmrank.orchestrator.ui.metrics import (
    RayMetrics,
    exposition,
)


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        (
            False,
            {
                ("launch_warm",): 1,
                ("ranks",): 1024,
                ("nodes",): 128,
                ("functions", "outcome", "compiled"): 8,
                ("functions", "outcome", "adopted"): 2040,
                ("artifact_bytes",): 8 * 3 * MIB,
                ("held_bytes",): 2048 * 3 * MIB,
                ("stage_seconds", "stage", "build"): 5.2,
                ("function_seconds", "step", "compile"): 8 * 7.9,
            },
        ),
        (
            True,
            {
                ("launch_warm",): 0,
                ("launch_exit_code",): 1,
                ("launch_attempts",): 2,
                ("failed_attempts",): 2,
                ("failed_ranks", "kind", "node lost"): 8,
            },
        ),
    ],
)
def test_text_says_what_the_report_says(failed: bool, expected: dict[tuple[str, ...], float]) -> None:
    found = {
        (family.name.removeprefix("warmrank_"), *(word for pair in labels for word in pair)): sample.value
        for family in text_string_to_metric_families(exposition(made_report(1024, failed=failed)))
        for sample in family.samples
        for labels in [[pair for pair in sample.labels.items() if pair != ("launch", "llama-70b")]]
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected)


def test_without_ray_nothing_is_set_and_ray_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    listener, state = RayMetrics("tiny"), LaunchState(num_ranks=4)
    for event in whole(4):
        state.apply(event)
        listener(state, event)
    assert "ray" not in sys.modules
