"""The store as its users see it: opened by its places; publish, commit, fetch, look, verify.

Each verb is the function of that name, on the places that answer (`backends.places`, each call within the
deadline of `backends.deadline`). What is written goes to the far place first, as if it were the only one;
then copies go into the near one, as far as possible. One thread uses a `Store`. It holds a private key when
it signs, so open it where it is used, and send its location elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Concatenate, Literal, ParamSpec, TypeVar

from warmrank.cache_store import publish
from warmrank.cache_store.backends.backend import BlobBackend, NewFile
from warmrank.cache_store.backends.deadline import (
    ANSWER_S,
    Call,
    Tier,
    TierMode,
    TierState,
    away,
    circuit_of,
    wait_for,
)
from warmrank.cache_store.backends.directory import DirectoryBackend, FlushChoice
from warmrank.cache_store.backends.places import Places
from warmrank.cache_store.cache_dir.marks import admit
from warmrank.cache_store.cache_dir.node_files import NodeCaches
from warmrank.cache_store.cache_dir.single_flight import LOCK_TIMEOUT_S, single_flight
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import StoreError, StoreUnavailable, is_final
from warmrank.cache_store.fetch import blobs, fetch
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.fetch.fetch import FetchOutcome
from warmrank.cache_store.fetch.node_artifacts import Launch, NodeFetch, fetch_node_files
from warmrank.cache_store.gc import pins
from warmrank.cache_store.gc.evict import EvictOutcome, EvictPolicy, evict_places
from warmrank.cache_store.gc.inventory import last_uses
from warmrank.cache_store.gc.pins import Pin
from warmrank.cache_store.gc.verify import VerifyReport, verify_places
from warmrank.cache_store.layout import USED, blob_name, manifest_name, record_name
from warmrank.cache_store.parallel import OnProgress
from warmrank.cache_store.publish import PublishReport
from warmrank.cache_store.records.documents import Documents, StoredLaunch, newest_listings
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest, PartitionRef
from warmrank.cache_store.signing.trust import Trust, TrustPolicy
from warmrank.cache_store.sync.pull import pull
from warmrank.cache_store.sync.push import PushReport, push

T = TypeVar("T")
P = ParamSpec("P")
SpecMode = Literal["off", "ro", "rw", "required"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpec:
    """One place of a store: a directory, or an URL of an object store such as ``s3://bucket/prefix``.

    Mode ``off`` is not opened at all, ``ro`` never written; ``required`` is ``rw``, and the launch fails when
    it is away.
    """

    location: str
    mode: SpecMode = "rw"
    flush: FlushChoice = "auto"  # of a directory; ``auto`` chooses by the type of its file system
    answer_s: float = ANSWER_S  # until it is left alone for the rest of the process
    options: Mapping[str, str] = field(default_factory=dict)  # of the object store's client


def open_store(tiers: Sequence[TierSpec], *, trust: Trust, create: bool = True) -> Store:
    """Open the store that lies in ``tiers``: one place, or a near one and a far one.

    Both are opened side by side, each within its ``answer_s``. One that is away, or no store that this
    release reads, is left out and said so in `Store.problems`, unless it is required or the only one. An
    absent or empty place whose mode is ``rw`` is made into a store if ``create``.

    Raises:
        StoreUnavailable: a required place, or every place, is away or cannot be used.
        Corrupt: its FORMAT is damaged.
    """
    asked = [spec for spec in tiers if spec.mode != "off"]
    if len(asked) > 2:
        raise ValueError("a store has one near and one far place")
    if not asked:
        reason, remedy = "every place of it is off", "name one whose mode is ro, rw or required"
        raise StoreUnavailable(what="store", where="the configuration", reason=reason, remedy=remedy)
    # What is required must be there: in its place, a disk that is not mounted would get a new store.
    calls = {
        spec.location: Call(partial(open_backend, spec, create=create and spec.mode == "rw"))
        for spec in asked
        if not circuit_of(spec.location, spec.options).is_open
    }
    wait_for([(calls[spec.location], spec.answer_s) for spec in asked if spec.location in calls])
    opened: list[Tier] = []
    left_out: list[TierState] = []
    errors: list[StoreError] = []
    for spec in tiers:
        if spec.mode == "off":
            left_out.append(TierState(location=spec.location, mode="off", state="off"))
            continue
        try:
            opening, is_farthest = calls.get(spec.location), spec is asked[-1]
            opened.append(_opened(spec, spec.mode, opening, is_farthest=is_farthest))
        except StoreError as error:
            if spec.mode == "required":
                raise
            errors.append(error)
            state = TierState(location=spec.location, mode=spec.mode, state="away", reason=str(error))
            left_out.append(state)
    if not opened:
        raise errors[-1]
    location = ", ".join(spec.location for spec in asked)
    return Store(Places(opened), trust=trust, location=location, left_out=left_out)


def _opened(spec: TierSpec, mode: TierMode, opening: Call[BlobBackend] | None, *, is_farthest: bool) -> Tier:
    """The open place; raises why it cannot be used."""
    circuit = circuit_of(spec.location, spec.options)
    if opening is not None and not opening.has_ended:
        circuit.open(f"no answer within {spec.answer_s:g} s", where=spec.location)
    if opening is None or circuit.is_open:
        raise away(spec.location, circuit.reason, required=mode == "required")
    try:
        backend = opening.result()
    except StoreUnavailable as error:
        if error.transport:  # another fault is an answer, and may be mended while this process runs
            circuit.open(error.reason, where=spec.location)
        raise error.but(required=mode == "required") from error
    return Tier(
        name=spec.location,
        backend=backend,
        mode=mode,
        is_farthest=is_farthest,
        answer_s=spec.answer_s,
        circuit=circuit,
    )


def open_backend(spec: TierSpec, *, create: bool) -> BlobBackend:
    """Open one place, however long that takes; raises `StoreError`."""
    if "://" not in spec.location:
        return DirectoryBackend(Path(spec.location), create=create, flush=spec.flush)
    from warmrank.cache_store.backends.object_store import ObjectBackend

    return ObjectBackend(
        spec.location,
        create=create,
        writable=spec.mode != "ro",
        answer_s=spec.answer_s,
        options=spec.options,
    )


def _reading(verb: Callable[Concatenate[Documents, P], T]) -> Callable[Concatenate[Store, P], T]:
    """A method that does ``verb`` on the places that answer."""

    def method(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return verb(self._documents(), *args, **kwargs)

    method.__doc__ = verb.__doc__
    return method


class Store:
    """One store and the trust with which this process uses it.

    ``location`` is as it was named; ``problems`` has a line for what was skipped, or failed although
    a verb went on. Damaged documents that are read go into quarantine, unless ``repairs`` is false.
    """

    def __init__(
        self,
        places: BlobBackend | Places,
        *,
        trust: Trust,
        location: str,
        left_out: Sequence[TierState] = (),
    ) -> None:
        self.places = places.tiers if isinstance(places, Places) else (Tier(name=location, backend=places),)
        self._trust = trust
        self._left_out = tuple(left_out)
        self.location = location
        self.repairs = True
        self.problems = [tier.reason for tier in left_out if tier.state == "away"]

    @property
    def policy(self) -> TrustPolicy:
        """The trust policy under which this process uses the store."""
        return self._trust.policy

    @property
    def revoked(self) -> Collection[str]:
        """Ids of the keys that this process believes no more."""
        return self._trust.revoked.keys()

    @property
    def tiers(self) -> tuple[TierState, ...]:
        """The state of its places, those in use first, the near one first."""
        return (*(tier.state for tier in self.places), *self._left_out)

    @property
    def farthest(self) -> TierState:
        """The state of the farthest place, which alone holds launches whole."""
        used = [tier.state for tier in self.places if tier.is_farthest]
        return used[0] if used else [tier for tier in self._left_out if tier.state == "away"][-1]

    @property
    def behind(self) -> tuple[str, ...]:
        """The reasons that writable places get later what is published now: they are away, or refused it."""
        away = (tier for tier in self.tiers if tier.state == "away" and tier.mode != "ro")
        refusals = (tier.refusal for tier in self.places if tier.refusal and not tier.circuit.is_open)
        return (*(f"{tier.location} is away: {tier.reason}" for tier in away), *refusals)

    def admit(self, cache_root: Path) -> None:
        """Make sure that copies from here may go below ``cache_root``; see `marks.admit`."""
        admit(cache_root, self._trust.policy, self._trust.revoked)

    def put_blob(self, path: Path) -> tuple[Digest, bool]:
        """Add a private local file; see `publish.put_blob`."""
        return self._write(
            lambda documents: publish.put_blob(documents.places, path),
            lambda places, added: places.fill([_blob(path, added[0])], {}),
        )

    def publish_partition(self, launch_key: str, manifest: PartitionManifest, root: Path) -> PublishReport:
        """Publish the artifacts below the cache directory ``root``; see `publish.publish_partitions`."""
        (report,) = self.publish_partitions(launch_key, [manifest], None, root)
        return report

    def publish_partitions(
        self,
        launch_key: str,
        manifests: Sequence[PartitionManifest],
        files: Mapping[str, Path] | None,
        root: Path,
    ) -> tuple[PublishReport, ...]:
        """Publish partitions; see `publish.publish_partitions`.

        The near place does not get a partition that another publisher compiled to other bytes: its manifest
        may name blobs that are not here. A fetch brings those.
        """

        def fill(places: Places, reports: tuple[PublishReport, ...]) -> None:
            agreed = [pair for pair in zip(manifests, reports, strict=True) if not pair[1].conflicts]
            entries = {entry.sha256: entry for manifest, _ in agreed for entry in manifest.artifacts}
            copies = [
                _blob(files[sha256] if files is not None else entry.local_path(root), entry.digest)
                for sha256, entry in entries.items()
            ]
            if agreed:
                refs = (report.ref for _, report in agreed)
                places.fill(copies, {manifest_name(ref.manifest_key): ref.manifest_sha256 for ref in refs})

        return self._write(
            lambda documents: publish.publish_partitions(documents, launch_key, manifests, files, root), fill
        )

    def commit_launch(self, record: LaunchRecord) -> str:
        """Put a launch record into the store, last of all; see `publish.commit_launch`."""
        return self._write(
            lambda documents: publish.commit_launch(documents, record),
            lambda places, sha256: places.fill([], {record_name("launch", record.launch_key, sha256): ""}),
        )

    def push_directory(self, tool: str, root: Path, components: Mapping[str, str]) -> PushReport:
        """Store a directory of another tool in the farthest place; see `cache_store.sync.push.push`."""
        view = self._whole(f"directory of {tool}")
        return self._write(lambda documents: push(documents, tool, root, components), view=view)

    directories = _reading(newest_listings)
    standing = _reading(blobs.standing_refs)
    fetch_blob = _reading(fetch.fetch_blob)
    pull_directory = _reading(pull)
    newest_launches = _reading(Documents.launches)

    def launches(self, launch_key: str | None = None) -> tuple[LaunchRecord, ...]:
        """All launch records, or those of one key, newest first; see `Documents.launches`."""
        return tuple(stored.record for stored in self.newest_launches(launch_key))

    def last_uses(self) -> dict[str, datetime]:
        """Time of the last use of each record that has a mark of it, by its name; see `last_uses`."""
        marks = last_uses(self._view().list(USED))
        return {name: datetime.fromtimestamp(mark.modified_s, UTC) for name, mark in marks.items()}

    def mark_used(self, record_name: str) -> None:
        """Note that the record of that name was used; see `publish.mark_used`."""
        if (problem := publish.mark_used(self._view(), record_name)) and problem not in self.problems:
            self.problems.append(problem)

    def manifest(self, key: str, *, expected_sha256: str | None = None) -> PartitionManifest:
        """The manifest of a partition; see `Documents.manifest`."""
        return self._documents().manifest(key, expected_sha256=expected_sha256).manifest

    def fetch_partitions(
        self,
        refs: Sequence[PartitionRef],
        cache_root: Path,
        *,
        options: FetchOptions | None = None,
        records: Sequence[StoredLaunch] = (),
        distinct: Collection[PartitionRef] = (),
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> FetchOutcome:
        """Lay out partitions below ``cache_root``; see `fetch.fetch_partitions`.

        One process of this node at a time, unless another one takes longer than ``lock_timeout_s``. The
        near place gets the blobs, the manifests, and those of ``records`` that name any.
        """
        options = options or FetchOptions()
        with single_flight(cache_root, timeout_s=lock_timeout_s):
            outcome = fetch.fetch_partitions(
                self._documents(), refs, cache_root, options=options, distinct=distinct
            )
        options.held(outcome.copies)
        laid_out = frozenset(outcome.refs)
        documents = {manifest_name(ref.manifest_key): ref.manifest_sha256 for ref in outcome.refs}
        documents |= {it.name: it.sha256 for it in records if not laid_out.isdisjoint(it.record.partitions)}
        self._spread(outcome.copies, documents)
        return outcome

    def fetch_node_files(
        self,
        launches: Sequence[Launch],
        caches: NodeCaches,
        cache_root: Path,
        *,
        options: FetchOptions | None = None,
    ) -> NodeFetch:
        """Keep node artifacts of launches below ``cache_root``; see `node_artifacts.fetch_node_files`.

        One process of this node at a time, as `fetch_partitions`; nearer places get their blobs.
        """
        options = options or FetchOptions()
        with single_flight(cache_root, timeout_s=LOCK_TIMEOUT_S):
            found = fetch_node_files(self._documents(), launches, caches, cache_root, options)
        options.held(found.copies)
        self._spread(found.copies, {})
        return found

    def verify(
        self, *, repair: bool = False, cache_root: Path | None = None, on_progress: OnProgress | None = None
    ) -> VerifyReport:
        """Read every place again and say what is wrong; see `verify.verify_places`."""
        return verify_places(
            self.places,
            self._trust,
            repair=repair,
            cache_root=cache_root,
            left_out=self._left_out,
            on_progress=on_progress,
        )

    def evict(self, policy: EvictPolicy, *, place: str | None = None, dry_run: bool = False) -> EvictOutcome:
        """Take away what ``policy`` does not keep; see `evict.evict_places`."""
        return evict_places(
            self.places, policy, trust=self._trust, place=place, dry_run=dry_run, left_out=self._left_out
        )

    def pin(self, prefix: str, *, reason: str = "") -> tuple[Pin, ...]:
        """Pin records, in none while the farthest place is away; see `pins.pin`."""
        return pins.pin(self._whole("pins"), prefix, reason=reason)

    def unpin(self, prefix: str) -> tuple[str, ...]:
        """Remove pins, none while the farthest place is away; see `pins.unpin`."""
        return pins.unpin(self._whole("pins"), prefix)

    def pins(self) -> tuple[Pin, ...]:
        """All pins, sorted by record."""
        return pins.read_pins(self._view())

    def _view(self) -> Places:
        """Its places for one verb; raises `StoreUnavailable` where a required one, or every one, is away."""
        asked = [tier for tier in self.places if not tier.circuit.is_open]
        for error in (tier.away() for tier in self.places if tier.circuit.is_open):
            if error.required or not asked:
                raise error
            if str(error) not in self.problems:
                self.problems.append(str(error))
        return Places(asked, self.problems)

    def _whole(self, what: str) -> Places:
        """Its places for a verb that counts in the farthest only, which therefore must be there."""
        farthest = self.farthest
        if farthest.state == "away" and farthest.mode != "ro":
            reason, remedy = farthest.reason, "try again when it answers"
            raise StoreUnavailable(what=what, where=farthest.location, reason=reason, remedy=remedy)
        return Places(self._view().tiers, self.problems, needs_farthest=True)

    def _documents(self) -> Documents:
        return Documents(places=self._view(), trust=self._trust, problems=self.problems, repairs=self.repairs)

    def _write(
        self,
        verb: Callable[[Documents], T],
        fill: Callable[[Places, T], None] = lambda *_: None,
        view: Places | None = None,
    ) -> T:
        """Do ``verb`` in the far place, then ``fill`` the near one."""
        view = view or self._view()
        result = view.write_farthest(lambda place: verb(Documents(places=place, trust=self._trust)))
        if view.near is not None:
            fill(view, result)
        return result

    def _spread(self, copies: Sequence[NewFile], documents: Mapping[str, str]) -> None:
        """Put blobs and documents into the near place; see `Places.fill`."""
        if len(self.places) == 1:
            return
        try:
            self._view().fill(copies, documents)
        except StoreUnavailable as error:
            if is_final(error):
                raise
            self.problems.append(str(error))


def _blob(path: Path, digest: Digest) -> NewFile:
    return NewFile(name=blob_name(digest.sha256), source=path, expected=digest)
