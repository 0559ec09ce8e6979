"""Bytes that change while they lie in the store: never accepted, and repaired by the next publish."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.fault_actions import laid_out
from tests.support.sealed_launches import (
    DAY_S,
    GRACE_S,
    Evicting,
    fetch_laid,
    files_of,
    lay_launch,
    publish_laid,
)
from tests.support.stored import OFF, open_store, overwrite, stored
from warmrank.cache_store.digests import digest_bytes, digest_file
from warmrank.cache_store.errors import Conflict, EvictRefused, NotInStore, StoreError
from warmrank.cache_store.gc.inventory import references
from warmrank.cache_store.layout import blob_name, manifest_name
from warmrank.cache_store.records.manifest import LaunchRecord
from warmrank.cache_store.signing.keyring import generate_key_pair, key_id
from warmrank.cache_store.signing.trust import Trust
from warmrank.cache_store.steps import EVENT, Step
from warmrank.cache_store.store import Store

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


@pytest.mark.faults
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


@pytest.mark.faults
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


@pytest.mark.faults
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


EXAMPLES_A_ROUND = 5
KEYS = ("1" * 64, "2" * 64)
CONTENTS = st.sampled_from([b"one", b"two", b"three", b"four"])
CRASHES = (
    Step.PUBLISH_STARTED, Step.PUBLISH_BLOBS, Step.PUBLISH_MANIFEST, Step.PUBLISH_DONE, Step.COMMIT_CHECKED,
    Step.COMMIT_RECORD, Step.EVICT_MARKED, Step.EVICT_TRASHED, Step.EVICT_CHECKED, Step.EVICT_RESTORED,
    Step.EVICT_DELETED,
)  # fmt: skip


class Crashed(BaseException):
    """Stands in for the end of the process: nothing in the code may catch it."""


_crash_at: list[Step] = []
_hooked: list[bool] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == EVENT and _crash_at and arguments[0] == _crash_at[0].value:
        raise Crashed(arguments[0])


def crash_at(step: Step | None) -> None:
    """End the next verb that reaches ``step`` there; None lets all run. A hook cannot be taken away again."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hook)
    _crash_at[:] = [step] if step else []


class StoreStates(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.memory = Evicting(Path(self._directory.name))
        self.published: list[LaunchRecord] = []
        self.committed: dict[str, LaunchRecord] = {}
        self.needs: dict[tuple[str, str], set[str]] = {}
        self.pinned: set[str] = set()
        self.damaged: set[str] = set()  # and perhaps repaired since

    def teardown(self) -> None:
        crash_at(None)
        self._directory.cleanup()

    @rule(
        contents=st.tuples(CONTENTS, CONTENTS),
        key=st.sampled_from(KEYS),
        number=st.integers(0, 3),
        crash=st.none() | st.sampled_from(CRASHES[:4]),
    )
    def publish(self, contents: tuple[bytes, bytes], key: str, number: int, crash: Step | None) -> None:
        functions = dict(zip(("Llama.decode", "Llama.prefill"), contents, strict=True))

        def act() -> None:
            record = self.memory.publish(functions, number, key=key)
            ref = record.partitions[0]
            # An equal key has equal contents, or the first stays: what stands now is what was published.
            manifest = self.memory.store.manifest(ref.manifest_key, expected_sha256=ref.manifest_sha256)
            blobs = {blob_name(entry.sha256) for entry in manifest.artifacts}
            self.needs[ref.manifest_key, ref.manifest_sha256] = blobs
            self.published.append(record)

        self._run(crash, act)

    @precondition(lambda self: self.published)
    @rule(which=st.integers(0, 50), crash=st.none() | st.sampled_from(CRASHES[4:6]))
    def commit(self, which: int, crash: Step | None) -> None:
        record = self.published[which % len(self.published)]

        def act() -> None:
            try:
                name = self.memory.commit(record)
            except (NotInStore, Conflict):
                return  # evicted, or damaged, since it was published: the caller publishes again
            self.committed.setdefault(name, record)

        before = self.memory.names("launch/")
        if not self._run(crash, act):
            for name in self.memory.names("launch/") - before:
                self.committed.setdefault(name, record)

    @rule(seconds=st.sampled_from([1.0, GRACE_S / 2, GRACE_S + 1, DAY_S + GRACE_S, 10 * DAY_S]))
    def pass_time(self, seconds: float) -> None:
        self.memory.pass_time(seconds)

    @precondition(lambda self: self.committed)
    @rule(which=st.integers(0, 50))
    def pin(self, which: int) -> None:
        name = sorted(self.committed)[which % len(self.committed)]
        try:
            self.memory.store.pin(name.rpartition("/")[2])
        except StoreError:
            assert name in self.damaged or self._is_hurt(self.committed[name])
        else:
            self.pinned.add(name)

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        name = self.pinned.pop()
        assert self.memory.store.unpin(name.rpartition("/")[2]) == (name,)

    @precondition(lambda self: self.memory.names("launch/"))
    @rule(
        older=st.none() | st.sampled_from([0.0, DAY_S, 5 * DAY_S]),
        size=st.none() | st.sampled_from([0, 3000, 10_000]),
        keep=st.integers(0, 2),
        crash=st.none() | st.sampled_from(CRASHES[6:]),
    )
    def evict(self, older: float | None, size: int | None, keep: int, crash: Step | None) -> None:
        keepers = self._keepers(keep)
        before = self.memory.names("launch/")

        def act() -> None:
            try:
                self.memory.evict(older_than_s=older, max_bytes=size, keep=keep)
            except EvictRefused:
                assert self._unreadable(), "refused, and every document can be read"

        self._run(crash, act)
        gone = before - self.memory.names("launch/")
        assert not gone & (self.pinned | keepers)
        if older is None and size is None:
            assert not gone, "records went without a limit"
        for name in gone:
            self.committed.pop(name, None)

    @precondition(lambda self: not self.damaged and self.memory.names("launch/"))
    @rule()
    def space_is_freed(self) -> None:
        """Two runs, a grace apart each, leave nothing but what the remaining records need."""
        for _ in range(3):
            self.memory.pass_time(GRACE_S + 1)
            self.memory.evict()
        assert not self.memory.names("trash/")
        needed = {name for record in self._standing().values() for name in self._needs(record)}
        assert self.memory.names("cas/") | self.memory.names("ac/") == needed

    @precondition(lambda self: self.memory.names("cas/"))
    @rule(which=st.integers(0, 50), place=st.sampled_from(["cas/", "ac/", "launch/"]), gone=st.booleans())
    def damage(self, which: int, place: str, gone: bool) -> None:
        names = sorted(self.memory.names(place))
        if not names:
            return
        name = names[which % len(names)]
        files = self.memory.backend._files
        if gone:
            del files[name]
        else:
            files[name] = bytes([files[name][0] ^ 1]) + files[name][1:]
        self.damaged.add(name)

    @rule()
    def repair(self) -> None:
        self.memory.store.verify(repair=True)
        assert not self._unreadable()

    @precondition(lambda self: self._standing())
    @rule(which=st.integers(0, 50))
    def fetch(self, which: int) -> None:
        standing = self._standing()
        record = standing[sorted(standing)[which % len(standing)]]
        is_hurt = self._is_hurt(record)
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory) / "cache"
            outcome = self.memory.store.fetch_partitions(record.partitions, root)
            files = [path for path in root.rglob("compiled_module*") if path.is_file()]
            got = {blob_name(digest_file(path).sha256) for path in files}
        assert bool(outcome.faults) <= is_hurt, str(outcome.faults)
        assert got == (set() if outcome.faults else self._blobs(record))

    @invariant()
    def no_committed_launch_dangles(self) -> None:
        standing = self._standing()
        for name in self.pinned:
            assert name in standing or name in self.damaged
        for name, record in standing.items():
            if not self._is_hurt(record) and name not in self.damaged:
                assert self._is_whole(name), f"{name} dangles"

    def _run(self, crash: Step | None, act: Any) -> bool:
        """Whether ``act`` ended, and did not crash."""
        crash_at(crash)
        try:
            act()
        except Crashed:
            return False
        finally:
            crash_at(None)
        return True

    def _standing(self) -> dict[str, LaunchRecord]:
        names = self.memory.names("launch/")
        return {name: record for name, record in self.committed.items() if name in names}

    def _blobs(self, record: LaunchRecord) -> set[str]:
        ref = record.partitions[0]
        return self.needs[ref.manifest_key, ref.manifest_sha256]

    def _needs(self, record: LaunchRecord) -> set[str]:
        return {manifest_name(record.partitions[0].manifest_key), *self._blobs(record)}

    def _is_hurt(self, record: LaunchRecord) -> bool:
        """Whether it needs what was damaged, and what was not put again as it was."""
        files = self.memory.backend._files
        wanted = {blob: blob.rpartition("/")[2] for blob in self._blobs(record)}
        ref = record.partitions[0]
        wanted[manifest_name(ref.manifest_key)] = ref.manifest_sha256
        touched = wanted.keys() & self.damaged
        return any(digest_bytes(files.get(name, b"?")).sha256 != wanted[name] for name in touched)

    def _unreadable(self) -> list[str]:
        files = dict(self.memory.backend._files)
        found = []
        for name, sealed in files.items():
            if name.startswith(("ac/", "launch/")):
                try:
                    references(name, sealed)
                except StoreError:
                    found.append(name)
        return found

    def _is_whole(self, name: str) -> bool:
        """Everything that it needs stands, or comes back from the trash for whoever asks."""
        at_hand = self.memory.names("")
        former = {other.split("/", 2)[2] for other in at_hand if other.startswith("trash/")}
        return self._needs(self.committed[name]) <= at_hand | former

    def _keepers(self, keep: int) -> set[str]:
        kept: set[str] = set()
        for key in KEYS:
            names = [name for name, record in self._standing().items() if record.launch_key == key]
            names.sort(key=lambda name: self.committed[name].created, reverse=True)
            kept.update(names[:keep])
        return kept


def test_store_agrees_with_its_model(fault_rounds: int):
    run_state_machine_as_test(
        StoreStates,
        settings=settings(
            max_examples=EXAMPLES_A_ROUND * fault_rounds,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
