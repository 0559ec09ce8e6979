"""Entries of vLLM's compile cache on a node's disk, what each rank made of them, and the store they go to.

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

A thread looks at the entries of this process: when the worker's start is over and their files rest, they are
published unless the store has them already, and again whenever files were added, as a first warm start does.
The lock of the entry makes one process of the node publish for all of its ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import multiprocessing.util
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from filelock import FileLock, Timeout

from warmrank.cache_store.backends.deadline import all_within
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.signing.trust import TrustPolicy
from warmrank.cache_store.text import count_text
from warmrank.orchestrator.config.store import StoreConfig, TrustConfig, locate_trust, tier_at
from warmrank.orchestrator.errors import BadArgument
from warmrank.orchestrator.stores import decided, is_writable, may_publish, open_store

logger = logging.getLogger("vllm.warmrank")

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


TIMEOUT_S = 30.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The store of this process."""

    config: StoreConfig  # its place, and whom to trust; the policy is decided
    timeout_s: float  # the longest that vLLM waits for it

    @property
    def publishes(self) -> bool:
        """The store may be written, and what is published could be believed."""
        return is_writable(self.config.tiers) and may_publish(self.config.trust)


def access(environ: Mapping[str, str] = os.environ) -> Access:
    """The access that this process's environment asks for.

    ``WARMRANK_STORE`` is the place, ``WARMRANK_SIGNING_KEY`` a key's name in the keyring or a PEM file,
    ``WARMRANK_KEYRING`` the keyring, ``WARMRANK_TRUST`` the policy, ``WARMRANK_TIMEOUT_S`` the time-out.

    Raises:
        BadArgument: a variable cannot be used.
        StoreError: the keyring is damaged.
    """
    policy, timeout = environ.get("WARMRANK_TRUST"), environ.get("WARMRANK_TIMEOUT_S")
    if policy not in {None, *get_args(TrustPolicy)}:
        allowed = ", ".join(get_args(TrustPolicy))
        raise BadArgument(f"WARMRANK_TRUST: expected one of {allowed}; found {policy!r}")
    try:
        timeout_s = float(timeout) if timeout else TIMEOUT_S
    except ValueError:
        raise BadArgument(f"WARMRANK_TIMEOUT_S: expected seconds, found {timeout!r}") from None
    named = {"signing_key": "WARMRANK_SIGNING_KEY", "keyring": "WARMRANK_KEYRING"}
    paths = {key: Path(environ[name]) for key, name in named.items() if environ.get(name)}
    trust = TrustConfig.model_validate({"policy": policy, **paths})
    config = StoreConfig(
        tiers=(tier_at(environ["WARMRANK_STORE"]),), trust=locate_trust(trust, base=Path.cwd())
    )
    return Access(config=decided(config), timeout_s=timeout_s)


def bounded(call: Callable[[], T], timeout_s: float) -> T:
    """The call's outcome, in a thread of its own; raises what it raised, or TimeoutError while it goes on."""
    (found,) = all_within([lambda: (call(),)], timeout_s=timeout_s)
    if found is None:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return found[0]


NO_STORE = "the store gave nothing"
_LOOK_EVERY_S = 2.0
"""Files that do not change for so long are whole."""
_LATER_S = 60.0
"""Between looks once everything is published: what a request compiles later is small."""
_AT_EXIT_S = 10.0


class Publisher:
    """The entries of this process, and the thread that publishes them once the worker ``is_warm``."""

    def __init__(self, opened: Access) -> None:
        self.is_warm = threading.Event()  # it has compiled and warmed up all that it starts with
        self._access = opened
        self._entries: dict[Entry, Outcome] = {}
        self._seen: dict[Entry, tuple[str, float]] = {}  # the files at the last look, and since when
        self._given_up: set[Entry] = set()
        self._stepping = threading.Lock()  # one look at a time: the last waits for what is being published
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, entry: Entry, outcome: Outcome, components: dict[str, str] | None = None) -> None:
        """Take over an entry that vLLM loaded, or that it compiled for ``components`` and saved."""
        if components is not None and entry.artifact.exists():
            write_components(entry.artifact, components)
        logger.info("warmrank: %s", outcome.line())
        write_outcome(entry, outcome)
        self._entries[entry] = outcome
        self._wake.set()
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="warmrank-publish", daemon=True)
        self._thread.start()
        # Runs in children of multiprocessing too, where atexit does not.
        multiprocessing.util.Finalize(None, self._at_exit, exitpriority=100)

    def _run(self) -> None:
        self.is_warm.wait()
        while True:
            try:
                waits = self.step()
            except Exception as error:  # noqa: BLE001 - the thread's edge
                logger.warning("warmrank: nothing more is published: %s", error)
                return
            self._wake.wait(waits)
            self._wake.clear()

    def step(self, *, is_last: bool = False) -> float:
        """Look once; returns seconds until the next look."""
        with self._stepping:
            entries = [entry for entry in tuple(self._entries) if entry not in self._given_up]
            rests = [self._look(entry, is_last=is_last) for entry in entries]
        return _LATER_S if all(rests) else _LOOK_EVERY_S

    def _look(self, entry: Entry, *, is_last: bool) -> bool:
        """Publish an entry whose files rest; returns whether it is done for now."""
        digest, now_s = files_digest(entry.root), time.monotonic()
        if digest == published_digest(entry):
            return True
        before, since_s = self._seen.get(entry, ("", now_s))
        self._seen[entry] = digest, since_s if digest == before else now_s
        if now_s - self._seen[entry][1] < _LOOK_EVERY_S and not is_last:
            return False
        with node_lock(entry, timeout_s=0) as is_held:
            if not is_held:
                return False
            if digest == published_digest(entry):
                return True
            self._publish(entry, digest)
        return True

    def _publish(self, entry: Entry, digest: str) -> None:
        ranks = ranks_of(entry)
        unknown = [rank for rank, components in ranks.items() if not components]
        if unknown and entry.rank not in unknown:
            return  # another rank of this start has not noted its own yet, and publishes for all when it has
        if not ranks:
            said = "nothing to publish: vLLM saved no artifact"
        elif unknown:
            said = f"not published: it was compiled without the plugin; remove {entry.root} to have it so"
        elif not self._access.publishes:
            said = "not published: the store takes only what is signed, and WARMRANK_SIGNING_KEY names no key"
        else:
            said = self._push(entry, ranks, digest)
        if said.startswith("not"):
            self._given_up.add(entry)
        outcome = self._entries[entry]
        outcome.published = said
        is_known = said.startswith("not") and outcome.why.startswith(NO_STORE)
        level = logging.DEBUG if is_known else logging.INFO
        logger.log(level, "warmrank: %s of %s: %s", entry.rank, entry.top.name[:12], said)
        write_outcome(entry, outcome)

    def _push(self, entry: Entry, ranks: dict[str, dict[str, str]], digest: str) -> str:
        started_s = time.monotonic()
        try:
            store = open_store(self._access.config)
            reports = [store.push_directory(entry.tool, entry.root, ranks[rank]) for rank in ranks]
        except (StoreError, OSError) as error:
            return f"not published: {error}"
        note_published(entry, digest)
        files = count_text(reports[0].num_files, "file")
        if not any(report.created for report in reports):
            return f"the store has all of its {files}"
        seconds, num_bytes = time.monotonic() - started_s, sum(report.bytes_new for report in reports)
        return (
            f"published {files} for {', '.join(ranks)}: {num_bytes} bytes new to the "
            f"store, in {seconds:.2f} s"
        )

    def _at_exit(self) -> None:
        """Publish what a short program added, without keeping it for long."""
        try:
            bounded(lambda: self.step(is_last=True), _AT_EXIT_S)
        except Exception as error:  # noqa: BLE001 - vLLM is leaving
            logger.warning("warmrank: not published at exit: %s", error)
