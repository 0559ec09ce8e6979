"""Canonical JSON, and keys: digests of named components in it.

A key depends on the names and values of its components only, so a miss can be explained. Canonical JSON is
UTF-8, keys sorted by code point, no white space, no escapes beyond JSON's own, no NaN or infinity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: object, *, keys_are_text: bool = False) -> bytes:
    """Spell a JSON value canonically.

    Raises ``TypeError`` for a key that is no string (``json`` would turn 1 and "1" into the same key), unless
    ``keys_are_text`` is known: looking at each takes a fifth of the time; ``ValueError`` for NaN or infinity.
    """
    if not keys_are_text:
        _check_keys(value)
    return _ENCODER.encode(value).encode("utf-8")


def _check_keys(value: object) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key of canonical JSON is a string, not {key!r}")
            if type(item) is not str:  # nearly all are, and a call for each takes long
                _check_keys(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            if type(item) is not str:
                _check_keys(item)


def key_of(components: Mapping[str, str]) -> str:
    """Hash named components, all text: sha256 hex of their canonical JSON."""
    for name, value in components.items():
        if not isinstance(value, str):
            raise TypeError(f"component {name!r} is a string, not {type(value).__name__}")
    return hashlib.sha256(canonical_json(dict(components))).hexdigest()
