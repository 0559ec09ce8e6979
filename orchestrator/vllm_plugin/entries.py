"""An entry of vLLM's compile cache on a node's disk, and what each rank made of it.

Layout, below ``VLLM_CACHE_ROOT/torch_compile_cache``; of vLLM's artifacts, whose ranks share an entry::

    torch_aot_compile/<vllm's hash>/rank_0_0/model           vLLM's artifact
    torch_aot_compile/<vllm's hash>/rank_0_0/warmrank.json   {"format":1,"components":{...}}: made for what
    torch_aot_compile/<vllm's hash>/inductor_cache/          kernels, of all ranks of the node

and of vllm-ascend's graphs, where each part of a rank's model is an entry of its own::

    <hash>/rank_0_0/backbone/vllm_compile_cache.py           vLLM's index: (key, absolute path) of each graph
    <hash>/rank_0_0/backbone/artifact_compile_range_...      npugraph_ex's Python text of one graph
    <hash>/rank_0_0/backbone/warmrank.json                   as above

These travel through the store. Beside them, and left out by `sync`, lies what stays on the node::

    {torch_aot_compile,<hash>}/.state.warmrank/
        <hash>-rank_0_0.json       `Outcome` of the rank's last start on this node
        <entry>.published          digest of the files that were published or pulled last
        <entry>.lock               one fetch, and one publish, at a time
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

STATE = ".state.warmrank"
NOTE = "warmrank.json"
_FORMAT = 1
_POLL_S = 0.05
_UNREADABLE = {NOTE: "unreadable"}


class Kind(Enum):
    """Content of an entry, by the name of its directory's tool in the store."""

    ARTIFACT = "vllm-aot"
    GRAPHS = "vllm-ascend"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One rank's part of an entry."""

    root: Path  # directory of the entry, which travels through the store
    rank: str  # name of the rank's directory; of graphs with the model's part, such as ``rank_0_0/backbone``
    kind: Kind = Kind.ARTIFACT  # what it holds

    @property
    def top(self) -> Path:
        """The directory that vLLM names by its hash."""
        return self.root if self.kind is Kind.ARTIFACT else self.root.parents[self.rank.count("/")]

    @property
    def artifact(self) -> Path:
        """The file without which vLLM loads nothing."""
        if self.kind is Kind.ARTIFACT:
            return self.root / self.rank / "model"
        return self.root / "vllm_compile_cache.py"

    @property
    def note(self) -> Path:
        """The file that holds the artifact's components."""
        return self.artifact.with_name(NOTE)

    @property
    def state(self) -> Path:
        """Directory of this node's own files."""
        return (self.root.parent if self.kind is Kind.ARTIFACT else self.top) / STATE

    @property
    def label(self) -> str:
        """The entry's name among the node's own files."""
        return (
            self.top.name if self.kind is Kind.ARTIFACT else f"{self.top.name}-{self.rank}".replace("/", "-")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One rank's last start."""

    entry: str  # vLLM's hash
    rank: str  # name of the rank's directory
    model: str  # path or name of the model
    outcome: Literal["loaded", "compiled"]  # whether vLLM loaded an artifact or compiled one
    source: Literal["store", "disk", ""]  # of the artifact; empty where it was compiled
    why: str  # why it was compiled, or why not all of it was loaded; else empty
    fetch_s: float  # seconds that vLLM waited for the store
    fetched_bytes: int  # bytes copied from the store
    compile_s: float  # seconds of torch.compile, as vLLM counts them
    at_s: float  # when, in seconds since the epoch
    published: str = ""  # what became of publishing; empty before it

    def line(self) -> str:
        """One line for vLLM's log."""
        name = f"{self.rank} of {self.entry[:12]}"
        if self.outcome == "compiled":
            return f"{name}: compiled in {self.compile_s:.1f} s, because {self.why}"
        came = f", {self.fetched_bytes} bytes in {self.fetch_s:.2f} s" if self.source == "store" else ""
        place = "the store" if self.source == "store" else "this disk"
        return f"{name}: loaded from {place}{came}{f'; {self.why}' if self.why else ''}"


def read_components(entry: Entry) -> dict[str, str]:
    """The components of the artifact on this disk; none where it was compiled without the plugin.

    Those of a note that cannot be read are equal to no others.
    """
    try:
        note = json.loads(entry.note.read_bytes())
        if note["format"] == _FORMAT:
            return {str(name): str(value) for name, value in note["components"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    return dict(_UNREADABLE)


def write_components(entry: Entry, components: dict[str, str]) -> None:
    """Note what this rank's artifact was compiled for; an equal note stays as it is."""
    data = json.dumps({"format": _FORMAT, "components": components}, sort_keys=True, indent=1).encode()
    with contextlib.suppress(OSError):
        if entry.note.read_bytes() == data:
            return
    _write(entry.note, data)


def write_outcome(entry: Entry, outcome: Outcome) -> None:
    """Keep a rank's outcome for ``warmrank explain`` and the metrics."""
    name = f"{outcome.entry}-{outcome.rank}".replace("/", "-")
    _write(entry.state / f"{name}.json", json.dumps(asdict(outcome)).encode())


def read_outcomes(cache_root: Path, *, since_s: float = 0.0) -> tuple[Outcome, ...]:
    """The outcomes below a ``VLLM_CACHE_ROOT``, newest first; what cannot be read is passed over."""
    found = []
    for path in sorted(cache_root.glob(f"torch_compile_cache/*/{STATE}/*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Outcome(**json.loads(path.read_bytes())))
    return tuple(sorted((one for one in found if one.at_s >= since_s), key=lambda one: -one.at_s))


def ranks_of(entry: Entry) -> dict[str, dict[str, str]]:
    """The components of every artifact in an entry, by the rank's directory; none where not known."""
    if entry.kind is Kind.GRAPHS:
        found = {entry.rank: read_components(entry)} if entry.artifact.exists() else {}
    else:
        ranks = sorted(path.parent.name for path in entry.root.glob("*/model"))
        found = {rank: read_components(replace(entry, rank=rank)) for rank in ranks}
    return {rank: {} if components == _UNREADABLE else components for rank, components in found.items()}


def files_digest(root: Path) -> str:
    """A digest of names, sizes and times of an entry's files, without locks and what is being written."""
    lines = []
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name != "locks")
        for name in sorted(files):
            if not name.endswith((".lock", ".tmp")):
                with contextlib.suppress(OSError):
                    status = os.stat(os.path.join(directory, name))  # noqa: PTH116, PTH118 - many, often
                    lines.append(f"{directory}/{name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def published_digest(entry: Entry) -> str:
    """`files_digest` as of the last publish or pull; empty where there was none."""
    with contextlib.suppress(OSError):
        return (entry.state / f"{entry.label}.published").read_text()
    return ""


def note_published(entry: Entry, digest: str) -> None:
    """Keep a digest for `published_digest`."""
    _write(entry.state / f"{entry.label}.published", digest.encode())


@contextlib.contextmanager
def node_lock(entry: Entry, *, timeout_s: float) -> Iterator[bool]:
    """Hold the entry's lock among the processes of this node; yields whether it is held."""
    entry.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(entry.state / f"{entry.label}.lock", timeout=timeout_s, mode=0o600)
    try:
        lock.acquire(poll_interval=_POLL_S)
    except (Timeout, OSError, NotImplementedError):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def set_aside(entry: Entry) -> Path:
    """Move an entry away that must not be used; vLLM finds an empty one."""
    target = entry.state / f"refused-{entry.label[:12]}-{time.time_ns()}"
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    entry.root.rename(target)
    entry.artifact.parent.mkdir(parents=True)
    if entry.kind is Kind.ARTIFACT:
        (entry.root / "inductor_cache").mkdir()
    return target


def discard(entry: Entry) -> None:
    """Remove a rank's artifact, which vLLM replaces; raises OSError."""
    shutil.rmtree(entry.artifact.parent)
    entry.artifact.parent.mkdir()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
