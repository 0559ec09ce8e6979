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
    """One rank's part of an entry."""

    tool: str  # name of what it holds in the store
    root: Path  # directory of the entry, which travels through the store
    top: Path  # the directory that vLLM names by its hash
    rank: str  # name of the rank's directory; of graphs with the model's part, such as ``rank_0_0/backbone``
    artifact: Path  # the file without which vLLM loads nothing
    state: Path  # directory of this node's own files
    label: str  # the entry's name among these


def artifact_entry(path: Path) -> Entry:
    """The entry of vLLM's artifact at a path."""
    root, rank = path.parents[1], path.parent.name
    state = root.parent / STATE
    return Entry(tool="vllm-aot", root=root, top=root, rank=rank, artifact=path, state=state, label=root.name)


def graphs_entry(root: Path, top: Path) -> Entry:
    """The entry of vllm-ascend's graphs in a directory below vLLM's."""
    rank, artifact = root.relative_to(top).as_posix(), root / "vllm_compile_cache.py"
    label = f"{top.name}-{rank}".replace("/", "-")
    return Entry(
        tool="vllm-ascend", root=root, top=top, rank=rank, artifact=artifact, state=top / STATE, label=label
    )


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One rank's last start."""

    entry: str  # vLLM's hash
    rank: str  # name of the rank's directory
    model: str  # path or name of the model
    outcome: Literal["loaded", "compiled"] = "loaded"  # whether vLLM loaded an artifact or compiled one
    source: Literal["store", "disk", ""] = "disk"  # of the artifact; empty where it was compiled
    why: str = ""  # why it was compiled, or why not all of it was loaded; else empty
    fetch_s: float = 0.0  # seconds that vLLM waited for the store
    fetched_bytes: int = 0  # bytes copied from the store
    compile_s: float = 0.0  # seconds of torch.compile, as vLLM counts them
    at_s: float = 0.0  # when, in seconds since the epoch
    published: str = ""  # what became of publishing; empty before it

    def explain(self, why: str) -> None:
        """Note one more reason."""
        self.why = "; ".join(filter(None, (self.why, why)))

    def end(self, *, is_loaded: bool, compile_s: float, why: str = "") -> Outcome:
        """Note that vLLM has loaded or compiled; ``why`` counts where no reason is known yet."""
        self.compile_s, self.at_s = compile_s, time.time()
        if is_loaded:
            self.why = why
        else:
            self.outcome, self.source, self.why = "compiled", "", self.why or why
        return self

    def line(self) -> str:
        """One line for vLLM's log."""
        name = f"{self.rank} of {self.entry[:12]}"
        if self.outcome == "compiled":
            return f"{name}: compiled in {self.compile_s:.1f} s, because {self.why}"
        came = f", {self.fetched_bytes} bytes in {self.fetch_s:.2f} s" if self.source == "store" else ""
        place = "the store" if self.source == "store" else "this disk"
        return f"{name}: loaded from {place}{came}{f'; {self.why}' if self.why else ''}"


def read_components(artifact: Path) -> dict[str, str]:
    """The components of an artifact on this disk; none where it was compiled without the plugin.

    Those of a note that cannot be read are equal to no others.
    """
    try:
        note = json.loads(artifact.with_name(NOTE).read_bytes())
        if note["format"] == _FORMAT:
            return {str(name): str(value) for name, value in note["components"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    return dict(_UNREADABLE)


def write_components(artifact: Path, components: dict[str, str]) -> None:
    """Note what an artifact was compiled for; an equal note stays as it is."""
    note = artifact.with_name(NOTE)
    data = json.dumps({"format": _FORMAT, "components": components}, sort_keys=True, indent=1).encode()
    with contextlib.suppress(OSError):
        if note.read_bytes() == data:
            return
    _write(note, data)


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
    pattern = entry.artifact.name if entry.artifact.parent == entry.root else f"*/{entry.artifact.name}"
    artifacts = sorted(entry.root.glob(pattern))
    found = {path.parent.relative_to(entry.top).as_posix(): read_components(path) for path in artifacts}
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
    if (target / "inductor_cache").exists():
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
