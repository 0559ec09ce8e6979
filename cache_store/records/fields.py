"""What the fields of stored documents may hold: types with limits, and the base of all models.

Invariants: every number, size and length has a limit, so that no document, not even a signed one, fills a
node's disk or memory; an unknown field is an error.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import Digest, is_sha256
from warmrank.cache_store.paths import part_fault

MAX_DOCUMENT_BYTES = 16 << 20  # a manifest has about 200 KB, a launch record 0.3 KB a rank
MAX_ENTRIES = 10_000  # artifacts, requests and captures of one rank, each; a large model has some hundreds
MAX_RANKS = 1 << 16
MAX_FILE_BYTES = 16 << 30  # kernels that come with an artifact have at most some GiB
MAX_PARTITION_BYTES = 64 << 30
MAX_COMPONENTS = 10_000
MAX_NAME_CHARS = 4096  # of a function, or of a component, which may hold the path of a source file
MAX_TEXT_CHARS = 1 << 20  # the value of a component, or the signature of a capture
_KEY = re.compile(r"[0-9a-f]{32,128}", re.ASCII)


def shown(text: str) -> str:
    """Text of a document as an error names it."""
    return repr(text if len(text) <= 100 else f"{text[:97]}...")


def _partition_name(name: str) -> str:
    if fault := part_fault(name):
        raise ValueError(f"partition {shown(name)} {fault}")
    return name


def _hex_key(text: str) -> str:
    if _KEY.fullmatch(text) is None:
        raise ValueError(f"{shown(text)} is no lowercase hex key")
    return text


def _sha256(text: str) -> str:
    if not is_sha256(text):
        raise ValueError(f"{shown(text)} is no lowercase hex sha256")
    return text


def _utc(text: str) -> str:
    if len(text) > 40 or datetime.fromisoformat(text).utcoffset() != timedelta(0):
        raise ValueError(f"{shown(text)} is no time in UTC")
    return text


HexKey = Annotated[str, AfterValidator(_hex_key)]
Sha256 = Annotated[str, AfterValidator(_sha256)]
Utc = Annotated[str, AfterValidator(_utc)]
PartitionName = Annotated[str, AfterValidator(_partition_name)]
Count = Annotated[int, Field(ge=0)]
FileSize = Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
WorldSize = Annotated[int, Field(ge=1, le=MAX_RANKS)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
Components = Annotated[dict[Name, Text], Field(max_length=MAX_COMPONENTS)]


class Document(BaseModel):
    """Base of every document in the store: frozen, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_bytes(self) -> bytes:
        """Canonical JSON of this document; equal documents have equal bytes."""
        # Not in pydantic's JSON mode: fields hold text, numbers and collections of them, whose keys are text.
        return canonical_json(self.model_dump(), keys_are_text=True)


class BlobEntry(Document):
    """What a document says of a file whose bytes are a blob; names it by digest and size."""

    sha256: Sha256
    size_bytes: FileSize

    @property
    def digest(self) -> Digest:
        """What the file's bytes must be."""
        return Digest(sha256=self.sha256, size_bytes=self.size_bytes)
