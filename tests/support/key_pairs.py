"""Key files where a test wants them, such as those that a configuration names."""

from __future__ import annotations

from pathlib import Path

from warmrank.cache_store.signing.signing_keys import Signer, save_private_key, save_public_key


def save_key_pair(signer: Signer, directory: Path) -> tuple[Path, Path]:
    """Write ``<name>.pem`` and ``<name>.pub.pem``; the private key's path comes first."""
    private_path, public_path = directory / f"{signer.name}.pem", directory / f"{signer.name}.pub.pem"
    save_private_key(signer, private_path)
    save_public_key(signer.public_key, public_path)
    return private_path, public_path
