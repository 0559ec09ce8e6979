"""From what a config says of trust to what every node uses; on the driver, when the config is loaded.

Invariants: paths are absolute, the name of a key has become its file, and what the driver's keyring revokes
is revoked on every node, whether the keyring stands there or not. The policy that a config leaves open is
decided later, by `orchestrator.store.stores`, because that looks at the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from warmrank.cache_store.signing.trust import TrustPolicy
from warmrank.cache_store.signing.trust_policy import PolicyChoice, choose_policy
from warmrank.orchestrator.bounded import all_within
from warmrank.orchestrator.config.store import TrustConfig
from warmrank.orchestrator.errors import BadArgument
from warmrank.worker.settings import settings

logger = logging.getLogger(__name__)

LOOK_S = 0.9
"""Longest look at a place: it counts to the 5 s that a dead store may cost a launch."""


def locate_trust(trust: TrustConfig, *, base: Path) -> TrustConfig:
    """Make paths absolute, from ``base``, and take over what the keyring revokes.

    Raises:
        cache_store.errors.Corrupt: the keyring is damaged.
        BadArgument: the keyring that the config names is not there.
        cache_store.errors.UnusableCache: others can write it.
    """
    keyring = _keyring(trust, base)
    return trust.model_copy(
        update={
            "signing_key": _signing_key(trust, keyring, base),
            "trusted_keys": {name: absolute(path, base) for name, path in trust.trusted_keys.items()},
            "keyring": keyring,
            "revoked": trust.revoked if trust.policy == "off" else _revoked(trust, keyring),
        }
    )


def warn_of_off(trust: TrustConfig, locations: Iterable[str]) -> None:
    """Log, for each place that others can write, that a config turns signatures off there."""
    if trust.policy != "off":
        return
    for location, choice in _choices(locations).items():
        if choice.policy == "require":
            logger.warning(
                "store.trust.policy is off for %s, but %s: who can write there decides what code runs",
                location,
                choice.reason,
            )


def choice_of(trust: TrustConfig, locations: Iterable[str]) -> tuple[TrustPolicy, str]:
    """The policy that a config gives, else the strictest that one of the store's places asks for.

    Returns:
        The policy, and the place with the reason why it asks for signatures; empty where none does, or the
        config gives the policy.
    """
    if trust.policy is not None:
        return trust.policy, ""
    for location, choice in _choices(locations).items():
        if choice.policy == "require":
            logger.info("Trust policy require: %s: %s", location, choice.reason)
            return "require", f"{location}: {choice.reason}"
    return "off", ""


def _choices(locations: Iterable[str]) -> dict[str, PolicyChoice]:
    """What is chosen for each place, of which one may lie on a network disk that went away."""
    places = tuple(locations)
    found = all_within([partial(choose_policy, place) for place in places], timeout_s=LOOK_S)
    silent = PolicyChoice(policy="require", reason=f"it did not answer within {LOOK_S:g} s")
    return {place: choice or silent for place, choice in zip(places, found, strict=True)}


def _keyring(trust: TrustConfig, base: Path) -> Path | None:
    if trust.keyring is None:
        usual = settings().keyring
        return usual if usual is not None and usual.is_dir() else None
    keyring = absolute(trust.keyring, base)
    if not keyring.is_dir():
        raise _missing_keyring("store.trust.keyring", f"no directory at {keyring}")
    return keyring


def _signing_key(trust: TrustConfig, keyring: Path | None, base: Path) -> Path | None:
    """The private key's file: as it is named, or of that name in the keyring."""
    key = trust.signing_key
    if key is None or not trust.names_a_key:
        return key and absolute(key, base)
    if keyring is None:
        raise _missing_keyring(f"signing key {key}", "no keyring")
    return keyring / f"{key}.pem"


def _revoked(trust: TrustConfig, keyring: Path | None) -> tuple[str, ...]:
    from warmrank.cache_store.signing.keyring import read_keyring

    known = read_keyring(keyring).revoked if keyring else {}
    return tuple(sorted({*trust.revoked, *known}))


def _missing_keyring(where: str, actual: str) -> BadArgument:
    return BadArgument(
        f"{where}: expected a directory of keys, as it is at ~/.config/warmrank/keys where none is named; "
        f"found {actual}; make a key with warmrank keys generate, or correct store.trust"
    )


def absolute(path: Path, base: Path) -> Path:
    """A path as a config gives it, as the one that it means."""
    return base / path.expanduser()
