from __future__ import annotations

import stat

import pytest

from tests.support.stored import open_store, publish_launch
from warmrank.cache_store.cache_dir.marks import (
    Marks,
    admit,
    mark_signers,
    marks_of,
    permit_copies,
)
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.signing.keyring import Revocation
from warmrank.cache_store.signing.trust import Trust

ONE = "1" * 16


def test_admitted_directory_is_made_private(tmp_path):
    admit(tmp_path / "cache", "require", ())
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


@pytest.mark.parametrize("policy", ["require", "warn"])
def test_directory_of_a_revoked_key_is_not_admitted(tmp_path, policy):
    mark_signers(tmp_path, [ONE])
    with pytest.raises(UnusableCache, match=f"key {ONE} signed, which is revoked"):
        admit(tmp_path, policy, {ONE})


def test_single_blob_is_not_copied_into_a_directory_of_a_revoked_key(tmp_path):
    record = publish_launch(open_store(tmp_path / "store"), tmp_path / "source")
    revoked = {ONE: Revocation(key_id=ONE, reason="stolen")}
    store = open_store(tmp_path / "store", Trust(policy="warn", revoked=revoked))
    entry = store.manifest(record.partitions[0].manifest_key).artifacts[0]
    (tmp_path / "cache").mkdir(mode=0o700)
    mark_signers(tmp_path / "cache", [ONE])
    with pytest.raises(UnusableCache, match="revoked"):
        store.fetch_blob(entry.sha256, tmp_path / "cache" / "f", cache_root=tmp_path / "cache")
    assert not (tmp_path / "cache" / "f").exists()


@pytest.mark.parametrize("policy", ["off", "require"])
def test_marks_of_one_directory_are_those_of_the_next(tmp_path, policy):
    (tmp_path / "one").mkdir()
    (tmp_path / "next").mkdir()
    permit_copies(tmp_path / "one", policy, [ONE])
    marks = marks_of(tmp_path / "one")
    permit_copies(tmp_path / "next", marks.policy, marks.signers)
    assert marks_of(tmp_path / "next") == marks == Marks(policy=policy, signers=frozenset([ONE]))
