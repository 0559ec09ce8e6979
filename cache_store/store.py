"""The store as its users see it: publish, commit, fetch, look, verify.

A verb goes from here through the deadline (`backends.deadline`) to the places that answer
(`backends.places`), and there to the room that does it. What is written goes to the far place first, as if it
were the only one; then copies go into the near one, as far as possible. A verb never touches the `Store`,
because it may be left behind in its thread. One thread uses a `Store`. It holds a private key when it signs,
so open it where it is used, and send its location elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from warmrank.cache_store import publish
from warmrank.cache_store.backends.backend import BlobBackend, NewFile
from warmrank.cache_store.backends.deadline import Deadline
from warmrank.cache_store.backends.places import Tier, TieredBackend, TierState
from warmrank.cache_store.cache_dir.marks import admit
from warmrank.cache_store.cache_dir.node_files import NodeCaches
from warmrank.cache_store.cache_dir.single_flight import LOCK_TIMEOUT_S, single_flight
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import StoreError, StoreUnavailable
from warmrank.cache_store.fetch import blobs, fetch
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.fetch.fetch import FetchOutcome
from warmrank.cache_store.fetch.node_artifacts import Launch, NodeFetch, fetch_node_files
from warmrank.cache_store.gc import pins, trash
from warmrank.cache_store.gc.evict import EvictOutcome, EvictPolicy, evict_places
from warmrank.cache_store.gc.pins import Pin
from warmrank.cache_store.gc.verify import VerifyReport, verify_places
from warmrank.cache_store.layout import USED, blob_name, manifest_name, record_name
from warmrank.cache_store.parallel import OnProgress, Progress
from warmrank.cache_store.publish import PublishReport
from warmrank.cache_store.records import documents as records
from warmrank.cache_store.records.directory_listing import newest_listings
from warmrank.cache_store.records.documents import Documents, StoredLaunch, read_stored_form
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest, PartitionRef
from warmrank.cache_store.signing.trust import Trust, TrustPolicy
from warmrank.cache_store.sync.pull import PullReport, plan_pull, pull, pull_lock
from warmrank.cache_store.sync.push import PushReport, push

T = TypeVar("T")
P = ParamSpec("P")


def _reading(verb: Callable[Concatenate[Documents, P], T]) -> Callable[Concatenate[Store, P], T]:
    """A method that does ``verb`` on the places that answer."""

    def method(self: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(lambda documents: verb(documents, *args, **kwargs))

    method.__doc__ = verb.__doc__
    return method


class Store:
    """One store and the trust with which this process uses it.

    ``location`` is as it was named; ``problems`` has a line for what was skipped, or failed although
    a verb went on.
    """

    def __init__(
        self, backend: BlobBackend, *, trust: Trust, location: str, left_out: Sequence[TierState] = ()
    ) -> None:
        tiers = (
            backend.tiers if isinstance(backend, TieredBackend) else (Tier(name=location, backend=backend),)
        )
        self._deadline = Deadline(tiers)
        self._trust = trust
        self._left_out = tuple(left_out)
        self.location = location
        self.problems = self._deadline.problems
        self.problems.extend(tier.reason for tier in left_out if tier.state == "away")

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
        return (*(tier.state for tier in self._deadline.tiers), *self._left_out)

    @property
    def is_behind(self) -> bool:
        """True if a writable place is away, so that what is published now must be published to it later."""
        return any(tier.state == "away" and tier.mode != "ro" for tier in self.tiers)

    def admit(self, cache_root: Path) -> None:
        """Make sure that copies from here may go below ``cache_root``; see `marks.admit`."""
        admit(cache_root, self._trust.policy, self._trust.revoked)

    def put_blob(self, path: Path) -> tuple[Digest, bool]:
        """Add a private local file; see `publish.put_blob`."""
        return self._write(
            lambda documents: publish.put_blob(documents.backend, path),
            lambda view, added: view.fill([_blob(path, added[0])]),
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

        def fill(view: TieredBackend, reports: tuple[PublishReport, ...]) -> None:
            agreed = [pair for pair in zip(manifests, reports, strict=True) if not pair[1].conflicts]
            entries = {entry.sha256: entry for manifest, _ in agreed for entry in manifest.artifacts}
            copies = [
                _blob(files[sha256] if files is not None else entry.local_path(root), entry.digest)
                for sha256, entry in entries.items()
            ]
            if agreed:
                _fill(view, copies, [manifest_name(report.key) for _, report in agreed])

        return self._write(
            lambda documents: publish.publish_partitions(documents, launch_key, manifests, files, root), fill
        )

    def commit_launch(self, record: LaunchRecord) -> str:
        """Put a launch record into the store, last of all; see `publish.commit_launch`."""
        return self._write(
            lambda documents: publish.commit_launch(documents, record),
            lambda view, sha256: _fill(view, [], [record_name("launch", record.launch_key, sha256)]),
        )

    def push_directory(self, tool: str, root: Path, components: Mapping[str, str]) -> PushReport:
        """Store a directory of another tool; see `cache_store.sync.push.push`."""
        return self._write(lambda documents: push(documents, tool, root, components), lambda *_: None)

    launch_keys = _reading(records.launch_keys)
    stored_launches = _reading(records.read_launches)
    launch_summaries = _reading(records.summarize_launches)
    take_launches = _reading(records.take_launches)
    directories = _reading(newest_listings)
    standing = _reading(blobs.standing_refs)
    fetch_blob = _reading(fetch.fetch_blob)

    def launches(self, launch_key: str | None = None) -> tuple[LaunchRecord, ...]:
        """All launch records, or those of one key, newest first; see `documents.read_launches`."""
        return tuple(stored.record for stored in self.stored_launches(launch_key))

    def last_uses(self) -> dict[str, datetime]:
        """Time of the last use of each record that has a mark of it, by its name; see `trash.last_uses`."""
        marks = self._run(lambda documents: trash.last_uses(documents.backend.list(USED)))
        return {name: datetime.fromtimestamp(mark.modified_s, UTC) for name, mark in marks.items()}

    def mark_used(self, record_name: str) -> None:
        """Note that the record of that name was used; see `trash.mark_used`."""
        problem = self._run(lambda documents: trash.mark_used(documents.backend, record_name))
        self._note([problem] if problem else [])

    def manifest(self, key: str, *, expected_sha256: str | None = None) -> PartitionManifest:
        """The manifest of a partition; see `Documents.take_manifest`."""
        return self._run(lambda it: it.take_manifest(key, expected_sha256=expected_sha256).manifest)

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

        One process of this node at a time, unless another one gets no further for ``lock_timeout_s``. The
        near place gets the blobs, the manifests, and those of ``records`` that name any.
        """
        trust, options = self._trust, options or FetchOptions()
        with single_flight(cache_root, timeout_s=lock_timeout_s) as beat:

            def tell(progress: Progress) -> None:
                beat()
                if options.on_progress is not None:
                    options.on_progress(progress)

            outcome = self._deadline.run(
                lambda view: fetch.fetch_partitions(
                    Documents(backend=view, trust=trust),
                    refs,
                    cache_root,
                    options=replace(options, on_progress=view.while_asked(tell)),
                    distinct=distinct,
                )
            )
        options.held(outcome.copies)
        wanted = dict.fromkeys(refs)
        for fault in outcome.faults:
            wanted.pop(fault.ref, None)
        named = (stored.name for stored in records if not wanted.keys().isdisjoint(stored.record.partitions))
        self._spread(outcome.copies, [*(manifest_name(ref.manifest_key) for ref in wanted), *named])
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
            found = self._run(
                lambda documents: fetch_node_files(documents, launches, caches, cache_root, options)
            )
        options.held(found.copies)
        self._spread(found.copies, [])
        return found

    def pull_directory(
        self, tool: str, root: Path, components: Mapping[str, str], *, replace: bool = False
    ) -> PullReport:
        """Restore a directory of another tool; see `cache_store.sync.pull`."""
        plan = self._run(lambda documents: plan_pull(documents, tool, root, components))
        with pull_lock(plan.root):
            return self._run(lambda documents: pull(documents, plan, replaces=replace))

    def verify(
        self, *, repair: bool = False, cache_root: Path | None = None, on_progress: OnProgress | None = None
    ) -> VerifyReport:
        """Read every place again and say what is wrong; see `verify.verify_places`."""
        return verify_places(
            self._deadline.tiers,
            self._trust,
            repair=repair,
            cache_root=cache_root,
            left_out=self._left_out,
            on_progress=on_progress,
        )

    def evict(self, policy: EvictPolicy, *, place: str | None = None, dry_run: bool = False) -> EvictOutcome:
        """Take away what ``policy`` does not keep; see `evict.evict_places`."""
        return evict_places(
            self._deadline.tiers,
            policy,
            trust=self._trust,
            place=place,
            dry_run=dry_run,
            left_out=self._left_out,
        )

    def pin(self, prefix: str, *, reason: str = "") -> tuple[Pin, ...]:
        """Keep records from being evicted; see `pins.pin`."""
        return self._deadline.run(lambda view: pins.pin(view, prefix, reason=reason))

    def unpin(self, prefix: str) -> tuple[str, ...]:
        """Remove pins; see `pins.unpin`."""
        return self._deadline.run(lambda view: pins.unpin(view, prefix))

    def pins(self) -> tuple[Pin, ...]:
        """All pins; see `pins.read_pins`."""
        return self._run(lambda documents: pins.read_pins(documents.backend))

    def _spread(self, copies: Sequence[NewFile], names: Sequence[str]) -> None:
        """Put blobs, and documents by their names, into the near place."""
        if len(self._deadline.tiers) == 1:
            return
        try:
            self._deadline.run(lambda view: _fill(view, copies, names))
        except StoreUnavailable as error:
            if error.required:
                raise
            self.problems.append(str(error))

    def _run(self, verb: Callable[[Documents], T]) -> T:
        """Do ``verb`` on the places that answer; what it skipped becomes problems.

        What it is handed is for it alone: it must not touch this object, because it may be left behind in
        its thread.
        """
        trust = self._trust

        def with_problems(view: TieredBackend) -> tuple[T, list[str]]:
            documents = Documents(backend=view, trust=trust)
            return verb(documents), documents.problems

        result, problems = self._deadline.run(with_problems)
        self._note(problems)
        return result

    def _note(self, problems: Sequence[str]) -> None:
        self.problems.extend(line for line in dict.fromkeys(problems) if line not in self.problems)

    def _write(self, verb: Callable[[Documents], T], fill: Callable[[TieredBackend, T], None]) -> T:
        """Do ``verb`` in the far place, then ``fill`` the near one, as `_run`."""
        trust = self._trust

        def both(view: TieredBackend) -> T:
            result = view.write_farthest(lambda place: verb(Documents(backend=place, trust=trust)))
            if view.near is not None:
                fill(view, result)
            return result

        return self._deadline.run(both)


def _fill(view: TieredBackend, copies: Sequence[NewFile], documents: Sequence[str]) -> None:
    def read(name: str) -> bytes | None:
        try:
            return read_stored_form(view, name)
        except StoreError:
            return None  # it was there a moment ago; the near place can do without

    view.fill(copies, documents, read)


def _blob(path: Path, digest: Digest) -> NewFile:
    return NewFile(name=blob_name(digest.sha256), source=path, expected=digest)
