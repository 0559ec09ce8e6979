"""A launch in numbers, and the text that a collector reads."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.made_reports import MIB, made_report, state_of, until_compile, whole
from warmrank.orchestrator.launch.state import LaunchState
from warmrank.orchestrator.ui.metrics import (
    FAMILIES,
    RayMetrics,
    exposition,
    progress_samples,
    result_samples,
    samples,
)


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value_of(text: str, name: str, **labels: str) -> float:
    return parsed(text)[name, frozenset({"launch": "llama-70b", **labels}.items())]


def test_text_says_what_the_report_says() -> None:
    text = exposition(made_report(1024))
    assert value_of(text, "warmrank_launch_warm") == 1
    assert value_of(text, "warmrank_ranks") == 1024
    assert value_of(text, "warmrank_nodes") == 128
    assert value_of(text, "warmrank_functions", outcome="compiled") == 8
    assert value_of(text, "warmrank_functions", outcome="adopted") == 2040
    assert value_of(text, "warmrank_artifact_bytes") == 8 * 3 * MIB
    assert value_of(text, "warmrank_held_bytes") == 2048 * 3 * MIB
    assert value_of(text, "warmrank_stage_seconds", stage="build") == pytest.approx(5.2)
    assert value_of(text, "warmrank_function_seconds", step="compile") == pytest.approx(8 * 7.9)


def test_text_of_a_failed_launch_counts_ranks_by_kind_of_failure() -> None:
    text = exposition(made_report(16, failed=True))
    assert value_of(text, "warmrank_launch_warm") == 0
    assert value_of(text, "warmrank_launch_exit_code") == 1
    assert value_of(text, "warmrank_launch_attempts") == 2
    assert value_of(text, "warmrank_failed_attempts") == 2
    assert value_of(text, "warmrank_failed_ranks", kind="node lost") == 8


def test_every_family_has_help_and_type_once_and_is_declared() -> None:
    text = exposition(made_report(8, failed=True))
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    assert set(heads) <= FAMILIES.keys()
    assert text.count("# HELP") == len(heads)


def test_number_of_samples_does_not_grow_with_the_ranks() -> None:
    assert len(list(samples(made_report(8)))) == len(list(samples(made_report(1024))))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a{b}=,"])
def test_labels_are_escaped(name: str) -> None:
    found = parsed(exposition(replace(made_report(2), name=name)))
    assert {dict(labels)["launch"] for _, labels in found} == {name}


def test_running_launch_is_told_in_the_same_families() -> None:
    state = state_of(until_compile(64))
    found = [*progress_samples(state), *result_samples(state)]
    assert {sample.name for sample in found} <= FAMILIES.keys()
    running = {sample.labels: sample.value for sample in found if sample.name == "warmrank_stage_ranks"}
    assert running[("stage", "compile"), ("state", "running")] == 8
    assert running[("stage", "build"), ("state", "done")] == 64


def test_numbers_of_a_whole_launch_are_those_of_its_report() -> None:
    told = {(sample.name, sample.labels): sample.value for sample in result_samples(state_of(whole(64)))}
    reported = {(sample.name, sample.labels): sample.value for sample in samples(made_report(64))}
    same = {"warmrank_functions", "warmrank_held_bytes", "warmrank_function_seconds"}
    assert {key: told[key] for key in told if key[0] in same} == pytest.approx(
        {key: reported[key] for key in reported if key[0] in same}
    )


def test_without_ray_nothing_is_set_and_ray_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    listener, state = RayMetrics("tiny"), LaunchState(num_ranks=4)
    for event in whole(4):
        state.apply(event)
        listener(state, event)
    assert "ray" not in sys.modules
