"""The audit's print of a trace: what must be equal on all ranks that share an artifact, as text.

Made of an artifact, whether it was compiled or only outlined (`Engine.outline`), so that an
audit and a compile cannot part ways. It holds graph, constants, conditions, frame and facts; neither kernels
nor lines of source, which follow from these or change no result. Where an engine compiles kernels, conditions
on sizes are those of the trace, without what its compiler added.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from warmrank.worker.compile import origins
from warmrank.worker.compile.readable import conditions, disassembled, origin_of
from warmrank.worker.runtime.artifact import PortableGuards
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.worker.runtime.artifact import Artifact

_AS_TEXT = ("graph.py", "torchair.py")
_AS_DIGEST = ("constants", "torchair.json", "torchair.txt")
_AOTI = "aoti"
_MAX_CHARS = 160


class TracePrint(Value):
    """A trace as text."""

    parts: Mapping[str, tuple[str, ...]]  # name of a part -> its lines; the most telling part first
    # line of the graph's source -> line of the user's that it comes from; no part of the digest
    places: Mapping[str, str]

    @property
    def digest(self) -> str:
        """SHA-256 of all parts, hex."""
        return hashlib.sha256(_text(dict(self.parts)).encode()).hexdigest()

    def to_bytes(self) -> bytes:
        """The print for another process."""
        content = {"parts": list(self.parts.items()), "places": self.places}
        return zlib.compress(_text(content).encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> TracePrint:
        """The print that `to_bytes` gave."""
        content = json.loads(zlib.decompress(data))
        return cls(parts={name: tuple(lines) for name, lines in content["parts"]}, places=content["places"])


def print_of(artifact: Artifact) -> TracePrint:
    """The print of the trace that an artifact was made of."""
    known = origins.read(artifact.sections)
    source = next((artifact.sections[name] for name in _AS_TEXT if name in artifact.sections), b"")
    graph = tuple(source.decode().split("\n"))
    guards = PortableGuards.from_json(json.loads(_text(artifact.guards.to_json())))  # as a file has them
    symbols = ""
    if _AOTI in artifact.sections:  # Inductor adds conditions on sizes, and an outline has none of them
        guards = replace(guards, shapes=())
        symbols = _text(_without_hints(json.loads(artifact.sections[_AOTI])["described"]))
    data = guards.to_json()
    kept = ((name, artifact.sections.get(name, b"")) for name in _AS_DIGEST)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in kept}
    return TracePrint(
        parts={
            "graph": graph,
            "condition": tuple(conditions(guards)),
            "sizes": (symbols,),
            "constants": tuple(f"{name} {digest}" for name, digest in digests.items()),
            "frame": tuple(disassembled(artifact.frame.code)),
            "names of the frame": (
                _text(artifact.frame.names),
                hashlib.sha256(artifact.frame.code).hexdigest(),
            ),
            "facts": tuple(f"{name} {_text(value)}" for name, value in artifact.facts.to_json().items()),
            "function": (artifact.name, artifact.function, *artifact.roles),
            "data of conditions": tuple(
                _text(item)
                for _, part in sorted(data.items())
                for item in (part.items() if isinstance(part, dict) else part)
            ),
        },
        places={line: place for line in graph if (place := origin_of(line, known))},
    )


def first_difference(one: TracePrint, other: TracePrint) -> str:
    """The first line in which two prints differ, in words; empty where they are equal."""
    for part in dict.fromkeys((*one.parts, *other.parts)):
        lines = zip_longest(one.parts.get(part, ()), other.parts.get(part, ()), fillvalue="(nothing)")
        for number, (mine, theirs) in enumerate(lines, 1):
            if mine != theirs:
                place = one.places.get(mine) or other.places.get(theirs)
                where = f" ({place})" if part == "graph" and place else ""
                return f"{part} {number}: {_short(mine)} / {_short(theirs)}{where}"
    return ""


def _without_hints(described: dict[str, Any]) -> dict[str, Any]:
    """The description of a graph's inputs without the sizes of the very call that was traced."""
    symbols = {name: bounds for name, (_, *bounds) in described["symbols"].items()}
    return {**described, "symbols": symbols}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _short(line: str) -> str:
    """A line for people, cut where it is long."""
    line = " ".join(line.split())
    return line if len(line) <= _MAX_CHARS else f"{line[: _MAX_CHARS - 3]}..."
