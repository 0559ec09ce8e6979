"""An artifact as the bytes of its files, from the rank that has it to nodes that cannot get it otherwise.

Invariants: what is taken in lies where what a store offers lies, in no partition, and counts as offered, not
as made here: the guards of each rank decide whether it fits. The directory that takes it first bears the
marks of the one that gave it, so a revocation reaches it there too. A file with other bytes than those of the
digest that was offered is not found by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warmrank.cache_store.cache_dir.local import add_companion, add_variant, ensure_cache_dir
from warmrank.cache_store.cache_dir.marks import Marks, marks_of, permit_copies

from warmrank.worker.runtime.function import OFFERED

if TYPE_CHECKING:
    from warmrank.worker.runtime.function import CachedFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """The files of one artifact.

    Attributes:
        data: of the artifact itself.
        beside: of the files beside it, by name.
        marks: of the cache directory that it comes from.
    """

    data: bytes
    beside: Mapping[str, bytes]
    marks: Marks


def hand_out(function: CachedFunction, digest: str) -> Handed | None:
    """The artifact with this digest, if this rank's cache directory has it."""
    stored = function.offered(digest, None)
    if stored is None:
        return None
    beside = {name: path.read_bytes() for name, path in stored.files().items()}
    return Handed(data=stored.path.read_bytes(), beside=beside, marks=marks_of(function.root()))


def take_in(function: CachedFunction, handed: Handed) -> None:
    """Lay an artifact of another node into this one's cache directory.

    Raises:
        cache_store.errors.UnusableCache: the directory cannot be written.
    """
    place = function.place()
    ensure_cache_dir(function.root())
    permit_copies(function.root(), handed.marks.policy, handed.marks.signers)
    directory = place.model_dir / OFFERED / place.function_dir.name
    for name, data in handed.beside.items():
        add_companion(directory, name, data)
    add_variant(directory, handed.data)
