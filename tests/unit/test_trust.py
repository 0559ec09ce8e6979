"""Signatures: envelopes, keys, policies, marks of unsigned directories, the keyring, places that ask."""

from __future__ import annotations

import errno
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Literal

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stored import (
    LAUNCH_KEY,
    backend_of,
    make_partition,
    open_store,
    publish_launch,
    save_key_pair,
)
from warmrank.cache_store.backends import directory
from warmrank.cache_store.cache_dir.marks import UNVERIFIED, Marks, mark_unverified, marks_of, permit_copies
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Conflict, Corrupt, Untrusted, UnusableCache, UnwritableDisk
from warmrank.cache_store.layout import BLOBS
from warmrank.cache_store.signing import keyring
from warmrank.cache_store.signing.keyring import (
    Revocation,
    Signer,
    generate,
    generate_key_pair,
    key_id,
    load_public_key,
    load_signer,
    read_keyring,
    revoke,
    save_private_key,
    save_public_key,
)
from warmrank.cache_store.signing.trust import (
    Envelope,
    Header,
    Signature,
    Trust,
    TrustPolicy,
    choose_policy,
    entry_fault,
    load_trust,
    parse_envelope,
)
from warmrank.cache_store.store import Store
from warmrank.orchestrator.config.reading import load
from warmrank.orchestrator.config.store import TrustConfig, locate_trust
from warmrank.orchestrator.stores import open_store as open_configured

pytestmark = pytest.mark.usefixtures("own_keys")

KEY = "1" * 64
PAYLOAD = b'{"a":1}'
SIGNER, OTHER = generate_key_pair("ci"), generate_key_pair("other")
PUBLISHER = Trust(policy="require", signer=SIGNER)
SEALED = PUBLISHER.seal("manifest", KEY, PAYLOAD)


def revocation(signer: Signer, **said: str) -> Revocation:
    return Revocation(key_id=key_id(signer.public_key), **said)


def revoked(signer: Signer, **said: str) -> dict[str, Revocation]:
    return {key_id(signer.public_key): revocation(signer, **said)}


REVOKED = revoked(SIGNER, when="2026-01-31T12:00:00+00:00", reason="laptop lost")


@pytest.mark.parametrize("policy", ["require", "warn"])
def test_revoked_key_is_refused_with_its_place_time_and_reason(policy: TrustPolicy):
    reader = Trust(policy=policy, trusted={"ci": SIGNER.public_key}, revoked=REVOKED)
    said = r"revoked on 2026-01-31T12:00:00\+00:00 \(laptop lost\)"
    with pytest.raises(Untrusted, match=said) as caught:
        reader.open_envelope("manifest", KEY, SEALED, where="ac/11/1")
    assert (caught.value.reason, "ac/11/1" in str(caught.value)) == ("revoked", True)


@pytest.mark.parametrize("policy", ["require", "warn", "off"])
def test_revoked_key_of_ones_own_signs_nothing(policy: TrustPolicy):
    own = Trust(policy=policy, signer=SIGNER, revoked=REVOKED)
    with pytest.raises(Untrusted, match=r"untrusted \(revoked\).*warmrank keys generate"):
        own.seal("manifest", KEY, PAYLOAD)


def test_load_trust_adds_keyring_and_files_up(tmp_path):
    ours, theirs = generate(tmp_path / "keys", "ci"), generate_key_pair("ci")
    _, file = save_key_pair(theirs, tmp_path / "files")
    reader = load_trust("require", trusted_keys={"ci": file}, keyring=tmp_path / "keys")
    for signer in (ours, theirs):
        sealed = Trust(policy="require", signer=signer).seal("manifest", KEY, PAYLOAD)
        assert reader.open_envelope("manifest", KEY, sealed) == PAYLOAD


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SIGNATURES = st.builds(
    Signature,
    name=st.from_regex(r"[a-z \u00e9]{1,8}", fullmatch=True),
    key_id=st.binary(min_size=16, max_size=16).map(bytes.hex),
    value=st.binary(min_size=64, max_size=64).map(bytes.hex),
)


def envelope_of(
    *, kind: str, key: str, payload: bytes, signature: Signature | Literal["unsigned"]
) -> Envelope:
    digest = digest_bytes(payload)
    named = {"sha256": digest.sha256, "size_bytes": digest.size_bytes}
    return Envelope(Header(kind=kind, key=key, payload=named, signature=signature), payload)


ENVELOPES = st.builds(
    envelope_of,
    kind=TEXT,
    key=TEXT,
    payload=st.binary(max_size=64),
    signature=st.just("unsigned") | SIGNATURES,
)


@given(ENVELOPES)
def test_envelope_round_trips(envelope):
    assert parse_envelope(envelope.to_bytes(), what="manifest k", where="ac/ab/k") == envelope


def test_private_key_that_others_can_read_is_refused(tmp_path):
    private_path, _ = save_key_pair(SIGNER, tmp_path)
    private_path.chmod(0o640)
    with pytest.raises(UnusableCache, match="mode 0640"):
        load_signer(private_path)


def test_key_file_is_never_overwritten(tmp_path):
    save_key_pair(SIGNER, tmp_path)
    with pytest.raises(UnusableCache, match="File exists"):
        save_private_key(OTHER, tmp_path / "ci.pem")
    with pytest.raises(UnusableCache, match="File exists"):
        save_public_key(OTHER.public_key, tmp_path / "ci.pub.pem")
    assert key_id(load_signer(tmp_path / "ci.pem").public_key) == key_id(SIGNER.public_key)
    assert key_id(load_public_key(tmp_path / "ci.pub.pem")) == key_id(SIGNER.public_key)


def test_load_signer_refuses_another_kind_of_key(tmp_path):
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = tmp_path / "ci.pem"
    path.write_bytes(X25519PrivateKey.generate().private_bytes(*form))
    path.chmod(0o600)
    with pytest.raises(Corrupt, match="X25519"):
        load_signer(path)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_public_key_that_others_can_write_is_refused(tmp_path, mode):
    _, public_path = save_key_pair(SIGNER, tmp_path)
    public_path.chmod(mode)
    with pytest.raises(UnusableCache, match="chmod 644"):
        load_public_key(public_path)


def test_what_was_fetched_before_its_key_was_revoked_is_not_used_after(root: Path, source: Path, cache: Path):
    ref = open_store(root, PUBLISHER).publish_partition(LAUNCH_KEY, make_partition(source), source).ref
    trusting = Trust(policy="require", trusted={"ci": SIGNER.public_key})
    assert open_store(root, trusting).fetch_partitions([ref], cache).faults == ()
    wary = open_store(root, replace(trusting, revoked=REVOKED))
    with pytest.raises(UnusableCache, match=f"key {key_id(SIGNER.public_key)} signed, which is revoked"):
        wary.fetch_partitions([ref], cache)


def test_single_blob_is_marked_with_every_key_that_may_have_named_it(root: Path, source: Path, cache: Path):
    open_store(root, PUBLISHER).publish_partition(LAUNCH_KEY, partition := make_partition(source), source)
    trusted = {"ci": SIGNER.public_key, "other": OTHER.public_key}
    reader = open_store(root, Trust(policy="require", trusted=trusted, revoked=revoked(OTHER)))
    reader.fetch_blob(partition.artifacts[0].sha256, cache / "f", cache_root=cache)
    assert [path.name for path in (cache / ".signers").iterdir()] == [key_id(SIGNER.public_key)]


ONE = "1" * 16


@pytest.mark.parametrize("policy", ["off", "require"])
def test_marks_of_one_directory_are_those_of_the_next(tmp_path, policy):
    (tmp_path / "one").mkdir()
    (tmp_path / "next").mkdir()
    permit_copies(tmp_path / "one", policy, [ONE])
    marks = marks_of(tmp_path / "one")
    permit_copies(tmp_path / "next", marks.policy, marks.signers)
    assert marks_of(tmp_path / "next") == marks == Marks(policy=policy, signers=frozenset([ONE]))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of each path that was flushed."""
    flushed: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return flushed


def test_mark_is_durable_before_the_first_copy(tmp_path, synced, monkeypatch):
    store = open_store(tmp_path / "store")
    record = publish_launch(store, tmp_path / "source")
    synced.clear()
    before: list[list[str]] = []
    real = backend_of(store).open

    def note(name: str) -> BinaryIO:
        if name.startswith(BLOBS):
            before.append([*synced])
        return real(name)

    monkeypatch.setattr(backend_of(store), "open", note)
    assert store.fetch_partitions(record.partitions, tmp_path / "cache").faults == ()
    assert [flushed[:2] for flushed in before] == [[UNVERIFIED, "cache"]] * 2


def test_mark_that_cannot_be_made_durable_stops_the_fetch(tmp_path, monkeypatch):
    def failing(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(UnusableCache, match="Input/output error"):
        mark_unverified(tmp_path, "off")


BY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
REVOCATION = f"revoked/{key_id(OTHER.public_key)}.json"
OTHER_REVOKED = revocation(OTHER, name="other", when="2026-01-31T12:00:00+00:00")


@pytest.mark.parametrize(("name", "load"), [("ci.pem", load_signer), ("trusted/ci.pub.pem", load_public_key)])
def test_key_file_below_a_directory_that_others_can_write_is_refused(tmp_path, name, load):
    generate(tmp_path / "open" / "keys", "ci")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(UnusableCache, match="open has mode 0777"):
        load(tmp_path / "open" / "keys" / name)


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize(
    "name",
    ["keys", "keys/trusted", "keys/revoked", f"keys/{REVOCATION}", "keys/trusted/ci.pub.pem"],
    ids=["keyring", "trusted", "revoked", "revocation", "key"],
)
def test_link_that_others_can_change_is_refused_on_the_way_to_a_key(tmp_path, name, is_gone):
    keys = tmp_path / "keys"
    generate(keys, "ci")
    revoke(keys, OTHER_REVOKED)
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "moved")
    (tmp_path / name).rename(tmp_path / "moved")
    (tmp_path / name).symlink_to("open/link" if name == "keys" else tmp_path / "open" / "link")
    read_keyring(keys)
    (tmp_path / "open").chmod(0o777)
    if is_gone:
        (tmp_path / "open" / "link").unlink()
    with pytest.raises(UnusableCache, match="open has mode 0777"):
        read_keyring(keys)


def test_revocations_at_once_are_all_kept(tmp_path):
    ids = [f"{number:032x}" for number in range(8)]
    together = threading.Barrier(len(ids))

    def revoke_one(wanted: str) -> bool:
        together.wait(timeout=30)
        return revoke(tmp_path, Revocation(key_id=wanted))[1]

    with ThreadPoolExecutor(len(ids)) as pool:
        assert all(pool.map(revoke_one, ids))
    assert sorted(read_keyring(tmp_path).revoked) == ids


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format":1,"name":"","reason":""}'])
def test_damaged_revocation_is_not_passed_over(tmp_path, text):
    standing, _ = revoke(tmp_path, OTHER_REVOKED)
    (tmp_path / "revoked" / f"{standing.key_id}.json").write_text(text)
    with pytest.raises(Corrupt, match=rf"revocation at .*{standing.key_id}\.json.*restore it"):
        read_keyring(tmp_path)
    with pytest.raises(Corrupt, match="restore it"):
        revoke(tmp_path, OTHER_REVOKED)


@pytest.mark.parametrize(
    "place",
    [".", "trusted", "trusted/ci.pub.pem", "revoked", REVOCATION],
    ids=["root", "trusted", "key", "revoked", "entry"],
)
@pytest.mark.parametrize("change", ["group", "others", pytest.param("owner", marks=BY_ROOT)])
def test_keyring_that_others_can_write_or_own_is_refused(tmp_path, place, change):
    generate(tmp_path / "keys", "ci")
    revoke(tmp_path / "keys", OTHER_REVOKED)
    path = tmp_path / "keys" / place
    if change == "owner":
        os.chown(path, 12345, 12345)
    else:
        path.chmod(path.stat().st_mode | {"group": stat.S_IWGRP, "others": stat.S_IWOTH}[change])
    said = "uid 12345" if change == "owner" else "not writable by group or others"
    with pytest.raises(UnusableCache, match=said):
        read_keyring(tmp_path / "keys")


def test_keyring_whose_disk_takes_nothing_is_told_as_that(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UnwritableDisk, match="Read-only") as refused:
        generate(tmp_path / "keys", "ci")
    assert "cache" not in f"{refused.value.what} {refused.value.remedy}"


REVOKED_ID = "1" * 32


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that counts as one on a local disk, wherever the tests run."""
    mounts = tmp_path / "mounts"
    mounts.write_text("disk / ext4 rw 0 0\nserver:/x /mnt/nowhere nfs4 rw 0 0\n")
    monkeypatch.setattr(directory, "_MOUNTS", mounts)
    return tmp_path


def config(**fields: object) -> TrustConfig:
    return TrustConfig.model_validate(fields)


@pytest.mark.parametrize("name", ["ci", "build.farm", "ci_2"])
def test_signing_key_without_slash_or_suffix_is_a_key_of_the_keyring(tmp_path, own_keys, name):
    generate(own_keys, name)
    assert locate_trust(config(signing_key=name), base=tmp_path).signing_key == own_keys / f"{name}.pem"


def test_key_that_another_command_makes_meanwhile_is_a_conflict(own_keys, monkeypatch):
    def meanwhile(name: str) -> Signer:
        save_private_key(generate_key_pair(name), own_keys / f"{name}.pem")
        return generate_key_pair(name)

    monkeypatch.setattr(keyring, "generate_key_pair", meanwhile)
    with pytest.raises(Conflict, match="run this again"):
        generate(own_keys, "ci")


def test_what_the_keyring_revokes_travels_with_the_config(tmp_path, own_keys):
    signer = generate(own_keys, "ci")
    revoke(own_keys, revocation(signer))
    located = locate_trust(config(revoked=[REVOKED_ID]), base=tmp_path)
    assert set(located.revoked) == {REVOKED_ID, key_id(signer.public_key)}


def test_store_of_a_config_signs_with_the_keyring_until_the_key_is_revoked(tmp_path, own_keys):
    signer = generate(own_keys, "ci")
    file = tmp_path / "launch.yaml"
    file.write_text(
        "workload: {entrypoint: 'a:b'}\nranks: 1\n"
        f"store: {{path: {tmp_path / 'store'}, trust: {{policy: require, signing_key: ci}}}}\n"
    )
    publish_launch(_store(file), tmp_path / "cache")
    assert len(_store(file).launches()) == 1
    revoke(own_keys, revocation(signer, reason="lost"))
    assert _store(file).launches() == ()
    with pytest.raises(Untrusted, match=r"revoked.*lost"):
        publish_launch(_store(file), tmp_path / "other", environment={"torch": "2.12.0"})


def _store(file: Path) -> Store:
    config = load(file).store
    assert config is not None
    return open_configured(config)


DIRECTORY = stat.S_IFDIR | 0o755


@pytest.mark.parametrize(
    ("path", "uid", "mode", "is_above", "reason"),
    [
        ("/store", 8, DIRECTORY, False, "belongs to uid 8"),
        ("/store", 0, DIRECTORY, False, "belongs to uid 0"),
        ("/store/FORMAT", 8, stat.S_IFREG | 0o644, False, "/store/FORMAT"),
        ("/store", 7, stat.S_IFDIR | 0o775, False, "others can write /store"),
        ("/store", 7, stat.S_IFDIR | 0o757, False, "mode 0757"),
        ("/store", 7, stat.S_IFDIR | 0o1777, False, "mode 1777"),
        ("/data", 8, DIRECTORY, True, "/data belongs to uid 8"),
        ("/data", 0, stat.S_IFDIR | 0o777, True, "others can write /data"),
    ],
)
def test_what_others_can_write_asks_for_signatures(path, uid, mode, is_above, reason):
    assert reason in entry_fault(path, uid, mode, own=7, is_above=is_above)


@pytest.mark.parametrize(("uid", "mode"), [(0, DIRECTORY), (0, stat.S_IFDIR | 0o1777), (7, DIRECTORY)])
def test_what_only_root_can_change_above_a_store_does_not(uid, mode):
    assert entry_fault("/", uid, mode, own=7, is_above=True) == ""


@pytest.mark.parametrize("location", ["s3://bucket/prefix", "gs://bucket", "az://container"])
def test_object_store_asks_for_signatures(location):
    assert choose_policy(location).policy == "require"


def test_directory_on_a_network_file_system_is_not_touched(local, monkeypatch):
    monkeypatch.setattr(Path, "resolve", lambda self: pytest.fail("looked at a mount that may be dead"))
    assert "nfs4" in choose_policy("/mnt/nowhere/store").reason


@BY_ROOT
@pytest.mark.parametrize("mode", [0o700, 0o755])
@pytest.mark.parametrize("name", ["ac/ab/key", "launch/ab/key/record", "trash/time/dir/ab/key/listing"])
def test_store_with_a_document_of_another_user_asks_for_signatures(local, mode, name):
    path = local / "store" / name
    path.parent.mkdir(parents=True)
    path.write_text("")
    (local / "store").chmod(mode)
    assert choose_policy(str(local / "store")).policy == "off"
    os.chown(path, 12345, 12345)
    assert f"{path} belongs to uid 12345" in choose_policy(str(local / "store")).reason


@pytest.mark.parametrize("directory", ["launch/ab/key", "ac/ab", "trash/20260131T120000Z/ac/ab"])
def test_directory_of_names_that_others_can_write_asks_for_signatures(local, directory):
    (local / "store" / directory).mkdir(parents=True)
    assert choose_policy(str(local / "store")).policy == "off"
    (local / "store" / directory).chmod(0o775)
    assert f"others can write {local}/store/{directory}" in choose_policy(str(local / "store")).reason


@pytest.mark.parametrize("target", ["/store", "../store"])
@pytest.mark.parametrize("name", ["open/link", "open/link/below", "first"])
def test_link_that_others_can_change_asks_for_signatures(local, name, target):
    (local / "store").mkdir()
    (local / "open").mkdir()
    (local / "open" / "link").symlink_to(f"{local}/store" if target[0] == "/" else target)
    (local / "first").symlink_to("open/link")
    assert choose_policy(str(local / name)).policy == "off"
    (local / "open").chmod(0o777)
    assert f"others can write {local}/open" in choose_policy(str(local / name)).reason


def test_link_on_a_network_file_system_asks_for_signatures(local, tmp_path):
    (local / "store").mkdir()
    (local / "shared").mkdir()
    (local / "shared" / "link").symlink_to(local / "store")
    (local / "first").symlink_to(local / "shared" / "link")
    assert choose_policy(str(local / "first")).policy == "off"
    with (local / "mounts").open("a") as mounts:
        mounts.write(f"server:/x {local}/shared nfs4 rw 0 0\n")
    assert "nfs4" in choose_policy(str(local / "first")).reason


@pytest.mark.parametrize("kind", ["nfs4", "lustre", "gpfs", "fuse.sshfs", "cifs", "9p", ""])
def test_file_system_that_may_be_shared_asks_for_signatures(local, kind):
    (local / "mounts").write_text(f"server:/x / {kind} rw 0 0\n")
    choice = choose_policy(str(local / "store"))
    assert choice.policy == "require"
    assert (kind or "not known") in choice.reason
