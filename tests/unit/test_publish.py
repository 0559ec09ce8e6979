"""Publishing, alone and against others, whole and cut short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.store_processes import KILLED, race, run_child
from tests.support.stored import (
    FUNCTIONS,
    LAUNCH_KEY,
    OFF,
    blob_path,
    make_partition,
    make_record,
    open_store,
    overwrite,
    stored,
)
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.cache_dir.digest_index import DigestIndex
from warmrank.cache_store.connect import TierSpec
from warmrank.cache_store.connect import open_store as open_tiers
from warmrank.cache_store.digests import Digest, digest_stream
from warmrank.cache_store.errors import Corrupt, NotInStore, StoreUnavailable, Untrusted, UnusableCache
from warmrank.cache_store.layout import trash_name
from warmrank.cache_store.publish.publish import PublishReport
from warmrank.cache_store.records.manifest import partition_key
from warmrank.cache_store.signing.keyring import generate_key_pair
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.steps import Step
from warmrank.cache_store.store import Store

DECODE = FUNCTIONS["Llama.decode"]


def publish(store: Store, cache: Path, *, functions: dict[str, bytes] = FUNCTIONS) -> PublishReport:
    return store.publish_partition(LAUNCH_KEY, make_partition(cache, functions=functions), cache)


def test_publish_reports_what_is_new(store, cache):
    report = publish(store, cache)
    sizes = [len(data) for data in FUNCTIONS.values()]
    assert (report.created, report.num_blobs_new, report.bytes_new, report.conflicts) == (
        True,
        2,
        sum(sizes),
        (),
    )


def test_published_ref_pins_the_stored_form(store, root, cache):
    report = publish(store, cache)
    assert report.ref.manifest_key == report.key == partition_key(LAUNCH_KEY, make_partition(cache))
    assert store.manifest(report.key, expected_sha256=report.ref.manifest_sha256)


def test_second_publish_changes_nothing(store, cache):
    first, second = publish(store, cache), publish(store, cache)
    assert (second.created, second.num_blobs_new, second.conflicts) == (False, 0, ())
    assert second.ref == first.ref


def test_second_publish_with_other_bytes_names_the_function(store, cache, tmp_path):
    first = publish(store, cache)
    other = publish(store, tmp_path / "other", functions=FUNCTIONS | {"Llama.decode": b"different"})
    assert (other.created, other.conflicts, other.num_blobs_new) == (False, ("Llama.decode",), 0)
    assert other.ref == first.ref


def test_wrong_digest_is_corrupt_and_nothing_is_published(store, root, cache):
    manifest = make_partition(cache)
    (cache / manifest.artifacts[0].path).write_bytes(b"changed after it was described")
    with pytest.raises(Corrupt, match=manifest.artifacts[0].path):
        store.publish_partition(LAUNCH_KEY, manifest, cache)
    assert (stored(root, "ac"), stored(root, "cas")) == ([], [])


def test_wrong_digest_of_a_blob_that_is_stored_already_is_corrupt(store, root, cache):
    publish(store, cache)
    manifest = make_partition(cache)
    path = cache / manifest.artifacts[0].path
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(Corrupt):
        store.publish_partition(LAUNCH_KEY, manifest, cache)


def test_missing_artifact_is_refused(store, root, cache):
    manifest = make_partition(cache)
    (cache / manifest.artifacts[0].path).unlink()
    with pytest.raises(UnusableCache, match="No such file"):
        store.publish_partition(LAUNCH_KEY, manifest, cache)
    assert stored(root, "ac") == []


def test_truncated_blob_is_repaired_by_the_next_publish(store, root, cache):
    publish(store, cache)
    overwrite(blob_path(root, DECODE), DECODE[:-1])
    assert publish(store, cache).num_blobs_new == 1
    assert store.verify().faults == ()


def test_damaged_manifest_is_repaired_by_the_next_publish(store, root, cache):
    publish(store, cache)
    (manifest,) = stored(root, "ac")
    overwrite(manifest, manifest.read_bytes()[:-1])
    assert publish(store, cache).created
    assert len(stored(root, "quarantine")) == 2


def test_publish_without_a_signing_key_is_refused_before_any_write(root, cache):
    with pytest.raises(Untrusted, match="no_signing_key"):
        publish(open_store(root, Trust(policy="require")), cache)
    assert stored(root, "cas") == []


def test_publish_of_what_is_signed_already_needs_no_signing_key(root, cache):
    signer = generate_key_pair("ci")
    publish(open_store(root, Trust(policy="require", signer=signer)), cache)
    reader = open_store(root, Trust(policy="require", trusted={"ci": signer.public_key}))
    assert not publish(reader, cache).created


def test_unsigned_manifest_gives_way_to_a_signed_one(store, root, cache):
    publish(store, cache)
    signing = open_store(root, Trust(policy="require", signer=generate_key_pair("ci")))
    report = publish(signing, cache)
    assert report.created
    assert signing.manifest(report.key) == make_partition(cache)


def test_manifest_of_an_unknown_signer_gives_way(root, cache):
    publish(open_store(root, Trust(policy="require", signer=generate_key_pair("theirs"))), cache)
    ours = open_store(root, Trust(policy="require", signer=generate_key_pair("ours")))
    report = publish(ours, cache)
    assert report.created
    assert ours.manifest(report.key) == make_partition(cache)
    _, reason = stored(root, "quarantine")
    assert "unknown_signer" in reason.read_text()


def test_newer_envelope_that_nobody_signed_gives_way(root, cache):
    ours = open_store(root, Trust(policy="require", signer=generate_key_pair("ours")))
    publish(ours, cache)
    (manifest,) = stored(root, "ac")
    overwrite(manifest, b'{"format":99}\n')
    report = publish(ours, cache)
    assert report.created
    assert ours.manifest(report.key) == make_partition(cache)


def test_manifest_with_a_bad_signature_gives_way(root, cache):
    ours = open_store(root, Trust(policy="require", signer=generate_key_pair("ours")))
    publish(ours, cache)
    (manifest,) = stored(root, "ac")
    overwrite(manifest, manifest.read_bytes().replace(b"prefill", b"PREFILL"))
    assert publish(ours, cache).created


def test_manifest_of_an_unknown_signer_stays_when_nothing_could_replace_it(root, cache):
    publish(open_store(root, Trust(policy="require", signer=generate_key_pair("theirs"))), cache)
    with pytest.raises(Untrusted, match="no_signing_key"):
        publish(open_store(root, Trust(policy="require")), cache)
    assert (len(stored(root, "ac")), stored(root, "quarantine")) == (1, [])


def test_put_blob_stores_a_private_file_once(store, root, cache):
    path = cache / make_partition(cache).artifacts[0].path
    first, second = store.put_blob(path), store.put_blob(path)
    assert (first[1], second) == (True, (first[0], False))
    assert [file.name for file in stored(root, "cas")] == [first[0].sha256]


def test_put_blob_refuses_a_file_that_others_could_have_written(store, root, tmp_path):
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "file").chmod(0o666)
    with pytest.raises(UnusableCache):
        store.put_blob(tmp_path / "file")


def test_racing_processes_have_one_winner(root, tmp_path):
    results = race(*[("publish", str(root), str(tmp_path / f"cache{number}")) for number in range(3)])
    assert sorted(result["created"] for result in results) == [False, False, True]
    assert len({result["sha256"] for result in results}) == 1
    assert open_store(root).verify().faults == ()


class Interrupted(DirectoryBackend):
    """Lets something happen before a manifest is put."""

    def __init__(self, root: Path, happen: Callable[[Interrupted], object]) -> None:
        super().__init__(root)
        self.happen = happen

    def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
        if files[0].name.startswith("ac/"):
            self.happen(self)
        return super().put_new(files)


def interrupted(root: Path, happen: Callable[[Interrupted], object]) -> Store:
    return Store(Interrupted(root, happen), trust=OFF, location=str(root))


def test_publisher_that_loses_the_race_with_other_bytes_names_the_function(root, cache, tmp_path):
    manifest = make_partition(tmp_path / "other", functions=FUNCTIONS | {"Llama.decode": b"different"})
    slow = interrupted(root, lambda _: publish(open_store(root), cache))
    report = slow.publish_partition(LAUNCH_KEY, manifest, tmp_path / "other")
    assert (report.created, report.conflicts) == (False, ("Llama.decode",))


def evict_blobs(backend: Interrupted) -> None:
    for info in list(backend.list("cas/")):
        backend.move(info.name, trash_name(info.name, datetime(2026, 1, 31, tzinfo=UTC)))


def test_blobs_that_an_evict_took_before_the_manifest_come_back_from_the_trash(root, cache):
    report = publish(interrupted(root, evict_blobs), cache)
    assert (report.created, len(stored(root, "cas")), stored(root, "trash")) == (True, 2, [])
    assert open_store(root).verify().faults == ()


def test_blobs_that_were_deleted_before_the_manifest_are_put_again(root, cache):
    def delete_blobs(backend: Interrupted) -> None:
        for info in list(backend.list("cas/")):
            backend.move(info.name, None)

    publish(interrupted(root, delete_blobs), cache)
    assert open_store(root).verify().faults == ()


def test_blobs_of_a_standing_manifest_come_back_though_this_compile_differs(store, root, cache, tmp_path):
    publish(store, cache)
    name = f"cas/sha256/{blob_path(root, DECODE).parent.name}/{blob_path(root, DECODE).name}"
    DirectoryBackend(root).move(name, trash_name(name, datetime(2026, 1, 31, tzinfo=UTC)))
    other = publish(store, tmp_path / "other", functions=FUNCTIONS | {"Llama.decode": b"different"})
    assert other.conflicts == ("Llama.decode",)
    assert store.verify().faults == ()


def test_blob_that_nobody_has_any_more_is_named(store, root, cache, tmp_path, caplog):
    publish(store, cache)
    blob_path(root, DECODE).unlink()
    publish(store, tmp_path / "other", functions=FUNCTIONS | {"Llama.decode": b"different"})
    assert f"{blob_path(root, DECODE).name}, which another publisher put, is gone" in caplog.text


def test_names_that_another_publisher_put_are_made_durable_before_the_manifest(root, cache, monkeypatch):
    store = open_store(root)
    manifest = make_partition(cache)
    for entry in manifest.artifacts:
        store.put_blob(cache / entry.path)
    flushed: list[str] = []
    flush_names = DirectoryBackend._flush_names

    def recording(self, names):
        flushed.extend(names)
        flush_names(self, names)

    monkeypatch.setattr(DirectoryBackend, "_flush_names", recording)
    report = store.publish_partition(LAUNCH_KEY, manifest, cache)
    assert report.num_blobs_new == 0
    assert [name.partition("/")[0] for name in flushed] == ["cas", "cas", "ac"]


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the files that were hashed without being copied; all files count as old."""
    sizes: list[int] = []

    def recording(source):
        digest = digest_stream(source)
        sizes.append(digest.size_bytes)
        return digest

    clock_ns = DigestIndex.now_ns
    monkeypatch.setattr(DigestIndex, "now_ns", lambda self: clock_ns(self) + 3600 * 10**9)
    monkeypatch.setattr("warmrank.cache_store.cache_dir.digest_index.digest_stream", recording)
    return sizes


def test_unchanged_second_publish_reads_no_file(store, cache, hashed):
    publish(store, cache, functions={"L.prefill": b"same", "L.decode": b"same", "L.encode": b"other"})
    assert hashed == [4]  # of two equal files one is copied
    manifest = make_partition(cache, functions={"L.prefill": b"same", "L.decode": b"same"})
    store.publish_partition(LAUNCH_KEY, manifest, cache)
    assert hashed == [4]


def test_changed_file_is_found_by_the_second_publish(store, cache, hashed):
    manifest = make_partition(cache)
    store.publish_partition(LAUNCH_KEY, manifest, cache)
    path = cache / manifest.artifacts[0].path
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(Corrupt, match="changed after it was made"):
        store.publish_partition(LAUNCH_KEY, manifest, cache)


def test_index_that_is_wrong_condemns_no_file(store, cache):
    manifest = make_partition(cache)
    index = DigestIndex(cache, manifest.partition)
    for entry in manifest.artifacts:
        wrong = Digest(sha256="0" * 64, size_bytes=entry.size_bytes)
        index.remember(cache / entry.path, wrong, read_ns=2**62)
    index.save()
    for _ in range(2):
        assert store.publish_partition(LAUNCH_KEY, manifest, cache).conflicts == ()


def test_file_that_was_not_read_because_another_publisher_was_faster_is_checked(root, cache):
    class Overtaken(DirectoryBackend):
        def put_new(self, files: Sequence[NewFile]) -> tuple[str, ...]:
            if files[0].name.startswith("cas/") and not self.stat([files[0].name]):
                publish(open_store(root), cache)
                (cache / make_partition(cache).artifacts[0].path).write_bytes(b"x" * len(DECODE))
            return super().put_new(files)

    manifest = make_partition(cache)
    overtaken = Store(Overtaken(root), trust=OFF, location=str(root))
    with pytest.raises(Corrupt):
        overtaken.publish_partition(LAUNCH_KEY, manifest, cache)


def test_every_place_gets_the_blobs_that_a_nearer_one_has(root, cache, tmp_path):
    near = TierSpec(location=str(tmp_path / "near"))
    publish(open_tiers([near], trust=OFF), cache)
    publish(open_tiers([near, TierSpec(location=str(root))], trust=OFF), cache)
    assert len(stored(root, "cas")) == 2
    assert open_store(root).verify().faults == ()


# The first batch that is put is FORMAT; the blobs, the manifest and the record follow.
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("step", "nth", "manifests", "launches"),
    [
        (Step.PUBLISH_STARTED, 1, 0, 0),
        (Step.PUT_STAGED, 2, 0, 0),
        (Step.PUT_LINKED, 2, 0, 0),
        (Step.PUBLISH_BLOBS, 1, 0, 0),
        (Step.PUT_STAGED, 3, 0, 0),
        (Step.PUT_LINKED, 3, 1, 0),
        (Step.PUBLISH_MANIFEST, 1, 1, 0),
        (Step.COMMIT_CHECKED, 1, 1, 0),
        (Step.PUT_STAGED, 4, 1, 0),
        (Step.PUT_LINKED, 4, 1, 1),
        (Step.COMMIT_RECORD, 1, 1, 1),
    ],
)
def test_publisher_killed_leaves_nothing_half_written(root, cache, step, nth, manifests, launches):
    child = run_child("publish_and_die", str(root), str(cache), step.value, str(nth))
    assert child.returncode == KILLED
    store = open_store(root)
    report = store.verify()
    assert (report.num_manifests, report.num_launches, report.faults) == (manifests, launches, ())
    ref = publish(store, cache).ref
    store.commit_launch(make_record((ref,)))
    assert len(store.launches()) == 1


def test_store_that_fails_between_blobs_and_manifest_is_unavailable_and_can_be_tried_again(root, cache):
    def fail(_: Interrupted) -> None:
        raise StoreUnavailable(what="manifest", where=str(root), reason="No space left on device")

    with pytest.raises(StoreUnavailable):
        publish(interrupted(root, fail), cache)
    with pytest.raises(NotInStore):
        open_store(root).manifest(partition_key(LAUNCH_KEY, make_partition(cache)))
    assert publish(open_store(root), cache).created
