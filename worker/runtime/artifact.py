"""The artifact: all that a load needs, read from one file (layout: `worker.runtime.files`)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import field
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmrank.worker.errors import ArtifactCorrupt, OtherFormat
from warmrank.worker.values import Value, replace

if TYPE_CHECKING:
    from warmrank.worker.gears.model import GearFacts
    from warmrank.worker.runtime.asked import Call

FORMAT = 11
MARSHAL_VERSION = 2  # the last without references, which hang on how often an object is used
GRAPH_NAME = "__compiled_fn"  # a frame calls its graph by it
ABOUT = "about"
MAGIC = b"warmrank-artifact "
PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")

# Input classes of the seeds: parameters and buffers; mutated inputs; user inputs; and numbers.
STATE, MUTATED, USER, NUMBER = "state", "mutated", "user", "number"
_MEMBER = r"\._(?:modules|parameters|buffers)\['([^']*)'\]"
_ROOT = r"^[LG]\['([^']*)'\]"

Node = tuple[int, str, Any]
Check = tuple[int, str, Any]


class TracedSource(Value):
    """One traced piece of source.

    Attributes:
        kind: ``code`` (one function), ``file`` (a module's whole syntax tree, for code that no name leads
            to), ``operator`` (all that one does in Python; an empty digest where that is nothing),
            ``patches`` (what somebody put into a class or module of torch) or ``builtins`` (names that mean
            Python's own as long as the module has none of its own).
        module: module it stands in; of an operator, the one that registers it, empty if there is none.
        name: qualified name within the module; empty for ``file``; the operator's, with its overload; of
            ``builtins``, all of them.
        digest: hex digest; of ``builtins``, those that the module has.
    """

    kind: str
    module: str
    name: str
    digest: str


class Frame(Value):
    """A frame and what its global names mean; see above."""

    code: bytes
    names: dict[str, Any]


class GraphFacts(Value):
    """Facts about one graph.

    Attributes:
        input_classes: one of ``state``, ``mutated``, ``user``, ``number`` per input.
        aliased_outputs: positions of outputs that share memory with an input.
        data_dependent: the first operator whose result's size depends on values (``aten.nonzero``), or which
            runs one graph or another: such a graph cannot be captured. Empty if there is none.
        moving: the first operator that puts other memory behind an input (``x.data = y``), likewise.
        stored_outputs: positions of outputs that a call puts into objects which were there before it.
        random: the first operator that draws random numbers; empty if there is none.
        input_names: where each input comes from, for people: ``self.layers.0.weight``.
        module_inputs: positions of the inputs that are tensors of the module, not of the call.
        anchored_inputs: positions of the inputs that `as_strided` looks at, by their place in the storage.
    """

    input_classes: tuple[str, ...]
    num_outputs: int
    aliased_outputs: tuple[int, ...]
    data_dependent: str = ""
    random: str = ""
    input_names: tuple[str, ...] = ()
    module_inputs: tuple[int, ...] = ()
    anchored_inputs: tuple[int, ...] = ()
    gears: GearFacts | None = None
    moving: str = ""
    stored_outputs: tuple[int, ...] = ()

    @property
    def uncapturable(self) -> str:
        """The reason why such a graph cannot be captured; empty if it can."""
        if self.data_dependent:
            return f"{self.data_dependent}'s result depends on data"
        return self.moving and f"{self.moving} puts other memory behind an input"


def readable(source: str) -> str:
    """Dynamo's expression for an input as a reader would write it."""
    return re.sub(_ROOT, r"\1", re.sub(_MEMBER, r".\1", source))


class PortableGuards(Value):
    """Conditions under which an artifact may be used; see above."""

    nodes: tuple[Node, ...]
    checks: tuple[Check, ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    ambient: dict[str, str]
    sources: tuple[TracedSource, ...]
    asked: tuple[Call, ...]
    volatile: tuple[int, ...] = ()
    runtime_state: dict[str, str] = field(default_factory=dict)

    def of_tensors(self) -> PortableGuards:
        """Conditions on tensors and sizes alone, which code that was compiled for them relies on."""
        checks = tuple(check for check in self.checks if check[1] == "tensor")
        return replace(self, checks=checks, ambient={}, sources=(), asked=(), runtime_state={})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PortableGuards:
        """Read from an artifact's header."""
        return cls(
            nodes=_unpacked(data["nodes"]),
            checks=_unpacked(data["checks"]),
            shapes=tuple([(expression, tuple(used)) for expression, used in data["shapes"]]),
            ambient=data["ambient"],
            sources=tuple(
                [
                    TracedSource(kind=kind, module=module, name=name, digest=digest)
                    for kind, module, name, digest in data["sources"]
                ]
            ),
            asked=tuple(map(tuple, data["asked"])),
            volatile=tuple(data["volatile"]),
            runtime_state=data.get("runtime_state", {}),
        )


def _unpacked(packed: Mapping[str, Any]) -> tuple[tuple[int, str, Any], ...]:
    """Rows of an artifact's header; equal pairs share their second item, which nobody changes."""
    pairs, numbers = packed["pairs"], packed["rows"]
    each = zip(numbers[::2], map(pairs.__getitem__, numbers[1::2]), strict=True)
    return tuple([(number, first, second) for number, (first, second) in each])


class ArtifactFile(Value):
    """A file beside an artifact that belongs to it (compiled kernels): its name, SHA-256 and size."""

    name: str
    sha256: str
    size_bytes: int


class Artifact(Value):
    """The product of one compile of one cached function.

    Attributes:
        name: qualified name and signature, as TorchAir's log prints it.
        function: digest of the function; another one may have the same name.
        frame: unpacks arguments and packs outputs.
        sections: the engine's own bytes, and `ABOUT`, what `worker.compile.readable` keeps for people.
    """

    name: str
    function: str
    engine: str
    engine_version: str
    components: dict[str, str]
    guards: PortableGuards
    frame: Frame
    facts: GraphFacts
    roles: tuple[str, ...]
    sections: Mapping[str, bytes]
    files: tuple[ArtifactFile, ...] = ()


def parse(data: bytes, where: str) -> Artifact:
    """The artifact in ``data``; ``where`` names the place in errors.

    Raises:
        ArtifactCorrupt: it is no artifact, or its bytes do not match its digest.
        OtherFormat: another version of warmrank wrote it.
    """
    first, newline, body = data.partition(b"\n")
    words = first.split(b" ")
    if data.startswith(PICKLES):
        raise corrupt(where, "it is a pickle, as TorchAir writes them, and warmrank unpickles nothing")
    if not newline or not first.startswith(MAGIC) or len(words) != 3:
        raise corrupt(where, "it does not begin with a warmrank artifact's first line")
    if hashlib.sha256(body).hexdigest().encode() != words[2]:
        raise corrupt(where, "its bytes do not match the digest in its first line")
    if words[1] != str(FORMAT).encode():
        found = words[1].decode(errors="replace")
        raise corrupt(where, f"it has format {found}, this version reads {FORMAT}", OtherFormat)
    try:
        return _from_body(body)
    except (ValueError, LookupError, TypeError) as error:
        raise corrupt(where, f"its header cannot be read ({error!r})") from error


def _from_body(body: bytes) -> Artifact:
    line, _, raw = body.partition(b"\n")
    header: dict[str, Any] = json.loads(line)
    sections: dict[str, bytes] = {}
    offset = 0
    for name, length in header["sections"]:
        sections[name] = raw[offset : offset + length]
        offset += length
    if offset != len(raw):
        raise ValueError(f"sections are {len(raw)} bytes, the header says {offset}")
    facts = {name: header["facts"][name] for name in GraphFacts.value_fields}
    for name, value in facts.items():
        if type(value) is list:
            facts[name] = tuple(value)
    if facts["gears"]:
        from warmrank.worker.gears.model import GearFacts

        facts["gears"] = GearFacts.from_json(facts["gears"])
    header["guards"] = PortableGuards.from_json(header["guards"])
    header["frame"] = Frame(code=sections.pop("frame.code"), names=header["frame"])
    header["facts"] = GraphFacts(**facts)
    header["roles"] = tuple(header["roles"])
    header["files"] = tuple(
        [ArtifactFile(name=name, sha256=sha256, size_bytes=size) for name, sha256, size in header["files"]]
    )
    header["sections"] = sections
    return Artifact(**header)


def open_private(path: Path) -> BufferedReader:
    """Open a file that nobody but this user can have written; imports nothing to find that it is one.

    Raises:
        UnusableCache: it is of another kind, owner or mode.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    status = os.fstat(descriptor)
    if (status.st_mode, status.st_uid) == (stat.S_IFREG | 0o600, os.geteuid()):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    from warmrank.cache_store.cache_dir import private_files

    return private_files.open_private(path)  # says why not


def corrupt(where: str, why: str, kind: type[ArtifactCorrupt] = ArtifactCorrupt) -> ArtifactCorrupt:
    """The error of a file that cannot be used, and why."""
    msg = f"{where} is no usable artifact: {why}. Delete it from the cache: it is fetched or compiled again."
    return kind(msg, where=where, why=why)
