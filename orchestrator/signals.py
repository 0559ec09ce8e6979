"""Signals that end a launch: SIGTERM and SIGHUP go the way of Ctrl-C, and none cuts a teardown short.

Python handles signals in the main thread only; elsewhere these contexts change nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import NoReturn

logger = logging.getLogger(__name__)

EXIT_HUNG_UP = 129
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
_STDERR = 2  # its descriptor


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived; what cleans up after Ctrl-C cleans up after this too."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(signal.Signals(number))


def exit_code_of(stop: KeyboardInterrupt) -> int:
    """The exit code of a command that was stopped."""
    return 128 + stop.args[0] if isinstance(stop, Terminated) else EXIT_INTERRUPTED


def say_stopping(error: BaseException) -> None:
    """Say at once that a signal was heeded, where seconds pass before the end."""
    if isinstance(error, KeyboardInterrupt):
        logger.warning("stopping")


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def ctrl_c_leaves() -> None:
    """End this process at once by Ctrl-C, where Python would show a traceback of an import or of its end."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


@contextmanager
def ctrl_c_raises() -> Iterator[None]:
    """Raise `KeyboardInterrupt` by Ctrl-C, as Python does, in spite of `ctrl_c_leaves`."""
    with kept(signal.SIGINT):
        if signal.getsignal(signal.SIGINT) is _leave:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise `Terminated` in the main thread when SIGTERM or SIGHUP arrives."""

    def raise_(number: int, _frame: FrameType | None) -> NoReturn:
        _arrived.append(number)
        raise Terminated(number)

    _arrived.clear()
    with _handled_by(raise_, signal.SIGTERM):
        try:
            with named():
                yield
        finally:
            _arrived.clear()  # it was this context's


_arrived: list[int] = []


@contextmanager
def named() -> Iterator[None]:
    """Within `sigterm_raises`: whatever such a signal raised leaves this as `Terminated`.

    Native code that runs the handler, as ray.get does, may raise a KeyboardInterrupt of its own.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if _arrived and not isinstance(stop, Terminated):
            raise Terminated(_arrived[-1]) from stop
        raise


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP, so that a teardown reaches its end."""
    with _handled_by(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def noted() -> Iterator[list[int]]:
    """Note Ctrl-C, SIGTERM and SIGHUP in the order in which they come; they do nothing else."""
    arrived: list[int] = []
    with _handled_by(lambda number, _frame: arrived.append(number), signal.SIGINT, signal.SIGTERM):
        yield arrived


@contextmanager
def _handled_by(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers, *numbers: signal.Signals
) -> Iterator[None]:
    """Handle signals, and SIGHUP with them unless it is ignored, as nohup has it."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers = (*numbers, signal.SIGHUP)
    with ExitStack() as stack:
        for number in numbers:
            stack.enter_context(kept(number))
            if _in_main_thread():
                signal.signal(number, handler)
        yield


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """End this process at once by Ctrl-C, SIGTERM or SIGHUP, while it imports torch and has begun nothing.

    What a handler raises then is lost: native code of torch imports numpy, and goes on without it.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        with suppress(OSError):
            os.write(_STDERR, b"stopped\n")
        _leave(number, frame)

    heeded = (one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN)
    with _handled_by(leave, *heeded):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP wait for the end of this; they take effect then."""
    with noted() as arrived:
        yield
    if arrived:
        signal.raise_signal(arrived[0])


@contextmanager
def python_s_sigterm() -> Iterator[None]:
    """Have Python handle SIGTERM as before, although native code puts a handler of its own below Python's.

    Ray's native half does: that handler ends the process by SIGABRT three seconds after a SIGTERM, whatever
    Python has to clean up by then. `ray.init` makes up for it where it runs in the main thread.
    """
    try:
        with kept(signal.SIGTERM):
            yield
    finally:
        if _arrived:
            signal.alarm(0)  # those three seconds


@contextmanager
def kept(number: signal.Signals) -> Iterator[None]:
    """Put a signal's handler back at the end, whoever replaces it inside."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if _in_main_thread() and before is not None:
            signal.signal(number, before)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


_at_once: list[bool] = []


def leave_at_once_later() -> None:
    """End this process, in time, without what its libraries would do at its end.

    It has a Ray without a head below it, or one that was interrupted as it began: Ray's native threads would
    wait for the head for a minute, and then crash, or crash at once.
    """
    _at_once.append(True)


def leave_at_once_if_needed(code: object) -> None:
    """End this process with an exit code, as `sys.exit` takes it, if `leave_at_once_later` was called."""
    if _at_once:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)
