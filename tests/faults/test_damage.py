"""Bytes that change while they lie in the store: never accepted, and repaired by the next publish."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fault_child import laid_out
from tests.support.sealed_launches import fetch_laid, files_of, lay_launch, publish_laid
from tests.support.stored import OFF, open_store, overwrite, stored
from warmrank.cache_store.signing.keyring import generate_key_pair, key_id
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.store import Store

pytestmark = pytest.mark.faults

SEED = 6
WORLD_SIZE = 2
DAMAGES_A_ROUND = 50  # half of them under each trust policy
KINDS = ("cas", "ac", "launch")
Damage = Callable[[random.Random, bytes, bytes], bytes | None]


def flip(randomness: random.Random, data: bytes, other: bytes) -> bytes:
    if not data:
        return b"x"
    flipped = bytearray(data)
    flipped[randomness.randrange(len(data))] ^= 1 << randomness.randrange(8)
    return bytes(flipped)


def truncate(randomness: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: randomness.randrange(len(data) or 1)]


def zero(randomness: random.Random, data: bytes, other: bytes) -> bytes:
    start = randomness.randrange(len(data) or 1)
    end = min(len(data), start + randomness.choice((1, 16, 512, 4096)))
    return data[:start] + bytes(end - start) + data[end:]


def extend(randomness: random.Random, data: bytes, other: bytes) -> bytes:
    return data + randomness.randbytes(randomness.choice((1, 4096)))


def swap(randomness: random.Random, data: bytes, other: bytes) -> bytes:
    return other


def delete(randomness: random.Random, data: bytes, other: bytes) -> None:
    return None


DAMAGES: dict[str, Damage] = {
    damage.__name__: damage for damage in (flip, truncate, zero, extend, swap, delete)
}


def trusts() -> dict[str, Trust]:
    return {"off": OFF, "require": Trust(policy="require", signer=generate_key_pair("ci"))}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("policy", ["off", "require"])
def test_damage_is_never_accepted_and_the_next_publish_repairs_it(room, policy, fault_rounds):
    """One to three files of any kind damaged in any way; a fetch gives the right bytes or an error.

    A blob of the right size and the wrong bytes is found when it is read. So a fetch that stops at another
    fault before leaves it to the next fetch, and each fault costs one round of publish and fetch at most.
    """
    trust = trusts()[policy]
    good, root, cache, source = (room / name for name in ("good", "store", "cache", "source"))
    manifests = lay_launch(source, SEED, WORLD_SIZE)
    publish_laid(open_store(good, trust), source, SEED, manifests)
    expected = files_of(SEED, WORLD_SIZE)
    randomness = random.Random(policy)
    for turn in range(DAMAGES_A_ROUND * fault_rounds // 2):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(good, root)
        what = [damage_one(root, randomness) for _ in range(randomness.randint(1, 3))]
        for attempt in range(len(what) + 1):
            shutil.rmtree(cache, ignore_errors=True)
            errors = take_what_is_left(open_store(root, trust), cache)
            assert all(data == expected[name] for name, data in laid_out(cache).items()), (turn, what)
            if not errors:
                break
            assert attempt < len(what), (turn, what, errors)
            publish_laid(open_store(root, trust), source, SEED, manifests)
        assert laid_out(cache) == expected, (turn, what)


def test_record_that_seems_signed_by_a_stranger_makes_way_for_the_same_record(room):
    """A bit of the signer's id flipped: not damage that a reader could prove, but no launch either."""
    signer = generate_key_pair("ci")
    trust = Trust(policy="require", signer=signer)
    source = room / "source"
    manifests = lay_launch(source, SEED, WORLD_SIZE)
    publish_laid(open_store(room / "store", trust), source, SEED, manifests)
    (record,) = stored(room / "store", "launch")
    own_id = key_id(signer.public_key).encode()
    overwrite(record, record.read_bytes().replace(own_id, bytes([own_id[0] ^ 1]) + own_id[1:]))
    assert take_what_is_left(open_store(room / "store", trust), room / "cache") == ["no launch"]
    publish_laid(open_store(room / "store", trust), source, SEED, manifests)
    assert take_what_is_left(open_store(room / "store", trust), room / "cache") == []


def damage_one(root: Path, randomness: random.Random) -> str:
    """Damage a random file; every kind of file is as likely as another."""
    files = [path for kind in KINDS for path in [stored(root, kind)] if path]
    path = randomness.choice(randomness.choice(files))
    other = randomness.choice([file for group in files for file in group]).read_bytes()
    name = randomness.choice(list(DAMAGES))
    data = DAMAGES[name](randomness, path.read_bytes(), other)
    if data is None:
        path.unlink()
    else:
        overwrite(path, data)
    return f"{name} {path.relative_to(root)}"


def take_what_is_left(store: Store, cache: Path) -> list[str]:
    """Fetch all that the store offers, as a launch would; the errors."""
    num_partitions, errors = fetch_laid(store, cache, SEED)
    return [str(error) for error in errors] if num_partitions else ["no launch"]


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_verify_notices_every_damage(room, kind, name, fault_rounds):
    """`verify` reads all and names what is wrong; a file that is gone is wrong where another needs it."""
    good = room / "good"
    source = room / "source"
    publish_laid(open_store(good), source, SEED, lay_launch(source, SEED, WORLD_SIZE))
    randomness = random.Random(f"{kind} {name}")
    for turn in range(fault_rounds):
        root = room / f"store{turn}"
        shutil.copytree(good, root)
        path = randomness.choice(stored(root, kind))
        before = path.read_bytes()
        other = next(
            file.read_bytes() for file in stored(root, kind)[::-1] if file != path or kind == "launch"
        )
        data = DAMAGES[name](randomness, before, other)
        if data is None:
            path.unlink()
        elif data != before:
            overwrite(path, data)
        report = open_store(root).verify()
        gone = kind == "launch" and data is None
        assert bool(report.faults) == (data != before and not gone)
