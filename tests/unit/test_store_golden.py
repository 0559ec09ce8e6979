"""The store tree of a launch, byte for byte: what stands in stores stays readable, and is written alike."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.stored import ENVIRONMENT, OFF, open_store, publish_launch
from warmrank.cache_store.signing.keyring import Signer
from warmrank.cache_store.signing.trust import Trust

OTHER = {**ENVIRONMENT, "cpu": "avx2"}
SIGNED = Trust(
    policy="require", signer=Signer(name="ci", private_key=Ed25519PrivateKey.from_private_bytes(bytes(32)))
)


def tree_digest(root: Path) -> tuple[int, str]:
    """Number of files below a store, and a digest of their names and bytes."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    lines = (
        f"{path.relative_to(root).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in files
    )
    return len(files), hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.parametrize(
    ("trust", "digest"),
    [
        (OFF, "0ed074bca44c8b7fa50e06f6c69d874b9d6790eeb49be302be31bb25f750d6dd"),
        (SIGNED, "806bdb72e0b60291403ae4cb297bdd7aa81fe5aa612ce10a897644a4d87a6542"),
    ],
    ids=["unsigned", "signed"],
)
def test_store_tree_of_a_launch_has_the_bytes_that_it_always_had(trust: Trust, digest: str, tmp_path: Path):
    publish_launch(
        open_store(tmp_path / "store", trust), tmp_path / "cache", world_size=2, elsewhere={1: OTHER}
    )
    assert tree_digest(tmp_path / "store") == (6, digest)
