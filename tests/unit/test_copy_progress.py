from __future__ import annotations

from warmrank.cache_store.progress import CALL_EVERY_S, Meter, Progress


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def seen_by(clock: Clock) -> tuple[Meter, list[Progress]]:
    seen: list[Progress] = []
    return Meter("Copying", total_bytes=10, total_files=2, on_progress=seen.append, clock=clock), seen


def test_caller_hears_now_and_then_only():
    clock = Clock()
    meter, seen = seen_by(clock)
    meter.count(1)
    clock.now_s += CALL_EVERY_S
    meter.count(1)
    meter.count(1)
    assert seen == [Progress(done_bytes=2, total_bytes=10, done_files=0, total_files=2)]
