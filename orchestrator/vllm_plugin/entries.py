"""An entry of vLLM's compile cache on a node's disk, and what each rank made of it.

Layout, below ``VLLM_CACHE_ROOT/torch_compile_cache/torch_aot_compile``::

    <vllm's hash>/rank_0_0/model            vLLM's artifact
    <vllm's hash>/rank_0_0/warmrank.json    {"format":1,"components":{...}}: what it was compiled for
    <vllm's hash>/inductor_cache/           kernels, of all ranks of the node
    .state.warmrank/<hash>-rank_0_0.json    `Outcome` of the rank's last start on this node
    .state.warmrank/<hash>.published        digest of the files that were published or pulled last
    .state.warmrank/<hash>.lock             one fetch, and one publish, at a time

The first three travel through the store, the others stay; `sync` leaves out names that end so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

STATE = ".state.warmrank"
NOTE = "warmrank.json"
_FORMAT = 1
_POLL_S = 0.05
_UNREADABLE = {NOTE: "unreadable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One rank's part of an entry.

    Attributes:
        root: directory of the entry, whose name is vLLM's hash.
        rank: name of the rank's directory.
    """

    root: Path
    rank: str

    @property
    def artifact(self) -> Path:
        """The file that vLLM loads."""
        return self.root / self.rank / "model"

    @property
    def state(self) -> Path:
        """Directory of this node's own files."""
        return self.root.parent / STATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One rank's last start.

    Attributes:
        entry: vLLM's hash.
        rank: name of the rank's directory.
        model: path or name of the model.
        outcome: whether vLLM loaded an artifact or compiled one.
        source: where the artifact came from: the store, or this disk; empty where it was compiled.
        why: why it was compiled; empty where it was loaded.
        fetch_s: seconds that vLLM waited for the store.
        fetched_bytes: bytes copied from the store.
        compile_s: seconds of torch.compile, as vLLM counts them.
        at_s: when, in seconds since the epoch.
        published: what became of publishing; empty before it.
    """

    entry: str
    rank: str
    model: str
    outcome: Literal["loaded", "compiled"]
    source: Literal["store", "disk", ""]
    why: str
    fetch_s: float
    fetched_bytes: int
    compile_s: float
    at_s: float
    published: str = ""

    def line(self) -> str:
        """One line for vLLM's log."""
        name = f"{self.rank} of {self.entry[:12]}"
        if self.outcome == "compiled":
            return f"{name}: compiled in {self.compile_s:.1f} s, because {self.why}"
        came = f", {self.fetched_bytes} bytes in {self.fetch_s:.2f} s" if self.source == "store" else ""
        return f"{name}: loaded from {'the store' if self.source == 'store' else 'this disk'}{came}"


def read_components(entry: Entry) -> dict[str, str]:
    """The components of the artifact on this disk; none where it was compiled without the plugin.

    Those of a note that cannot be read are equal to no others.
    """
    try:
        note = json.loads((entry.root / entry.rank / NOTE).read_bytes())
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
    path = entry.root / entry.rank / NOTE
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return
    _write(path, data)


def write_outcome(entry: Entry, outcome: Outcome) -> None:
    """Keep a rank's outcome for ``warmrank explain`` and the metrics."""
    _write(entry.state / f"{outcome.entry}-{outcome.rank}.json", json.dumps(asdict(outcome)).encode())


def read_outcomes(aot_root: Path, *, since_s: float = 0.0) -> tuple[Outcome, ...]:
    """The outcomes on this node, newest first; what cannot be read is passed over."""
    found = []
    for path in sorted((aot_root / STATE).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Outcome(**json.loads(path.read_bytes())))
    return tuple(sorted((one for one in found if one.at_s >= since_s), key=lambda one: -one.at_s))


def aot_root(cache_root: Path) -> Path:
    """Where vLLM keeps entries below its ``VLLM_CACHE_ROOT``."""
    return cache_root / "torch_compile_cache" / "torch_aot_compile"


def ranks_of(root: Path) -> dict[str, dict[str, str]]:
    """The components of every artifact in an entry, by the rank's directory; none where not known."""
    ranks = sorted(path.parent.name for path in root.glob("*/model"))
    found = {rank: read_components(Entry(root=root, rank=rank)) for rank in ranks}
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
        return (entry.state / f"{entry.root.name}.published").read_text()
    return ""


def note_published(entry: Entry, digest: str) -> None:
    """Keep a digest for `published_digest`."""
    _write(entry.state / f"{entry.root.name}.published", digest.encode())


@contextlib.contextmanager
def node_lock(entry: Entry, *, timeout_s: float) -> Iterator[bool]:
    """Hold the entry's lock among the processes of this node; yields whether it is held."""
    entry.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(entry.state / f"{entry.root.name}.lock", timeout=timeout_s, mode=0o600)
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
    target = entry.state / f"refused-{entry.root.name[:12]}-{time.time_ns()}"
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    entry.root.rename(target)
    (entry.root / "inductor_cache").mkdir(parents=True)
    return target


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
