r"""The artifact: one deterministic file that holds everything a load needs.

Layout::

    warmrank-artifact <format> <sha256 of all that follows this line>\n
    <header: one line of canonical JSON>\n
    <sections, one after another, lengths in the header>

The header holds name, engine, key components, guards and facts; nothing in the file is a date, host, path
or rank, so equal compiles on different ranks write equal bytes. No pickle: reading a file runs nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from warmrank.cache_store.cache_dir.private_files import digest_private
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.keys import canonical_json
from warmrank.worker.errors import ArtifactCorrupt, ArtifactMissing
from warmrank.worker.frame import Frame
from warmrank.worker.graph_facts import GraphFacts
from warmrank.worker.guards.model import PortableGuards
from warmrank.worker.values import Value

FORMAT = 4
ABOUT = "about"
_MAGIC = b"warmrank-artifact "
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))


class ArtifactFile(Value):
    """A file that lies beside an artifact and belongs to it (compiled kernels).

    Attributes:
        name: of the file; no directory.
        sha256: digest of its bytes, hex.
        size_bytes: its size.
    """

    name: str
    sha256: str
    size_bytes: int


class Artifact(Value):
    """What one compile of one cached function produced.

    Attributes:
        name: qualified name and signature, as TorchAir's log prints it.
        function: digest of the function; another one may have the same name.
        engine: name of the engine that made and loads it.
        engine_version: that engine's version.
        components: the named components of the request that it answers.
        guards: conditions under which it may be used.
        frame: unpacks arguments and packs outputs.
        facts: what the runtime must know of the graph.
        roles: roles of the process groups that the graph uses.
        sections: the engine's own bytes, and `ABOUT`, what `worker.compile.origins` keeps for people.
        files: files beside the artifact.
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

    def to_bytes(self) -> bytes:
        """The file's bytes."""
        sections = {"frame.code": self.frame.code, **self.sections}
        header = canonical_json(
            {
                "name": self.name,
                "function": self.function,
                "engine": self.engine,
                "engine_version": self.engine_version,
                "components": self.components,
                "guards": self.guards.to_json(),
                "frame": self.frame.names,
                "facts": self.facts.to_json(),
                "roles": list(self.roles),
                "files": [[file.name, file.sha256, file.size_bytes] for file in self.files],
                "sections": [[name, len(sections[name])] for name in sorted(sections)],
            }
        )
        body = header + b"\n" + b"".join(sections[name] for name in sorted(sections))
        return _MAGIC + f"{FORMAT} {hashlib.sha256(body).hexdigest()}\n".encode() + body

    def provenance(self) -> str:
        """Digest of what determined the bytes: request, traced source and its lines, conditions."""
        inputs = {
            "components": self.components,
            "function": self.function,
            "guards": self.guards.to_json(),
            "name": self.name,
            "origins": hashlib.sha256(self.sections.get(ABOUT, b"")).hexdigest(),
        }
        return hashlib.sha256(canonical_json(inputs)).hexdigest()


def is_artifact(first: bytes) -> bool:
    """Whether a file that begins so is one that this cache, or TorchAir's, wrote; whole or not."""
    return first.startswith(_MAGIC) or first.startswith(_PICKLES)


def read(path: Path) -> tuple[Artifact, str, int]:
    """An artifact, the SHA-256 of its file, and the file's size in bytes.

    Raises:
        ArtifactCorrupt: the file is no artifact, of another format, or its bytes do not match its digest.
        OSError: the file cannot be read.
    """
    data = path.read_bytes()
    return parse(data, str(path)), hashlib.sha256(data).hexdigest(), len(data)


def parse(data: bytes, where: str) -> Artifact:
    """The artifact in ``data``; ``where`` names the place in errors.

    Raises:
        ArtifactCorrupt: as `read`.
    """
    first, newline, body = data.partition(b"\n")
    words = first.split(b" ")
    if data.startswith(_PICKLES):
        raise _corrupt(where, "it is a pickle, as TorchAir writes them, and warmrank unpickles nothing")
    if not newline or not first.startswith(_MAGIC) or len(words) != 3:
        raise _corrupt(where, "it does not begin with a warmrank artifact's first line")
    if words[1] != str(FORMAT).encode():
        raise _corrupt(
            where, f"it has format {words[1].decode(errors='replace')}, this version reads {FORMAT}"
        )
    if hashlib.sha256(body).hexdigest().encode() != words[2]:
        raise _corrupt(where, "its bytes do not match the digest in its first line")
    try:
        return _from_body(body)
    except (ValueError, LookupError, TypeError) as error:
        raise _corrupt(where, f"its header cannot be read ({error!r})") from error


def verified(directory: Path, file: ArtifactFile) -> Path:
    """Where a file beside an artifact lies, its bytes verified.

    Raises:
        ArtifactMissing: it is not there.
        ArtifactCorrupt: it holds other bytes.
        UnusableCache: it is not private, or cannot be read.
    """
    path = directory / file.name
    if not path.exists():
        msg = f"{path} is missing, though the artifact beside it needs it; that is fetched or compiled again."
        raise ArtifactMissing(msg, where=str(path), why="it is missing")
    if digest_private(path) != Digest(sha256=file.sha256, size_bytes=file.size_bytes):
        raise _corrupt(str(path), "its bytes do not match the digest in the artifact beside it")
    return path


def damaged_files(directory: Path, files: Iterable[ArtifactFile]) -> tuple[Path, ...]:
    """Those files beside an artifact that are this user's own and hold other bytes than they should."""
    found = []
    for file in files:
        path = directory / file.name
        try:
            verified(directory, file)
        except ArtifactCorrupt:
            if path.exists():
                found.append(path)
        except UnusableCache:
            continue
    return tuple(found)


def _corrupt(where: str, why: str) -> ArtifactCorrupt:
    msg = f"{where} is no usable artifact: {why}. Delete it from the cache: it is fetched or compiled again."
    return ArtifactCorrupt(msg, where=where, why=why)


def _from_body(body: bytes) -> Artifact:
    line, _, raw = body.partition(b"\n")
    header: dict[str, Any] = json.loads(line)
    sections: dict[str, bytes] = {}
    offset = 0
    for name, length in header["sections"]:
        sections[name] = raw[offset : offset + length]
        offset += length
    if offset != len(raw):
        msg = f"sections are {len(raw)} bytes, the header says {offset}"
        raise ValueError(msg)
    return Artifact(
        name=header["name"],
        function=header["function"],
        engine=header["engine"],
        engine_version=header["engine_version"],
        components=header["components"],
        guards=PortableGuards.from_json(header["guards"]),
        frame=Frame(code=sections.pop("frame.code"), names=header["frame"]),
        facts=GraphFacts.from_json(header["facts"]),
        roles=tuple(header["roles"]),
        files=tuple(
            ArtifactFile(name=name, sha256=sha256, size_bytes=size) for name, sha256, size in header["files"]
        ),
        sections=sections,
    )
