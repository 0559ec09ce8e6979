"""Which of the node artifacts that several launches and nodes have a node takes: decided without any I/O.

What belongs together is one *unit*: a file, or, where files come in sets (`placing.Destination.in_sets`), all
sets of one artifact. Of a unit there are *offers*: other bytes of the file, other sets.

Invariants: of each unit one offer is taken, whole: the first of which everything can be had; nothing is
offered that the node does not declare; all that is taken together stays within one budget, whatever number of
launches, nodes and manifests it comes from, and can stand side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.node.node_files import NodeFile
from warmrank.cache_store.node.placing import Destinations
from warmrank.cache_store.paths import collisions

MAX_FILES = 8192
"""Node artifacts that one node takes, and that a manifest names; it has room for 10,000 files in all."""
MAX_BYTES = 32 << 30
_SET_PARTS = 3  # <artifact>/<conditions>/<set>/...

_Unit = tuple[str, str]
_Offer = dict[str, NodeFile]


class Offers:
    """What is offered to a node, and what of it the node has taken so far.

    Args:
        files: all that there is, what is to come before others first.
        destinations: the node caches of the node.

    Attributes:
        left_out: why others are not taken, one line each.
    """

    def __init__(self, files: Iterable[NodeFile], destinations: Destinations) -> None:
        self.left_out: list[str] = []
        self._asked: dict[_Unit, _Offer] = {}
        self._taken: dict[str, NodeFile] = {}
        by_unit: dict[_Unit, dict[str, _Offer]] = {}
        for file in self._declared(files, destinations):
            unit, offer = _unit_of(file, destinations)
            by_unit.setdefault(unit, {}).setdefault(offer, {}).setdefault(file.relative, file)
        self._waiting = {unit: list(offers.values()) for unit, offers in by_unit.items()}

    def __bool__(self) -> bool:
        """Whether anything may be taken."""
        return bool(self._waiting)

    @property
    def taken(self) -> tuple[NodeFile, ...]:
        """What was taken, in the order of the offers."""
        return tuple(self._taken.values())

    def next(self) -> tuple[NodeFile, ...]:
        """What to fetch now, of each unit one offer; nothing when all is decided."""
        while self._waiting and not self._asked:
            self._ask()
        return tuple(file for offer in self._asked.values() for file in offer.values())

    def _ask(self) -> None:
        num_files, size_bytes = len(self._taken), _size_of(self._taken.values())
        for unit in list(self._waiting):
            offer = self._waiting[unit].pop(0)
            if not self._waiting[unit]:
                del self._waiting[unit]
            files, more_bytes = num_files + len(offer), size_bytes + _size_of(offer.values())
            if files > MAX_FILES or more_bytes > MAX_BYTES:
                why = f"more than {MAX_FILES} files or {MAX_BYTES} bytes for one node"
                self.left_out.append(f"{_name(unit)}: {why}")
                continue
            num_files, size_bytes = files, more_bytes
            self._asked[unit] = offer

    def answer(self, faults: Mapping[Digest, StoreError]) -> None:
        """What became of what `next` named: these cannot be had; of their units the next offers come."""
        for unit, offer in self._asked.items():
            failed = [file for file in offer.values() if file.digest in faults]
            self.left_out += [f"{file.path}: {faults[file.digest]}" for file in failed]
            if not failed:
                self._waiting.pop(unit, None)
                self._take(offer)
        self._asked = {}

    def _take(self, offer: _Offer) -> None:
        together = self._taken | {file.path: file for file in offer.values()}
        if bad := dict(collisions(together)):
            self.left_out += [f"{path}: {fault}" for path, fault in bad.items()]
        else:
            self._taken = together

    def _declared(self, files: Iterable[NodeFile], destinations: Destinations) -> Iterable[NodeFile]:
        strange: Counter[str] = Counter()
        for file in files:
            destination = destinations.get(file.cache)
            if destination is not None and destination.takes(file.relative):
                yield file
            else:
                strange[file.cache] += 1
        self.left_out += [
            f"node/{name}: {number} file{'' if number == 1 else 's'}, of which this node's config declares "
            "no directory or no pattern"
            for name, number in sorted(strange.items())
        ]


def _unit_of(file: NodeFile, destinations: Destinations) -> tuple[_Unit, str]:
    """The unit that a file belongs to, and of which of its offers it is a part."""
    if not destinations[file.cache].in_sets:
        return (file.cache, file.relative), file.digest.sha256
    artifact, conditions, name = (*file.relative.split("/", _SET_PARTS), "", "")[:_SET_PARTS]
    return (file.cache, f"{artifact}/{conditions}"), name


def _name(unit: _Unit) -> str:
    return f"node/{unit[0]}/{unit[1]}"


def _size_of(files: Iterable[NodeFile]) -> int:
    return sum(digest.size_bytes for digest in {file.digest for file in files})
