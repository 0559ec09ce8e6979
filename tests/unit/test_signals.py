from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from warmrank.orchestrator.signals import (
    EXIT_TERMINATED,
    Terminated,
    exit_code_of,
    held_back,
    named,
    sigterm_raises,
)


def call_native_code() -> None:
    """Run the handler as ray.get does."""
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except Terminated:
        raise KeyboardInterrupt from None


def test_interrupt_that_native_code_raises_for_a_sigterm_is_terminated():
    with pytest.raises(KeyboardInterrupt) as caught, sigterm_raises():
        call_native_code()
    assert exit_code_of(caught.value) == EXIT_TERMINATED


@pytest.fixture
def _heeds_ctrl_c() -> Iterator[None]:
    """Whoever runs the tests in the background ignores it, and so do they."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def go_on_after(number: signal.Signals, done: list[str]) -> None:
    with sigterm_raises(), held_back():
        os.kill(os.getpid(), number)
        done.append("all")


@pytest.mark.usefixtures("_heeds_ctrl_c")
@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]
)
def test_signal_that_is_held_back_waits_for_the_end_and_is_not_lost(
    number: signal.Signals, raised: type[BaseException]
) -> None:
    done: list[str] = []
    with pytest.raises(raised):
        go_on_after(number, done)
    assert done == ["all"]


def interrupted_while_named() -> None:
    with named():
        raise KeyboardInterrupt


def test_interrupt_after_a_sigterm_that_is_over_is_an_interrupt() -> None:
    with pytest.raises(Terminated), sigterm_raises():
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as caught:
        interrupted_while_named()
    assert not isinstance(caught.value, Terminated)
