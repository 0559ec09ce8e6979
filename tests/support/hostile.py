"""Documents that somebody bad, or a broken program, might put into a store."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from warmrank.cache_store.canonical import canonical_json
from warmrank.cache_store.digests import digest_bytes

Json = Any
ODD_VALUES: tuple[Json, ...] = (
    None, True, -1, 0, 1 << 64, 2.0, "", "..", "/etc/passwd", "a\\b", "\x00", "\u202e", "unsigned",
    "x" * 5000, [], {}, [[]], {"mode": 0o4755},
)  # fmt: skip


def split(sealed: bytes) -> tuple[dict[str, Json], bytes]:
    """Header and payload of an envelope."""
    line, _, payload = sealed.partition(b"\n")
    header = json.loads(line)
    assert isinstance(header, dict)
    return header, payload


def joined(header: Mapping[str, Json], payload: bytes, *, fit: bool = True) -> bytes:
    """An envelope of these; with ``fit`` the header announces this very payload, as a careful forger's."""
    if fit:
        digest = digest_bytes(payload)
        header = {**header, "payload": {"sha256": digest.sha256, "size_bytes": digest.size_bytes}}
    return canonical_json(header) + b"\n" + payload


def with_header(sealed: bytes, **changes: Json) -> bytes:
    """The envelope with other header fields."""
    header, payload = split(sealed)
    return joined({**header, **changes}, payload)


def with_signature(sealed: bytes, **changes: Json) -> bytes:
    """The envelope with other fields of its signature."""
    header, payload = split(sealed)
    return joined({**header, "signature": {**header["signature"], **changes}}, payload)


def with_payload(sealed: bytes, payload: bytes) -> bytes:
    """The envelope around another payload."""
    return joined(split(sealed)[0], payload)


def mutated_json(value: Json, chance: random.Random) -> Json:
    """A JSON value with one thing in it replaced, removed, added, doubled or moved."""
    value = copy.deepcopy(value)
    places = list(_containers(value))
    container = chance.choice(places)
    if isinstance(container, dict):
        _mutate_object(container, chance)
    else:
        _mutate_array(container, chance)
    return value


def _containers(value: Json) -> list[Json]:
    found = [value] if isinstance(value, dict | list) else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        found += _containers(item)
    return found


def _mutate_object(container: dict[str, Json], chance: random.Random) -> None:
    keys = sorted(container)
    if not keys or chance.random() < 0.2:
        container[chance.choice(("mode", "link", "format", "x"))] = chance.choice(ODD_VALUES)
        return
    key = chance.choice(keys)
    kind = chance.randrange(4)
    if kind == 0:
        del container[key]
    elif kind == 1:
        container[key] = chance.choice(ODD_VALUES)
    elif kind == 2:
        container[key] = _near(container[key], chance)
    else:
        other = chance.choice(keys)
        container[key], container[other] = container[other], container[key]


def _mutate_array(container: list[Json], chance: random.Random) -> None:
    kind = chance.randrange(3)
    if not container or kind == 0:
        container.append(chance.choice(ODD_VALUES))
    elif kind == 1:
        container.append(copy.deepcopy(chance.choice(container)))
    else:
        container.pop(chance.randrange(len(container)))


def _near(value: Json, chance: random.Random) -> Json:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + chance.choice((-1, 1, 1 << 40))
    if isinstance(value, str) and value:
        at = chance.randrange(len(value))
        return (
            value[:at] + chance.choice(("", "/", "..", "0", "A", "\n", value[at].upper())) + value[at + 1 :]
        )
    return chance.choice(ODD_VALUES)


def flip(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """One to eight bits flipped."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def truncate(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """The end, or the start, missing."""
    at = chance.randrange(len(data))
    return data[:at] if chance.random() < 0.8 else data[at:]


def extend(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """Something put in."""
    at = chance.choice((0, len(data), chance.randrange(len(data)), data.index(b"\n")))
    return data[:at] + chance.choice((b" ", b"\n", b"\0", chance.randbytes(9), data)) + data[at:]


def splice(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """Part of one document in another's place."""
    other = chance.choice(others)
    start = chance.randrange(len(data))
    end = chance.randint(start, len(data))
    return data[:start] + other[start:end] + data[end:]


def cross(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """The header, the signature, or one field of one document with the rest of another."""
    header, payload = split(data)
    other, other_payload = split(chance.choice(others))
    kind = chance.randrange(3)
    if kind == 0:
        return joined(header, other_payload, fit=chance.random() < 0.8)
    field = "signature" if kind == 1 else chance.choice(sorted(header))
    return joined({**header, field: other[field]}, payload, fit=chance.random() < 0.8)


def change_header(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """One thing in the header is another, canonically spelled or not."""
    header, payload = split(data)
    changed = mutated_json(header, chance)
    if chance.random() < 0.5:
        return canonical_json(changed) + b"\n" + payload
    return json.dumps(changed).encode() + b"\n" + payload


def change_payload(data: bytes, others: list[bytes], chance: random.Random) -> bytes:
    """One thing in the document is another, and the header fits it."""
    header, payload = split(data)
    return joined(header, canonical_json(mutated_json(json.loads(payload), chance)))


MUTATIONS: tuple[Callable[[bytes, list[bytes], random.Random], bytes], ...] = (
    flip, truncate, extend, splice, cross, change_header, change_payload,
)  # fmt: skip
