"""The store as its users see it: publish, commit, fetch, look, verify.

Layout: see `cache_store.layout`. Invariants: blobs before the manifest, manifests before the launch record;
whatever is read is verified, and whatever is damaged goes into quarantine and is an error here, a miss one
level up. Process safety: any number of processes on any number of nodes may use one store at once; a
`Store` itself is used by one thread at a time. It holds a private key when it signs, so open it where it is
used, and send its location elsewhere.
"""

from __future__ import annotations

from pathlib import Path

from cache_store import audit, fetch, launches, publish
from cache_store.backend import BlobBackend
from cache_store.digests import Digest
from cache_store.directory import DirectoryBackend
from cache_store.documents import Documents
from cache_store.errors import Conflict, StoreUnavailable
from cache_store.manifest import LaunchRecord, PartitionManifest
from cache_store.reports import FetchReport, PublishReport, VerifyReport
from cache_store.trust import Trust, TrustPolicy


class Store:
    """One store and the trust with which this process uses it.

    Attributes:
        location: where it is, as it was named.
        problems: what `launches` skipped since this object was made, one line each.
    """

    def __init__(self, backend: BlobBackend, *, trust: Trust, location: str) -> None:
        self._backend = backend
        self._documents = Documents(backend=backend, trust=trust)
        self.location = location
        self.problems: list[str] = []

    @property
    def policy(self) -> TrustPolicy:
        """The trust policy under which this process uses the store."""
        return self._documents.trust.policy

    @classmethod
    def open(cls, location: Path | str, *, trust: Trust, create: bool = True) -> Store:
        """Open the store in a directory.

        Args:
            location: the directory.
            trust: whom to believe, and what to sign with.
            create: make an absent or empty directory into a store.

        Raises:
            StoreUnavailable: there is no store, or it cannot be used.
            NewerFormat: a later release made it.
        """
        if "://" in str(location):
            raise StoreUnavailable(
                what="store",
                where=str(location),
                reason="this release stores in directories only",
                remedy="name a directory, which may lie on a shared file system",
            )
        return cls(DirectoryBackend(Path(location), create=create), trust=trust, location=str(location))

    def put_blob(self, path: Path) -> Digest:
        """Add a private local file; see `publish.put_blob`."""
        return publish.put_blob(self._backend, path)

    def fetch_blob(self, digest: str, function_dir: Path) -> Path:
        """Add the blob with that sha256 to a function's variants; see `fetch.fetch_blob`."""
        return fetch.fetch_blob(self._backend, digest, function_dir)

    def publish_partition(self, launch_key: str, manifest: PartitionManifest, root: Path) -> PublishReport:
        """Publish the artifacts below the cache directory ``root``; see `publish.publish_partition`."""
        return publish.publish_partition(self._documents, launch_key, manifest, root)

    def commit_launch(self, record: LaunchRecord) -> str:
        """Put a launch record into the store, last of all; see `launches.commit_launch`."""
        return launches.commit_launch(self._documents, record)

    def launches(self, launch_key: str | None = None) -> tuple[LaunchRecord, ...]:
        """All launch records, or those of one key, newest first; see `launches.read_launches`."""
        return launches.read_launches(self._documents, launch_key, self.problems)

    def launch_keys(self) -> tuple[str, ...]:
        """All launch keys, sorted."""
        return launches.launch_keys(self._documents)

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
        standing = self._documents.take_manifest(key)
        if expected_sha256 is not None and standing.sha256 != expected_sha256:
            raise Conflict(
                what=f"manifest {key[:12]}",
                where=self.location,
                expected=f"the stored form {expected_sha256[:12]}",
                actual=standing.sha256[:12],
                remedy="it was published again since; the next launch commits a record that fits",
            )
        return standing.manifest

    def fetch_partition(
        self,
        key: str,
        cache_root: Path,
        *,
        expected_sha256: str | None = None,
        lock_timeout_s: float = fetch.LOCK_TIMEOUT_S,
    ) -> FetchReport:
        """Lay out a partition below ``cache_root``; raises as `manifest` and `fetch.fetch_partition`."""
        manifest = self.manifest(key, expected_sha256=expected_sha256)
        return fetch.fetch_partition(
            self._backend,
            key,
            manifest,
            cache_root,
            verified=self.policy == "require",
            lock_timeout_s=lock_timeout_s,
        )

    def verify(self) -> VerifyReport:
        """Read everything again and say what is wrong; see `audit.verify_store`."""
        return audit.verify_store(self._documents)
