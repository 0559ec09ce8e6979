"""Begins something that may hang, in a thread of its own, so that whoever waits for it can give it up.

The thread stays for as long as what it began, because Linux ends a child that asked to die with its parent
when the *thread* that started it ends (``PR_SET_PDEATHSIG`` in prctl(2)), and Ray asks that of its processes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_TICK_S = 0.1


class TookTooLong(Exception):
    """What was begun has neither ended nor failed in time, and goes on."""


class Beginning:
    """Something that began when this was made.

    Args:
        call: begins it.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._errors: list[BaseException] = []
        self._has_begun = threading.Event()
        self._is_over = threading.Event()
        threading.Thread(target=self._run, name="beginning", daemon=True).start()

    def wait(self, timeout_s: float) -> None:
        """Return when it has begun; signals are handled meanwhile, whatever native code holds it up.

        Raises:
            TookTooLong: it has not yet.
            BaseException: whatever its call raised.
        """
        deadline_s = time.monotonic() + timeout_s
        # A signal that arrives just before a wait does not cut it short: it is heeded between two.
        while not self._has_begun.wait(_TICK_S):
            if time.monotonic() >= deadline_s:
                raise TookTooLong
        if self._errors:
            raise self._errors[0]

    def end(self) -> None:
        """Let the thread end, and with it processes that are to die with it."""
        self._is_over.set()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._errors.append(error)
            self._has_begun.set()
        else:
            self._has_begun.set()
            self._is_over.wait()
