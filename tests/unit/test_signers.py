from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stored import LAUNCH_KEY, make_partition
from warmrank.cache_store.connect import TierSpec, open_store
from warmrank.cache_store.errors import UnusableCache
from warmrank.cache_store.signing.keyring import Revocation
from warmrank.cache_store.signing.signing_keys import generate_key_pair, key_id
from warmrank.cache_store.signing.trust import Trust


def test_what_was_fetched_before_its_key_was_revoked_is_not_used_after(root: Path, source: Path, cache: Path):
    signer = generate_key_pair("ci")
    own = key_id(signer.public_key)
    publisher = open_store([TierSpec(location=str(root))], trust=Trust(policy="require", signer=signer))
    ref = publisher.publish_partition(LAUNCH_KEY, make_partition(source), source).ref
    trusting = Trust(policy="require", trusted={"ci": signer.public_key})
    reader = open_store([TierSpec(location=str(root))], trust=trusting)
    assert reader.fetch_partitions([ref], cache).faults == ()
    revoking = Trust(
        policy="require", trusted=trusting.trusted, revoked={own: Revocation(key_id=own, reason="stolen")}
    )
    wary = open_store([TierSpec(location=str(root))], trust=revoking)
    with pytest.raises(UnusableCache, match=f"key {own} signed, which is revoked"):
        wary.fetch_partitions([ref], cache)


def test_single_blob_is_marked_with_every_key_that_may_have_named_it(root: Path, source: Path, cache: Path):
    signer, other = generate_key_pair("ci"), generate_key_pair("other")
    publisher = open_store([TierSpec(location=str(root))], trust=Trust(policy="require", signer=signer))
    publisher.publish_partition(LAUNCH_KEY, partition := make_partition(source), source)
    revoked = {key_id(other.public_key): Revocation(key_id=key_id(other.public_key), reason="old")}
    trusted = {"ci": signer.public_key, "other": other.public_key}
    reader = open_store(
        [TierSpec(location=str(root))], trust=Trust(policy="require", trusted=trusted, revoked=revoked)
    )
    reader.fetch_blob(partition.artifacts[0].sha256, cache / "f", cache_root=cache)
    assert [path.name for path in (cache / ".signers").iterdir()] == [key_id(signer.public_key)]
