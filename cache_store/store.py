"""The store as its users see it: publish, commit, fetch, look, verify.

Layout: see `cache_store.layout`. Invariants: blobs before the manifest, manifests before the launch record;
whatever is read is verified, and whatever is damaged goes into quarantine and is an error here, a miss one
level up. How a verb is done on several places: `store_places`. Process safety: any number of processes on any
number of nodes may use one store at once; a `Store` itself is used by one thread at a time. It holds a
private key when it signs, so open it where it is used (`cache_store.connect.open_store`), and send its
location elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from warmrank.cache_store.backends.places import TierState
from warmrank.cache_store.cache_dir.placing import Destinations
from warmrank.cache_store.cache_dir.single_flight import LOCK_TIMEOUT_S, single_flight
from warmrank.cache_store.fetch import fetch, node_artifacts
from warmrank.cache_store.fetch import manifests as pinned
from warmrank.cache_store.fetch.blobs import FetchOptions
from warmrank.cache_store.fetch.manifests import Pinned
from warmrank.cache_store.fetch.node_artifacts import NodeFetch
from warmrank.cache_store.fetch.staging import FetchOutcome
from warmrank.cache_store.gc import pins, places
from warmrank.cache_store.gc import trash as last_use
from warmrank.cache_store.gc.evict import EvictOutcome
from warmrank.cache_store.gc.evict_plan import EvictPolicy
from warmrank.cache_store.gc.pins import Pin
from warmrank.cache_store.gc.verify import VerifyReport
from warmrank.cache_store.progress import OnProgress
from warmrank.cache_store.publish.publish import BlobReport, PublishReport
from warmrank.cache_store.records.launches import LaunchSummary, StoredLaunch

from warmrank.cache_store import spreading
from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.layout import USED, manifest_name
from warmrank.cache_store.records import launches as stored_launches
from warmrank.cache_store.records.directory_listing import StoredListing, newest_listings
from warmrank.cache_store.records.manifest import LaunchRecord, PartitionManifest, PartitionRef
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store as StorePlaces
from warmrank.cache_store.sync.pull import PullReport, plan_pull, pull, pull_lock
from warmrank.cache_store.sync.push import PushReport, push


class Store(StorePlaces):
    """One store and the trust with which this process uses it; attributes as of `StorePlaces`."""

    def __init__(
        self, backend: BlobBackend, *, trust: Trust, location: str, left_out: Sequence[TierState] = ()
    ) -> None:
        super().__init__(backend, trust=trust, location=location, left_out=left_out)
        self._record_names: dict[PartitionRef, str] = {}

    def put_blob(self, path: Path) -> BlobReport:
        """Add a private local file; see `publish.put_blob`."""
        trust = self._trust
        return self._supervisor.run(lambda view: spreading.put_blob(view, trust, path))

    def fetch_blob(self, digest: str, function_dir: Path, *, cache_root: Path, beside: str = "") -> Path:
        """Add the blob with that sha256 to a function below ``cache_root``; see `fetch.fetch_blob`."""
        return self._run(
            lambda documents: fetch.fetch_blob(
                documents, digest, function_dir, cache_root=cache_root, beside=beside
            )
        )

    def publish_partition(self, launch_key: str, manifest: PartitionManifest, root: Path) -> PublishReport:
        """Publish the artifacts below the cache directory ``root``; see `publish.publish_partition`."""
        trust = self._trust
        return self._supervisor.run(
            lambda view: spreading.publish_partition(view, trust, launch_key, manifest, root)
        )

    def publish_partitions(
        self,
        launch_key: str,
        manifests: Sequence[PartitionManifest],
        files: Mapping[str, Path],
        root: Path,
    ) -> tuple[PublishReport, ...]:
        """Publish many partitions of the same few artifacts; see `publish_many.publish_many`."""
        trust = self._trust
        return self._supervisor.run(
            lambda view: spreading.publish_many(view, trust, launch_key, manifests, files, root)
        )

    def commit_launch(self, record: LaunchRecord) -> str:
        """Put a launch record into the store, last of all; see `launches.commit_launch`."""
        trust = self._trust
        return self._supervisor.run(lambda view: spreading.commit_launch(view, trust, record))

    def launches(self, launch_key: str | None = None) -> tuple[LaunchRecord, ...]:
        """All launch records, or those of one key, newest first; see `stored_launches.read_launches`."""
        return tuple(stored.record for stored in self.stored_launches(launch_key))

    def stored_launches(self, launch_key: str | None = None) -> tuple[StoredLaunch, ...]:
        """As `launches`, with the name that each record has in the store."""
        found = self._noting(
            lambda documents, problems: stored_launches.read_launches(documents, launch_key, problems)
        )
        if launch_key is not None:
            self._note_names(found)
        return found

    def launch_summaries(self, launch_key: str) -> tuple[LaunchSummary, ...]:
        """What the launches of one key are chosen by, newest first; see `stored_launches`."""
        return self._noting(
            lambda documents, problems: stored_launches.summarize_launches(documents, launch_key, problems)
        )

    def take_launches(self, names: Sequence[str]) -> tuple[StoredLaunch, ...]:
        """Records by their names, in their order; what cannot be used is skipped, as by `launches`."""
        taken = self._noting(
            lambda documents, problems: stored_launches.take_launches(documents, names, problems)
        )
        self._note_names(taken)
        return taken

    def last_uses(self) -> dict[str, datetime]:
        """When each record that has a mark of use was last used, by its name; see `last_use.last_uses`."""
        marks = self._run(lambda documents: last_use.last_uses(documents.backend.list(USED)))
        return {name: datetime.fromtimestamp(mark.modified_s, UTC) for name, mark in marks.items()}

    def mark_used(self, record_name: str) -> None:
        """Note that the record of that name was used; see `last_use.mark_used`."""
        problem = self._run(lambda documents: last_use.mark_used(documents.backend, record_name))
        if problem and problem not in self.problems:
            self.problems.append(problem)

    def launch_keys(self) -> tuple[str, ...]:
        """All launch keys, sorted."""
        return self._run(stored_launches.launch_keys)

    def manifest(self, key: str, *, expected_sha256: str | None = None) -> PartitionManifest:
        """The manifest of a partition.

        Args:
            key: its key.
            expected_sha256: the stored form that a launch record pins.

        Raises:
            NotInStore: there is none.
            Conflict: it is another one than the record pins.
            Corrupt: it is damaged, and now in quarantine.
            Untrusted: refused by the trust policy.
        """
        return self._run(
            lambda documents: pinned.take_manifest(documents, key, expected_sha256=expected_sha256).manifest
        )

    def standing(self, keys: Sequence[str]) -> dict[str, PartitionRef]:
        """What a launch record says about the manifests under ``keys``; absent ones are left out.

        Raises:
            Corrupt, Untrusted: as `manifest`.
        """
        return self._run(lambda documents: pinned.standing_refs(documents, keys))

    def distinct_partitions(self, refs: Sequence[PartitionRef]) -> Pinned[str]:
        """One reference for each distinct set of artifacts; see `pinned.distinct_partitions`."""
        return self._run(lambda documents: pinned.distinct_partitions(documents, refs))

    def fetch_partitions(
        self,
        refs: Sequence[PartitionRef],
        cache_root: Path,
        *,
        options: FetchOptions | None = None,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> FetchOutcome:
        """Lay out partitions below ``cache_root``, one process of this node at a time.

        Args:
            refs: the partitions, as a launch record names them.
            cache_root: the cache directory.
            options: how it is done.
            lock_timeout_s: how long another process may get no further before this one goes on beside it.

        Raises:
            UnusableCache, StoreUnavailable: as `fetch.fetch_partitions`.
        """
        trust = self._trust
        with single_flight(cache_root, timeout_s=lock_timeout_s) as flight:
            beating = replace(options or FetchOptions(), beat=flight.beat)
            outcome = self._supervisor.run(
                lambda view: spreading.fetch_partitions(view, trust, refs, cache_root, beating)
            )
        beating.held(outcome.copies)
        self._fill(outcome, refs)
        return outcome

    def node_sources(
        self, refs: Sequence[PartitionRef], ranks: Collection[int] | None
    ) -> tuple[PartitionRef, ...]:
        """Whose manifests have the node artifacts that a node needs; see `node_artifacts.node_sources`."""
        return self._run(lambda documents: node_artifacts.node_sources(documents, refs, ranks))

    def fetch_node_files(
        self,
        refs: Sequence[PartitionRef],
        destinations: Destinations,
        cache_root: Path,
        *,
        options: FetchOptions | None = None,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> NodeFetch:
        """Keep node artifacts of partitions below ``cache_root``; see `node_artifacts.fetch_node_files`.

        One process of this node at a time, as `fetch_partitions`; nearer places get their blobs.
        """
        fetch_files = node_artifacts.fetch_node_files
        with single_flight(cache_root, timeout_s=lock_timeout_s) as flight:
            beating = replace(options or FetchOptions(), beat=flight.beat)
            found = self._run(
                lambda documents: fetch_files(documents, refs, destinations, cache_root, beating)
            )
        beating.held(found.copies)
        self._spread(found.copies, [])
        return found

    def push_directory(self, tool: str, root: Path, components: Mapping[str, str]) -> PushReport:
        """Store a directory of another tool; see `cache_store.sync.push.push`."""
        return self._write(lambda documents: push(documents, tool, root, components))

    def pull_directory(
        self, tool: str, root: Path, components: Mapping[str, str], *, replace: bool = False
    ) -> PullReport:
        """Restore a directory of another tool; see `cache_store.sync.pull`."""
        plan = self._run(lambda documents: plan_pull(documents, tool, root, components))
        with pull_lock(plan.root):
            return self._run(lambda documents: pull(documents, plan, replace=replace))

    def directories(self) -> tuple[StoredListing, ...]:
        """The newest listing of each directory of another tool; see `cache_store.records.directory_listing`."""
        return self._noting(newest_listings)

    def verify(
        self,
        *,
        repair: bool = False,
        cache_root: Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> VerifyReport:
        """Read every place again and say what is wrong; see `places.verify_places`."""
        return places.verify_places(
            self._supervisor.tiers,
            self._trust,
            repair=repair,
            cache_root=cache_root,
            left_out=self._left_out,
            on_progress=on_progress,
        )

    def evict(self, policy: EvictPolicy, *, place: str | None = None, dry_run: bool = False) -> EvictOutcome:
        """Take away what ``policy`` does not keep; see `places.evict_places`."""
        return places.evict_places(
            self._supervisor.tiers,
            policy,
            trust=self._trust,
            place=place,
            dry_run=dry_run,
            left_out=self._left_out,
        )

    def pin(self, prefix: str, *, reason: str = "") -> tuple[Pin, ...]:
        """Keep records from being evicted; see `pins.pin`."""
        return self._supervisor.run(lambda view: pins.pin(view, prefix, reason=reason))

    def unpin(self, prefix: str) -> tuple[str, ...]:
        """Remove pins; see `pins.unpin`."""
        return self._supervisor.run(lambda view: pins.unpin(view, prefix))

    def pins(self) -> tuple[Pin, ...]:
        """All pins; see `pins.read_pins`."""
        return self._run(lambda documents: pins.read_pins(documents.backend))

    def _note_names(self, found: Sequence[StoredLaunch]) -> None:
        """Remember which record names a partition, for the places that get it with the partition."""
        self._record_names.update({ref: stored.name for stored in found for ref in stored.record.partitions})

    def _fill(self, outcome: FetchOutcome, refs: Sequence[PartitionRef]) -> None:
        """Put what was fetched into the nearer places, with the manifests and the records that name it."""
        faulty = {fault.ref for fault in outcome.faults}
        wanted = [ref for ref in refs if ref not in faulty]
        records = {self._record_names[ref] for ref in wanted if ref in self._record_names}
        self._spread(outcome.copies, [*(manifest_name(ref.manifest_key) for ref in wanted), *sorted(records)])
