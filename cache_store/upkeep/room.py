"""What stands in a place while an evict decides: who needs what, and how much room it takes.

Invariants: a file goes with the last document that needed it, and not before the grace is over; it is counted
once.
"""

from __future__ import annotations

from collections import Counter

from warmrank.cache_store.layout import BLOBS, MANIFESTS
from warmrank.cache_store.retention.inventory import Inventory
from warmrank.cache_store.retention.marks import UNSIGNED, is_record


class Room:
    """The files that stand, with the number of documents that need each.

    Taking a record away takes what only it needed, if that is older than the grace.

    Attributes:
        remaining_bytes: size of what was not taken.
    """

    def __init__(self, inventory: Inventory, grace_s: float) -> None:
        self._inventory = inventory
        self._grace_s = grace_s
        self._counts: Counter[str] = Counter()
        self._unreferenced: dict[str, None] = {}
        self.remaining_bytes = sum(info.stored_bytes for info in inventory.files.values())
        self._taken: set[str] = set()
        self._other_bytes: int | None = None
        ranks = (inventory.documents[name].trust_rank for name in inventory.files if is_record(name))
        self._believed = _closure_of(inventory, max(ranks, default=UNSIGNED))
        self._count_references()

    def take(self, name: str) -> None:
        """A file goes, and with it what nothing else needs."""
        self._taken.add(name)
        self.remaining_bytes -= self._inventory.files[name].stored_bytes
        if not is_record(name):
            self._unreferenced[name] = None
        document = self._inventory.documents.get(name)
        for needed in document.references if document else ():
            self._release(needed)

    def counted_bytes(self, record: str) -> int:
        """What counts against a limit when it is decided about ``record``, after all of lower ranks.

        Against a record of the highest rank only what such ones need: all else goes as soon as it may.
        """
        if record not in self._believed:
            return self.remaining_bytes
        if self._other_bytes is None:
            self._other_bytes = sum(
                info.stored_bytes
                for name, info in self._inventory.files.items()
                if name not in self._believed and name not in self._taken
            )
        return self.remaining_bytes - self._other_bytes

    def unreferenced(self) -> list[str]:
        """What goes because nothing that remains needs it: manifests, then blobs."""
        names = sorted(self._unreferenced, key=blobs_first)
        blobs = [name for name in names if name.startswith(BLOBS)]
        documents = names[len(blobs) :]
        return [*documents, *blobs]

    def needed(self) -> frozenset[str]:
        """All names that remaining documents need."""
        return frozenset(name for name, count in self._counts.items() if count > 0)

    def _count_references(self) -> None:
        inventory = self._inventory
        for name in filter(is_record, inventory.files):
            self._counts.update(inventory.documents[name].references)
        manifests = [name for name in inventory.documents if not is_record(name)]
        for name in manifests:
            self._counts.update(inventory.documents[name].references)
        for name in manifests:
            if not self._counts[name] and self._may_go(name):
                self.take(name)
        for name in inventory.files:
            is_free = name.startswith(BLOBS) and not self._counts[name] and name not in self._taken
            if is_free and self._may_go(name):
                self.take(name)

    def _release(self, name: str) -> None:
        self._counts[name] -= 1
        if self._counts[name] or name in self._taken:
            return
        if self._may_go(name):
            self.take(name)
        elif name not in self._inventory.files:
            # Needed by what goes only: it stays in the trash, or is nowhere.
            document = self._inventory.documents.get(name)
            for needed in document.references if document else ():
                self._release(needed)

    def _may_go(self, name: str) -> bool:
        info = self._inventory.files.get(name)
        return info is not None and self._inventory.now_s - info.modified_s > self._grace_s


def blobs_first(name: str) -> tuple[int, str]:
    """Sorts names in the order in which they may appear: what is needed before what needs it."""
    order = (BLOBS, MANIFESTS)
    return next((rank for rank, prefix in enumerate(order) if name.startswith(prefix)), len(order)), name


def _closure_of(inventory: Inventory, rank: int) -> frozenset[str]:
    """The records of a trust rank, and all that they need."""
    found: set[str] = set()
    for record in filter(is_record, inventory.files):
        if inventory.documents[record].trust_rank == rank:
            found.add(record)
            found.update(inventory.documents[record].references)
    for name in [name for name in found if name in inventory.documents and not is_record(name)]:
        found.update(inventory.documents[name].references)
    return frozenset(found)
