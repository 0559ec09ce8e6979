"""A listener that remembers."""

from __future__ import annotations

from warmrank.orchestrator.launch import events
from warmrank.orchestrator.launch.events import Event
from warmrank.orchestrator.launch.state import LaunchState


class Recorder:
    """Keeps every event of a launch."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.started: list[tuple[str, tuple[int, ...]]] = []
        self.finished: list[tuple[str, float]] = []
        self.ranks: list[tuple[str, int]] = []
        self.functions: list[tuple[str, int, str]] = []
        self.problems: list[str] = []

    def __call__(self, state: LaunchState, event: Event) -> None:
        self.events.append(event)
        match event:
            case events.StageStarted():
                self.started.append((event.stage, event.ranks))
            case events.StageFinished():
                self.finished.append((event.stage, event.seconds))
            case events.RankFinished():
                self.ranks.append((event.stage, event.rank))
            case events.FunctionFinished():
                self.functions.append((event.stage, event.rank, event.result.function))
            case events.Problem():
                self.problems.append(event.text)
            case _:
                pass
