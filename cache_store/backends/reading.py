"""Reading a file of the store where one of its places can open it, and then cannot read it.

Invariants: what fails while it is read in one place is read from the start in the next; the place is not
asked for that file again in the same verb, and is named among the verb's problems.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO, TypeVar

from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.backends.tiers import TieredBackend
from warmrank.cache_store.errors import StoreUnavailable

T = TypeVar("T")


def read_from_any(backend: BlobBackend, name: str, read: Callable[[BinaryIO], T]) -> T:
    """What ``read`` makes of a file, of each place in turn until one can be read.

    Args:
        backend: the store.
        name: of the file.
        read: raises `StoreUnavailable` where the place is at fault; leaves nothing behind then.

    Raises:
        NotInStore: there is none.
        StoreUnavailable: no place that has it can read it.
    """
    while True:
        try:
            with backend.open(name) as file:
                return read(file)
        except StoreUnavailable as error:
            if not (isinstance(backend, TieredBackend) and backend.read_elsewhere(name, error)):
                raise
