"""Local files on their way into the store as blobs.

Every file is checked against the digest that a manifest vouches for, also those whose blob the store has; one
file of each blob that it lacks is hashed while it is copied, the others by threads, or known from an index.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmrank.cache_store.backends.backend import BlobBackend, NewFile
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.cache_dir.private_files import digest_private, os_errors_are_unusable
from warmrank.cache_store.digests import Digest
from warmrank.cache_store.errors import Corrupt, StoreUnavailable
from warmrank.cache_store.gc.trash import restore as bring_back
from warmrank.cache_store.layout import blob_name
from warmrank.cache_store.parallel import each, threads_for
from warmrank.cache_store.records.documents import quarantine


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBlobs:
    """Private files below one cache directory, and what their bytes must be."""

    digests: Mapping[str, Digest]  # by file, as text: there are thousands, and most are only looked at
    index: DigestIndex

    def put(self, backend: BlobBackend, *, make_durable: bool) -> tuple[Digest, ...]:
        """Check all files, add those that the store lacks, each once, and return the digests of the new ones.

        A blob of the wrong size is moved into quarantine and put again, so a publish repairs it. The names of
        blobs that another publisher added, who may not have done it yet, are made durable too if
        ``make_durable``; needless where a manifest that names them stands.

        Raises:
            Corrupt: a file is not what it must be; nothing was added.
        """
        sources = self._sources()
        absent = absent_blobs(backend, {name: self.digests[path] for name, path in sources.items()})
        copied = {path for name, path in sources.items() if name in absent}
        self._check_all(self._unknown(copied))
        wanted = [name for name in sources if make_durable or name in absent]
        read_ns = self.index.now_ns()
        created = set(self._put(backend, wanted, sources))
        for name in absent & created:
            path = sources[name]
            self.index.remember(Path(path), self.digests[path], read_ns=read_ns)
        # Where another publisher was faster the files may not have been read.
        self._check_all([sources[name] for name in sorted(absent - created)])
        check_standing(backend, {name: self.digests[sources[name]] for name in absent - created})
        return tuple(self.digests[path] for name, path in sources.items() if name in created)

    def put_again(self, backend: BlobBackend, digests: Iterable[Digest]) -> frozenset[str]:
        """Bring back those blobs that an evict took since `put`, from the trash or from the files here.

        Return names of those that are gone and not among the files here; raises as `put`.
        """
        absent = absent_blobs(backend, {blob_name(item.sha256): item for item in digests}, restore=True)
        sources = self._sources()
        created = self._put(backend, sorted(absent & sources.keys()), sources)
        standing = (absent & sources.keys()) - set(created)
        check_standing(backend, {name: self.digests[sources[name]] for name in standing})
        return absent - sources.keys()

    def _sources(self) -> dict[str, str]:
        """One file for each blob, by the blob's name."""
        sources: dict[str, str] = {}
        for path, digest in self.digests.items():
            sources.setdefault(blob_name(digest.sha256), path)
        return sources

    def _put(self, backend: BlobBackend, names: Sequence[str], sources: Mapping[str, str]) -> tuple[str, ...]:
        if not names:
            return ()
        pairs = ((name, sources[name]) for name in names)
        return backend.put_new(
            [NewFile(name=name, source=Path(path), expected=self.digests[path]) for name, path in pairs]
        )

    def _unknown(self, copied: Container[str]) -> list[str]:
        """Those that are not copied and must be read; not by threads, which would take longer."""
        unknown: list[str] = []
        for path, digest in self.digests.items():
            if path in copied:
                continue
            try:
                if self.index.known(path) == digest:
                    continue
            except OSError:  # the check says what is wrong
                pass
            unknown.append(path)
        return unknown

    def _check_all(self, paths: Sequence[str]) -> None:
        num_threads = threads_for(len(paths), sum(self.digests[path].size_bytes for path in paths))
        each(self._check, paths, num_threads=num_threads)

    def _check(self, text: str) -> None:
        path, expected = Path(text), self.digests[text]
        with os_errors_are_unusable("file", path):
            actual = self.index.digest(path)
            if actual != expected:
                actual = digest_private(path)  # an index alone condemns no file
        if actual != expected:
            raise Corrupt(
                what="artifact",
                where=str(path),
                expected=str(expected),
                actual=str(actual),
                remedy="it changed after it was made; compile again",
            )


def absent_blobs(
    backend: BlobBackend, wanted: Mapping[str, Digest], *, restore: bool = False
) -> frozenset[str]:
    """Names of the blobs that a place lacks; one of the wrong size goes into quarantine.

    With ``restore`` what lies in the trash is brought back first, which costs a listing of it.
    """
    gone = wanted.keys() - _whole(backend, wanted)
    return frozenset(gone - bring_back(backend, gone) if restore and gone else gone)


def check_standing(backend: BlobBackend, wanted: Mapping[str, Digest]) -> None:
    """Make sure, or raise `StoreUnavailable`, of blobs that were put, but that the store said it had."""
    if wanted and (missing := sorted(wanted.keys() - _whole(backend, wanted))):
        reason = "it was put, and is not there; something else stood in its place, or took it away"
        raise StoreUnavailable(what="blob", where=missing[0], reason=reason, remedy="publish again")


def _whole(backend: BlobBackend, wanted: Mapping[str, Digest]) -> set[str]:
    whole: set[str] = set()
    for name, info in backend.stat(wanted).items():
        digest = wanted[name]
        if info.is_regular and info.content_bytes in (None, digest.size_bytes):
            whole.add(name)
            continue
        actual = f"{info.content_bytes} bytes" if info.is_regular else "no regular file"
        fault = Corrupt(what="blob", where=name, expected=f"{digest.size_bytes} bytes", actual=actual)
        # Not only logged where that fails: nothing could be put in its place, and nothing said so.
        quarantine(backend, name, str(fault))
    return whole
