"""Reading many documents for use, of which some may be unusable.

Invariants: one that cannot be used is skipped, logged and described; a damaged one goes into quarantine; only
what ends the whole verb is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.errors import NotInStore, StoreError, is_final
from warmrank.cache_store.parallel import each
from warmrank.cache_store.records.documents import quarantine_if_damaged

logger = logging.getLogger(__name__)

READERS: Final = 8

T = TypeVar("T")


def take_usable(
    backend: BlobBackend, names: Sequence[str], read: Callable[[str], T], problems: list[str]
) -> tuple[T, ...]:
    """What ``read`` makes of the documents that can be used, in the order of ``names``, several at a time.

    Args:
        backend: the store, into whose quarantine damaged ones go.
        names: of the documents.
        read: of one document; raises a `StoreError` where it cannot be used.
        problems: gets one line for each that was skipped.

    Raises:
        StoreUnavailable: of a place of the store that is required.
    """

    def attempt(name: str) -> T | StoreError:
        try:
            return read(name)
        except StoreError as error:
            if is_final(error):
                raise
            return error

    found: list[T] = []
    for name, outcome in zip(names, each(attempt, names, num_threads=READERS), strict=True):
        if not isinstance(outcome, StoreError):
            found.append(outcome)
        elif not isinstance(outcome, NotInStore):  # else evicted, or put into quarantine, since the listing
            logger.warning("Skipped a document: %s", outcome)
            problems.append(str(outcome))
            quarantine_if_damaged(backend, name, outcome)
    return tuple(found)
