"""A launch in numbers, and the text that a collector reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.made_reports import FUNCTIONS, MIB, made_report, result, until_compile, whole
from warmrank.orchestrator.show.metrics import FAMILIES, exposition, held_bytes, samples
from warmrank.orchestrator.show.ray_metrics import RayMetrics, Sums, going
from warmrank.orchestrator.show.standing import Standing


def parsed(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value_of(text: str, name: str, **labels: str) -> float:
    return parsed(text)[name, frozenset({"launch": "llama-70b", **labels}.items())]


def test_text_says_what_the_report_says() -> None:
    text = exposition(samples(made_report(1024)))
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
    text = exposition(samples(made_report(16, failed=True)))
    assert value_of(text, "warmrank_launch_warm") == 0
    assert value_of(text, "warmrank_launch_exit_code") == 1
    assert value_of(text, "warmrank_launch_attempts") == 2
    assert value_of(text, "warmrank_failed_attempts") == 2
    assert value_of(text, "warmrank_failed_ranks", kind="node lost") == 8


def test_every_family_has_help_and_type_once_and_is_declared() -> None:
    text = exposition(samples(made_report(8, failed=True)))
    heads = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    assert set(heads) <= FAMILIES.keys()
    assert text.count("# HELP") == len(heads)


def test_number_of_samples_does_not_grow_with_the_ranks() -> None:
    assert len(samples(made_report(8))) == len(samples(made_report(1024)))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a{b}=,"])
def test_labels_are_escaped(name: str) -> None:
    found = parsed(exposition(samples(replace(made_report(2), name=name))))
    assert {dict(labels)["launch"] for _, labels in found} == {name}


def test_function_that_is_told_again_counts_once_with_its_last_word() -> None:
    sums = Sums()
    sums.take(0, result("f", compiled=False))
    sums.take(0, result("f", compiled=True))
    assert sums.functions == {"adopted": 0, "compiled": 1}
    assert sums.held_bytes == 3 * MIB
    assert sums.seconds["load"] == 0
    assert sums.seconds["compile"] == pytest.approx(7.9)


def test_running_launch_is_told_in_the_same_families() -> None:
    standing, sums = Standing(num_ranks=64), Sums()
    for event in until_compile(64):
        standing(event)
    sums.take(0, result(FUNCTIONS[0], compiled=True))
    found = going(standing, sums)
    assert {sample.name for sample in found} <= FAMILIES.keys()
    running = {sample.labels: sample.value for sample in found if sample.name == "warmrank_stage_ranks"}
    assert running[("stage", "compile"), ("state", "running")] == 8
    assert running[("stage", "build"), ("state", "done")] == 64


def test_numbers_of_a_whole_launch_are_those_of_its_report() -> None:
    standing, sums = Standing(num_ranks=64), Sums()
    for event in whole(64):
        standing(event)
        if hasattr(event, "result"):
            sums.take(event.rank, event.result)  # type: ignore[union-attr]
    report = made_report(64)
    assert sums.functions == {"compiled": 8, "adopted": 120}
    assert sums.held_bytes == held_bytes(report)


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    yield
    assert "ray" not in sys.modules


def test_without_ray_nothing_is_set_and_ray_is_not_imported(no_ray: None) -> None:
    listener = RayMetrics("tiny")
    for event in whole(4):
        listener(event)
