"""The same call for many items, several at a time: requests wait for the network most of their time.

Invariants: at most the given number run at once; after the first error no further item is begun, and that
error is raised. The threads are daemons, so a server that is silent does not hold up the end of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")
_R = TypeVar("_R")


def for_each(call: Callable[[_T], _R], items: Iterable[_T], *, num_at_once: int) -> list[_R]:
    """Call for every item, in threads; the results stand in the order of the items.

    Raises:
        Exception: the first that a call raised.
    """
    items = list(items)
    if len(items) <= 1:
        return [call(item) for item in items]
    work = _Work(call, items)
    threads = [threading.Thread(target=work.run, daemon=True) for _ in range(min(num_at_once, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if work.error is not None:
        raise work.error
    return [work.results[index] for index in range(len(items))]


class _Work(Generic[_T, _R]):
    def __init__(self, call: Callable[[_T], _R], items: Sequence[_T]) -> None:
        self._call = call
        self._items = enumerate(items)
        self._lock = threading.Lock()
        self.results: dict[int, _R] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        while (item := self._next()) is not None:
            try:
                self.results[item[0]] = self._call(item[1])
            except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
                with self._lock:
                    self.error = self.error or error

    def _next(self) -> tuple[int, _T] | None:
        with self._lock:
            return None if self.error is not None else next(self._items, None)
