"""One spelling of a JSON value, so that equal values have equal bytes.

Layout: UTF-8, keys sorted by code point, no white space, no escapes beyond JSON's own, no NaN or infinity.
"""

from __future__ import annotations

import json
from typing import Final

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: object, *, keys_are_text: bool = False) -> bytes:
    """Spell a JSON value canonically.

    Args:
        value: the value.
        keys_are_text: they are known to be, as those of a model whose fields say so; looking at each one
            takes a fifth of the time.

    Raises:
        TypeError: a key is no string (``json`` would turn 1 and "1" into the same key), or a value has no
            JSON form.
        ValueError: NaN, infinity, or text that is not Unicode.
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
