"""The compiled package beside an artifact: a zip that holds one library, in the layout of torch's ``.pt2``.

Layout::

    graph/archive_format                      pt2
    graph/data/aotinductor/model/graph.so     the library, not compressed
    graph/data/aotinductor/model/graph.json   operators that it calls by name; where there are any

Invariants: equal libraries give equal bytes (no dates); a name says what is in it (`package_name`).
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from warmrank.worker.errors import ArtifactCorrupt

_DIRECTORY = "graph/data/aotinductor/model/"
_FILES = ("graph.so", "graph.json")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(library: Mapping[str, bytes]) -> bytes:
    """The package of a library, given as its files by name."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        files = [(f"{_DIRECTORY}{name}", library[name]) for name in _FILES if name in library]
        for name, data in (("graph/archive_format", b"pt2"), *files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, data)
    return stream.getvalue()


def unpack(path: Path) -> dict[str, bytes]:
    """The library in a package: its files by name.

    Raises:
        ArtifactCorrupt: the file is no such package.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in _FILES if f"{_DIRECTORY}{name}" in archive.namelist()]
            library = {name: archive.read(f"{_DIRECTORY}{name}") for name in names}
            if _FILES[0] not in library:
                msg = f"{path} is no package of compiled kernels: it holds no {_FILES[0]}"
                raise ArtifactCorrupt(msg, where=str(path), why=f"it holds no {_FILES[0]}")
            return library
    except (OSError, zipfile.BadZipFile) as error:
        msg = f"{path} is no package of compiled kernels: {error}"
        raise ArtifactCorrupt(msg, where=str(path), why=str(error)) from error


def package_name(package: bytes) -> str:
    """Name of the file beside the artifact, as TorchAir spells it."""
    return f"ge_cache_{hashlib.sha256(package).hexdigest()[:16]}.pt2"
