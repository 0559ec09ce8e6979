"""The units of work of a rank: each call of the workload through the stages of a launch.

A unit is named after its cached function (``Llama.decode``; a second call of the same function is
``Llama.decode[1]``). An artifact that another node hands in lies where what a store offers lies, in no
partition: the guards of each rank decide whether it fits. It brings the marks of its cache directory along,
so a revocation reaches it. A `TracePrint` is what must be equal on all ranks that share an artifact.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

from warmrank.cache_store.cache_dir.local import add_variant
from warmrank.cache_store.cache_dir.marks import Marks, marks_of, permit_copies
from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir
from warmrank.cache_store.errors import Corrupt, StoreError, UnwritableDisk
from warmrank.worker.errors import ArtifactCorrupt, CompileForbidden, WorkerError, WorkloadError
from warmrank.worker.rank.workload import unit_name
from warmrank.worker.results import (
    Failure,
    FunctionProbe,
    FunctionResult,
    Retraced,
    StageSeconds,
    TraceResult,
)
from warmrank.worker.runtime.artifact import PortableGuards
from warmrank.worker.runtime.files import OFFERED, guards_json, is_withheld, offered
from warmrank.worker.runtime.find import Found, StoredArtifact, is_anything_declared, other_request
from warmrank.worker.values import Value

if TYPE_CHECKING:
    from warmrank.cache_store.digests import Digest
    from warmrank.cache_store.store import Store
    from warmrank.worker.rank.workload import Call
    from warmrank.worker.runtime.artifact import Artifact
    from warmrank.worker.runtime.function import CachedFunction
    from warmrank.worker.runtime.variant import Variant

OpenStore = Callable[[], "Store | None"]
"""Opens the store, or gives the one that is open; a rank that finds all on its node never asks for it."""

_log = logging.getLogger(__name__)
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
        return _sha(_text(dict(self.parts)).encode())


class Handed(NamedTuple):
    """One artifact's bytes, those of the files beside it by name, and the marks of its cache directory."""

    data: bytes
    beside: Mapping[str, bytes]
    marks: Marks


@dataclass(slots=True)
class RankUnit:
    """One call of the workload, and what is known of it so far."""

    name: str
    call: Call
    found: Found | None = None
    variant: Variant | None = None
    result: FunctionResult | None = None
    signatures: tuple[str, ...] = ()
    seconds: StageSeconds = field(default_factory=StageSeconds)
    refused: dict[str, str] = field(default_factory=dict)  # the function's: digest -> why no engine takes it
    outlines: list[Artifact] = field(default_factory=list)  # the function's: what was traced for audits
    shared: set[Digest] = field(default_factory=set)  # blobs that it added to the store before it published
    outlined: TracePrint | None = None

    @property
    def function(self) -> CachedFunction:
        """The cached function."""
        return self.call.function

    def _find(self) -> Found:
        """The artifact for this call, if there is one that its engine takes."""
        return self.function.find(self.call.args, self.call.kwargs, self.refused)

    def _use(self, found: Found, *, started: float, withheld: bool = False) -> None:
        """Load what was found, or, where its engine does not take that, the next one that fits."""
        assert found.stored is not None  # noqa: S101 - callers look first
        try:
            self.variant = self.function.use(found, started=started, withheld=withheld)
        except ArtifactCorrupt as error:
            self.refused[found.stored.sha256] = str(error)
            self.found = other = self._find()
            if other.stored is None:
                raise
            _log.warning("%s is not used: %s", found.stored.path, error)
            reason = "; ".join(filter(None, (str(error), other.reason)))
            self._use(replace(other, reason=reason), started=started)

    def bound(self) -> Variant:
        """The variant that was loaded or compiled."""
        if self.variant is None:
            msg = f"{self.name} was neither loaded nor compiled on this rank"
            raise WorkloadError(msg, function=self.name)
        return self.variant

    def probe(self, entrypoint: str) -> FunctionProbe:
        """Say what is asked for, and whether it is there."""
        started = perf_counter()
        try:
            self.found = found = self._find()
        except TypeError as error:
            where = f"{entrypoint}: the call of {self.name} has other arguments than the function takes"
            raise WorkloadError(f"{where}: {error}", function=self.name) from error
        self.seconds = replace(self.seconds, load_s=perf_counter() - started)
        asked, module, stored = self.function.request(), self.function.module, found.stored
        declared: dict[str, str] = {}
        if is_anything_declared():
            from warmrank.worker.runtime.runtime_state import declared_for

            declared = declared_for(module)
        is_open = stored is not None and found.own and is_withheld(stored.path.parent, stored.sha256)
        return FunctionProbe(
            function=self.name,
            request_key=asked.key,
            components=asked.components,
            state="miss" if stored is None else "hit" if found.own else "adoptable",
            reason=found.reason,
            digest=stored.sha256 if stored is not None else "",
            runtime_state=declared,
            # Modules are traced one by one, each wherever it is used.
            cost=len(list(module.named_modules(remove_duplicate=False))) if stored is None else 1,
            trace=self.trace().digest if is_open else "",
        )

    def compile(self, open_store: OpenStore, *, withheld: bool = False) -> FunctionResult:
        """Trace and compile without running; the artifact goes into the store as well."""
        found = self._find()
        if found.stored is not None:  # an earlier unit's artifact covers this one
            self.found = found
            return replace(self.load(), trace=self.trace().digest)
        reason, (args, kwargs) = (self.found or found).reason, (self.call.args, self.call.kwargs)
        self.variant = self.function.compile(args, kwargs, reason=reason, withheld=withheld)
        if (store := open_store()) is not None:
            self._share(self.variant.stored, store)
        return replace(self._finish(), trace=self.trace().digest)

    def trace(self) -> TracePrint:
        """The trace that this unit's artifact was made of."""
        stored = self.found.stored if self.variant is None and self.found is not None else None
        return print_of((stored or self.bound().stored).artifact)

    def audit(self) -> TraceResult:
        """Trace as a compile would, and keep nothing but what a comparison needs."""
        started, cpu_s = perf_counter(), process_time()
        args, kwargs = self.call.args, self.call.kwargs
        for outline in self.outlines:  # as in `compile`: a call that an earlier artifact covers is not traced
            stored = StoredArtifact(artifact=outline, path=Path(), sha256="", size_bytes=0)
            if not self.function.mismatches(stored, args, kwargs):
                break
        else:
            outline = self.function.outline(args, kwargs)
            self.outlines.append(outline)
        self.outlined = print_of(outline)
        seconds, cpu_s = perf_counter() - started, process_time() - cpu_s
        self.seconds = replace(self.seconds, audit_s=self.seconds.audit_s + seconds)
        return TraceResult(function=self.name, trace=self.outlined.digest, seconds=seconds, cpu_s=cpu_s)

    def retrace(self) -> Retraced:
        """Trace again, and compare with the artifact that the probe found."""
        found = self.found or self._find()
        key = self.function.request().key
        if found.stored is None:
            return Retraced(function=self.name, outcome="missing", reason=found.reason, request_key=key)
        traced = self.audit()
        assert self.outlined is not None  # noqa: S101 - `audit` leaves it
        difference = first_difference(print_of(found.stored.artifact), self.outlined)
        return Retraced(
            function=self.name,
            outcome="differs" if difference else "equal",
            reason=difference,
            digest=found.stored.sha256,
            request_key=key,
            seconds=traced.seconds,
            cpu_s=traced.cpu_s,
        )

    def _share(self, stored: StoredArtifact, store: Store) -> None:
        """Put an artifact where ranks on other nodes can take it from; without it they compile themselves."""
        for path in (*stored.files().values(), stored.path):
            try:
                digest, is_new = store.put_blob(path)
            except StoreError as error:
                _log.warning("the artifact is not shared with other nodes: %s", error)
            else:
                self.shared |= {digest} if is_new else set()

    def load(self) -> FunctionResult:
        """Load what the probe found (or what was compiled here since)."""
        if self.variant is not None and self.result is not None:
            return self.result
        if self.found is None or self.found.stored is None:
            self.found = self._find()
        if self.found.stored is None:
            return self._refused(self.found.reason, Failure.MISSING)
        self._use(self.found, started=perf_counter())
        return self._finish()

    def _offered(self, digest: str, open_store: OpenStore) -> StoredArtifact | None:
        place, root = self.function.place(), self.function.root()
        here = offered(place, digest, None, cache_root=root)
        return here or offered(place, digest, open_store(), cache_root=root)

    def consider(
        self, digest: str, open_store: OpenStore
    ) -> tuple[StoredArtifact, FunctionResult] | tuple[None, FunctionResult]:
        """An artifact of another rank, if it can be had and its guards hold; and the answer to the offer."""
        stored = self._offered(digest, open_store)
        if stored is None:
            missing = f"artifact {digest[:12]} is neither in the cache nor in the store"
            return None, self._refused(missing, Failure.MISSING)
        wrong = other_request(stored, self.function.request())
        wrong = wrong or self.function.mismatches(stored, self.call.args, self.call.kwargs)
        if wrong:
            return None, self._refused("; ".join(wrong), Failure.GUARDS)
        would = FunctionResult(function=self.name, ok=True, outcome="adopted", reason="", digest=digest)
        return stored, would

    def adopt(self, digest: str, open_store: OpenStore, *, withheld: bool = False) -> FunctionResult:
        """Take over an artifact of another rank; its guards decide whether it fits here."""
        started = perf_counter()
        stored, refusal = self.consider(digest, open_store)
        if stored is None:
            return refusal
        own = stored.path.parent == self.function.place().function_dir
        beside = stored.path.parent.parent
        partition = "a world of one rank" if beside == self.function.place().model_dir else beside.name
        reason = "" if own else f"same as {partition}"
        if partition == OFFERED:
            reason = "from the store" if open_store() is not None else "from another rank"
        self._use(Found(stored=stored, own=own, reason=reason), started=started, withheld=withheld)
        return self._finish()

    def hand_out(self, digest: str) -> Handed | None:
        """The artifact with this digest for other nodes, if this rank's cache directory has it."""
        stored = self._offered(digest, lambda: None)
        if stored is None:
            return None
        beside = {name: path.read_bytes() for name, path in stored.files().items()}
        return Handed(stored.path.read_bytes(), beside, marks_of(self.function.root()))

    def take_in(self, handed: Handed) -> None:
        """Keep an artifact of another node in this one's cache directory, for all of its ranks."""
        place, root = self.function.place(), self.function.root()
        ensure_cache_dir(root)
        permit_copies(root, handed.marks.policy, handed.marks.signers)
        directory = place.model_dir / OFFERED / place.function_dir.name
        for name, data in handed.beside.items():
            add_variant(directory, data, beside=name)
        add_variant(directory, handed.data)

    def later(self, name: str) -> RankUnit | None:
        """The same call as a unit of its own, if nothing that is loaded fits it any more; else None.

        A call that runs may change what the next one's conditions hang on: a KV cache that is made, say.
        """
        function, args, kwargs = self.function, self.call.args, self.call.kwargs
        if (function.accepting(args, kwargs) or function.fitting(args, kwargs)) is not None:
            return None
        return RankUnit(name=name, call=self.call, refused=self.refused, outlines=self.outlines)

    def first_call(self) -> FunctionResult:
        """Run the call once, as a user would."""
        self.bound()
        started = perf_counter()
        self.function(*self.call.args, **self.call.kwargs)
        return self.timed(first_call_s=perf_counter() - started)

    def guarded(self, step: Callable[[RankUnit], FunctionResult]) -> FunctionResult:
        """One unit's failure is a value, so that the others go on and the driver can name it."""
        try:
            self.result = step(self)
        except UnwritableDisk:
            raise  # no other unit, and no other attempt, could keep anything there
        except (WorkerError, StoreError) as error:
            kind = type(error).__name__
            failures = {
                CompileForbidden: Failure.FORBIDDEN,
                ArtifactCorrupt: Failure.CORRUPT,
                Corrupt: Failure.CORRUPT,
                StoreError: Failure.STORE,
                WorkerError: Failure.ERROR,
            }
            failure = next(found for base, found in failures.items() if isinstance(error, base))
            self.result = replace(self._refused(f"{kind}: {error}", failure), error=kind)
        return self.result

    def timed(self, **seconds: float) -> FunctionResult:
        """The result, after a stage that took these seconds."""
        self.seconds = replace(self.seconds, **seconds)
        assert self.result is not None  # noqa: S101 - `bound` came first
        captured = self.function.statistics
        return replace(
            self.result, seconds=self.seconds, num_captures=captured.captures, pool_bytes=captured.pool_bytes
        )

    def _refused(self, reason: str, failure: Failure) -> FunctionResult:
        return FunctionResult(
            function=self.name,
            ok=False,
            outcome="adopted",
            reason=reason,
            failure=failure,
            seconds=self.seconds,
        )

    def _finish(self) -> FunctionResult:
        result = self.function.last_result
        assert result is not None  # noqa: S101 - every variant that is bound leaves a result
        load_s = result.seconds.load_s + (self.seconds.load_s if result.outcome != "compiled" else 0.0)
        self.seconds = replace(result.seconds, load_s=load_s, audit_s=self.seconds.audit_s)
        return replace(result, function=self.name, seconds=self.seconds)


def units_of(calls: Iterable[Call], cache_dir: Path) -> dict[str, RankUnit]:
    """The units of a workload's calls, in their order, by name."""
    units: dict[str, RankUnit] = {}
    for call in calls:
        check_cache_dir(call.function, cache_dir)
        unit = RankUnit(name=free_name(units, call.function), call=call)
        same = next((other for other in units.values() if other.function is call.function), unit)
        unit.refused, unit.outlines = same.refused, same.outlines
        units[unit.name] = unit
    return units


def free_name(units: Mapping[str, RankUnit], function: CachedFunction) -> str:
    """Name of a function's next unit."""
    return unit_name(function.name, sum(unit.function.name == function.name for unit in units.values()))


def check_cache_dir(function: CachedFunction, cache_dir: Path) -> None:
    """A manifest names files below the launch's cache directory, so all must lie there."""
    wanted, root = cache_dir.resolve(), function.root()
    if not root.is_relative_to(wanted):
        msg = (
            f"{function.name} keeps its cache in {root}, but the launch in {wanted}; "
            "leave cache_dir out of cache_compile in a launch"
        )
        raise WorkloadError(msg, function=function.name, cache_dir=str(root))


def print_of(artifact: Artifact) -> TracePrint:
    """The print of the trace that an artifact was made of, whether compiled or only outlined.

    So an audit and a compile cannot part ways. It holds graph, constants, conditions, frame and facts;
    neither kernels nor lines of source, which follow from these or change no result. Where an engine compiles
    kernels, conditions on sizes are those of the trace, without what its compiler added.
    """
    from warmrank.worker.compile.readable import conditions, disassembled, origins_in

    known = origins_in(artifact.sections)
    source = next((artifact.sections[name] for name in _AS_TEXT if name in artifact.sections), b"")
    graph = tuple(source.decode().split("\n"))
    guards = PortableGuards.from_json(json.loads(_text(guards_json(artifact.guards))))  # as a file has them
    symbols = ""
    if _AOTI in artifact.sections:  # Inductor adds conditions on sizes, and an outline has none of them
        guards = replace(guards, shapes=())
        symbols = _text(json.loads(artifact.sections[_AOTI])["traced"])
    data = (part for _, part in sorted(guards_json(guards).items()))
    return TracePrint(
        parts={
            "graph": graph,
            "condition": tuple(conditions(guards)),
            "sizes": (symbols,),
            "constants": tuple(f"{name} {_sha(artifact.sections.get(name, b''))}" for name in _AS_DIGEST),
            "frame": tuple(disassembled(artifact.frame.code)),
            "names of the frame": (_text(artifact.frame.names), _sha(artifact.frame.code)),
            "facts": tuple(f"{name} {_text(value)}" for name, value in asdict(artifact.facts).items()),
            "function": (artifact.name, artifact.function, *artifact.roles),
            "data of conditions": tuple(
                _text(item) for part in data for item in (part.items() if isinstance(part, dict) else part)
            ),
        },
        places={line: place for line in graph if (place := known.line(line))},
    )


def first_difference(one: TracePrint, other: TracePrint) -> str:
    """The first line in which two prints differ, in words; empty where they are equal."""
    for part in dict.fromkeys((*one.parts, *other.parts)):
        lines = zip_longest(one.parts.get(part, ()), other.parts.get(part, ()), fillvalue="(nothing)")
        for number, both in enumerate(lines, 1):
            mine, theirs = both
            if mine != theirs:
                place = one.places.get(mine) or other.places.get(theirs)
                where = f" ({place})" if part == "graph" and place else ""
                shown = (" ".join(line.split()) for line in both)
                cut = (f"{line[: _MAX_CHARS - 3]}..." if len(line) > _MAX_CHARS else line for line in shown)
                return f"{part} {number}: {' / '.join(cut)}{where}"
    return ""


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
