r"""The files of one cached function: saves new artifacts, takes over those of others, gives them up.

A mark beside an artifact, ``.withheld_<sha256>``, keeps other partitions from it: its audit is not
through, or found a fault. It stands before the artifact does; the launch takes it away when nothing was
found. What bears a mark is not published.

A process that finds an artifact of its own without such files imports nothing of this.

Layout::

    warmrank-artifact <format> <sha256 of all that follows this line>\n
    <header: one line of canonical JSON>\n
    <sections, one after another, lengths in the header>

The header holds name, engine, key components, guards and facts; nothing in the file is a date, host, path
or rank, so equal compiles on different ranks write equal bytes. No pickle: reading a file runs nothing.

Guards (JSON)::

    {"nodes":   rows of (parent, step, argument),       see check.py
     "checks":  rows of (node, kind, expected),         see check.py
     "shapes":  [["p3()[0] == p7()[0]", [3, 7]], ...],  conditions on sizes over node values
     "ambient": {"default dtype": "torch.float32", ...},  see warm.py
     "sources": [[kind, module, name, digest], ...],    see sources.py
     "asked":   [[function, arguments, named arguments, result], ...],  see asked.py
     "volatile": [node, ...],                            nodes that the frame itself writes to
     "runtime_state": {"kv_cache_blocks": "512"}}        see runtime_state.py; left out if empty

Of these rows each pair of the last two is written once, however many layers repeat it:
``{"pairs": [[step, argument], ...], "rows": [parent, number of a pair, parent, number of a pair, ...]}``.

Frame: Dynamo's code object, marshalled (section ``frame.code``), and what its global names mean (JSON)::

    {"graph": name of the graph's global,
     "imports": {global name: module},
     "objects": {global name: encoded constant or class},
     "builtins": [global names bound to the builtins mapping],
     "writes": whether a call writes to Python objects that were there before it}
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmrank.cache_store.cache_dir.local import add_variant, companions, variants
from warmrank.cache_store.cache_dir.private_files import make_private_directories, os_errors_are_unusable
from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import Digest, digest_bytes
from warmrank.worker.runtime.artifact import ABOUT, FORMAT, MAGIC
from warmrank.worker.runtime.find import StoredArtifact, announce, candidates, read_stored, with_files
from warmrank.worker.values import replace

if TYPE_CHECKING:
    from warmrank.cache_store.store import Store
    from warmrank.worker.runtime.artifact import Artifact, PortableGuards
    from warmrank.worker.runtime.find import Place


OFFERED = "offered"  # the partition of what a store or another node offers


def save(
    function_dir: Path,
    artifact: Artifact,
    files: Mapping[str, bytes],
    *,
    withheld: bool = False,
    kept: bool = True,
) -> StoredArtifact:
    """Save a new artifact, and the files beside it, by name.

    ``withheld``: no other partition takes it by itself. Not ``kept``, nothing is written: the engine goes on
    with what it just compiled.
    """
    data = to_bytes(artifact)
    digest = digest_bytes(data)
    path, beside = function_dir, dict[str, Path]()
    if kept:
        if withheld:
            _withhold(function_dir, digest.sha256)
        beside = {name: add_variant(function_dir, data, beside=name) for name, data in files.items()}
        path = add_variant(function_dir, data)
    stored = StoredArtifact(
        artifact=artifact, path=path, sha256=digest.sha256, size_bytes=digest.size_bytes, beside=beside
    )
    if kept:
        announce("saved to", stored)
    return stored


def to_bytes(artifact: Artifact) -> bytes:
    """The bytes of an artifact's file."""
    sections = {"frame.code": artifact.frame.code, **artifact.sections}
    header = canonical_json(
        {
            "name": artifact.name,
            "function": artifact.function,
            "engine": artifact.engine,
            "engine_version": artifact.engine_version,
            "components": artifact.components,
            "guards": guards_json(artifact.guards),
            "frame": artifact.frame.names,
            "facts": asdict(artifact.facts),
            "roles": artifact.roles,
            "files": [[file.name, file.sha256, file.size_bytes] for file in artifact.files],
            "sections": [[name, len(sections[name])] for name in sorted(sections)],
        }
    )
    body = header + b"\n" + b"".join(sections[name] for name in sorted(sections))
    return MAGIC + f"{FORMAT} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def provenance(artifact: Artifact) -> str:
    """Digest of what determined an artifact's bytes: request, traced source and its lines, conditions."""
    inputs = {
        "components": artifact.components,
        "function": artifact.function,
        "guards": guards_json(artifact.guards),
        "name": artifact.name,
        "origins": hashlib.sha256(artifact.sections.get(ABOUT, b"")).hexdigest(),
    }
    return hashlib.sha256(canonical_json(inputs)).hexdigest()


def guards_json(guards: PortableGuards) -> dict[str, Any]:
    """Conditions as they stand in an artifact's header."""
    sources = [[item.kind, item.module, item.name, item.digest] for item in guards.sources]
    data = {**guards.__dict__, "sources": sources}
    data |= {"nodes": _packed(guards.nodes), "checks": _packed(guards.checks)}
    if not guards.runtime_state:
        del data["runtime_state"]
    return data


def _packed(rows: Iterable[tuple[int, str, Any]]) -> dict[str, Any]:
    """Rows as they stand in an artifact's header."""
    pairs: dict[str, tuple[int, list[Any]]] = {}  # by their text: 1, 1.0 and True are three
    numbers = []
    for number, *pair in rows:
        index, _ = pairs.setdefault(repr(pair), (len(pairs), pair))
        numbers += [number, index]
    return {"pairs": [pair for _, pair in pairs.values()], "rows": numbers}


def remove(function_dir: Path) -> None:
    """Remove all artifacts of a function, the files beside them, and its directory if empty then."""
    for path in (*variants(function_dir), *companions(function_dir)):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        function_dir.rmdir()


def adopted(function_dir: Path, stored: StoredArtifact, *, withheld: bool = False) -> StoredArtifact:
    """An artifact of another partition, copied into this one."""
    if withheld:
        _withhold(function_dir, stored.sha256)
    beside = {}
    for file in stored.artifact.files:
        source, digest = (
            stored.path.parent / file.name,
            Digest(sha256=file.sha256, size_bytes=file.size_bytes),
        )
        beside[file.name] = add_variant(function_dir, source, digest, beside=file.name)
    return replace(stored, path=add_variant(function_dir, stored.path), beside=beside)


def offered(place: Place, sha256: str, store: Store | None, *, cache_root: Path) -> StoredArtifact | None:
    """The artifact with this digest: from the cache directory, else from the store; None if nowhere.

    Raises:
        StoreError: the store does not have it, or a file beside it, or cannot be read.
    """
    for path in candidates(place):
        stored = read_stored(path, [])
        if stored is not None and stored.sha256 == sha256 and (whole := with_files(stored, [])) is not None:
            return whole
    if store is None:
        return None
    # Not into the own partition yet: its guards have not been asked.
    directory = place.model_dir / OFFERED / place.function_dir.name
    stored = read_stored(store.fetch_blob(sha256, directory, cache_root=cache_root), [])
    if stored is None:
        return None
    for file in stored.artifact.files:
        store.fetch_blob(file.sha256, directory, cache_root=cache_root, beside=file.name)
    return with_files(stored, [])


def _mark(function_dir: Path, sha256: str) -> Path:
    """The mark that keeps an artifact for its own partition alone."""
    return function_dir / f".withheld_{sha256}"


def is_withheld(function_dir: Path, sha256: str) -> bool:
    """True if an artifact is for its own partition alone."""
    return _mark(function_dir, sha256).exists()


def _withhold(function_dir: Path, sha256: str) -> None:
    """Keep other partitions from an artifact that is about to be there."""
    with os_errors_are_unusable("file", mark := _mark(function_dir, sha256)):
        make_private_directories(function_dir)
        mark.touch(mode=0o600)


def release(function_dir: Path, sha256: str) -> None:
    """Let other partitions have an artifact."""
    with os_errors_are_unusable("file", mark := _mark(function_dir, sha256)):
        mark.unlink(missing_ok=True)
