"""Programs and changes from fixed seeds, cold and then changed in fresh processes; eager is the judge.

`make fuzz` runs as many as one likes; ``python -m tests.fuzz --replay SEED:PAIR`` shows one of them again.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator

import pytest

from tests.fuzz.generate import trial
from tests.fuzz.run import Report, Servers, fuzz, summary

FEW, FIRST, SLOW_FIRST = 25, 1, 100_000
"""Pairs of `make test`, and the seeds that it and `make test-slow` begin with."""


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with Servers() as made:
        yield made


def fuzzed(
    servers: Servers,
    first: int,
    *,
    pairs: float = math.inf,
    seconds: float = math.inf,
    guards: str = "",
) -> Report:
    report = fuzz(itertools.count(first), [servers], pairs=pairs, seconds=seconds, guards=guards)
    print("\n".join(summary(report)))  # noqa: T201 - shown with a failure
    return report


def failures(report: Report) -> str:
    return "\n".join(outcome.line() for outcome in report.bad)


def test_a_few_pairs_equal_eager(servers: Servers) -> None:
    report = fuzzed(servers, FIRST, pairs=FEW)
    assert not failures(report)
    assert report.effective > FEW // 8
    assert report.unseen_hits > 0


def test_artifacts_whose_guards_are_skipped_are_noticed(servers: Servers) -> None:
    assert fuzzed(servers, FIRST, pairs=FEW, guards="skip").bad


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_minute_of_pairs_equals_eager(servers: Servers) -> None:
    assert not failures(fuzzed(servers, SLOW_FIRST, seconds=60))


def test_seed_gives_the_same_trial_again() -> None:
    assert [trial(seed) for seed in range(50)] == [trial(seed) for seed in range(50)]


def test_generated_programs_and_changes_are_python() -> None:
    for seed in range(200):
        made = trial(seed)
        for pair in made.pairs:
            ast.parse(pair.change.mutate)
            for text in pair.changed(made.program).files().values():
                ast.parse(text)
