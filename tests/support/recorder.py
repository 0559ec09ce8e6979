"""A listener that remembers."""

from __future__ import annotations

from worker.results import FunctionResult


class Recorder:
    """Keeps every event of a launch."""

    def __init__(self) -> None:
        self.started: list[tuple[str, tuple[int, ...]]] = []
        self.finished: list[tuple[str, float]] = []
        self.ranks: list[tuple[str, int]] = []
        self.functions: list[tuple[str, int, str]] = []
        self.problems: list[str] = []

    def stage_started(self, stage: str, ranks: tuple[int, ...]) -> None:
        self.started.append((stage, ranks))

    def rank_finished(self, stage: str, rank: int, seconds: float) -> None:
        self.ranks.append((stage, rank))

    def function_finished(self, stage: str, rank: int, result: FunctionResult) -> None:
        self.functions.append((stage, rank, result.function))

    def stage_finished(self, stage: str, seconds: float) -> None:
        self.finished.append((stage, seconds))

    def problem(self, text: str) -> None:
        self.problems.append(text)
