"""A client that sees the names of others late, as on network file systems, never does a wrong thing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.backends import SlowEyes
from tests.support.fault_child import laid_out
from tests.support.sealed_launches import fetch_laid, files_of, lay_launch, publish_laid
from tests.support.stored import FUNCTIONS, LAUNCH_KEY, OFF, make_partition, open_store
from warmrank.cache_store.backends.directory import DirectoryBackend
from warmrank.cache_store.errors import StoreError
from warmrank.cache_store.store import Store

pytestmark = pytest.mark.faults

WORLD_SIZE = 2
BLIND_LOOKS = (0, 1, 2, 3, 5, 8)
ENOUGH_ATTEMPTS = 60


def client(root: Path, blind_looks: int) -> Store:
    return Store(SlowEyes(DirectoryBackend(root), blind_looks), trust=OFF, location=str(root))


@pytest.mark.parametrize("blind_looks", BLIND_LOOKS)
def test_launch_that_another_node_published_becomes_visible_whole(room, blind_looks, fault_rounds):
    """A fetch is a miss until everything is visible, and then exactly what was published."""
    for seed in range(fault_rounds):
        root, cache = room / f"store{seed}", room / f"cache{seed}"
        source = room / f"source{seed}"
        publish_laid(open_store(root), source, seed, lay_launch(source, seed, WORLD_SIZE))
        reader = client(root, blind_looks)
        expected = files_of(seed, WORLD_SIZE)
        for _ in range(ENOUGH_ATTEMPTS):
            num_partitions, errors = fetch_laid(reader, cache, seed)
            assert all(data == expected[name] for name, data in laid_out(cache).items())
            if num_partitions and not errors:
                break
        assert laid_out(cache) == expected
        assert open_store(root).verify().faults == ()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("blind_looks", BLIND_LOOKS)
def test_publishers_that_do_not_see_each_other_agree(room, blind_looks, fault_rounds):
    """Two publish one launch by turns, each blind to the other: everything is there once, and whole."""
    for seed in range(fault_rounds):
        root = room / f"store{seed}"
        clients = [client(root, blind_looks) for _ in range(2)]
        sources = [room / f"source{seed}-{number}" for number in range(2)]
        manifests = [lay_launch(source, seed, WORLD_SIZE) for source in sources]
        randomness = random.Random(seed)
        for attempt in range(ENOUGH_ATTEMPTS):
            number = randomness.randrange(2)
            try:
                publish_laid(clients[number], sources[number], seed, manifests[number])
            except StoreError:
                assert attempt < ENOUGH_ATTEMPTS - 10
        report = open_store(root).verify()
        assert (report.faults, report.num_manifests) == ((), WORLD_SIZE)
        assert list((root / "quarantine").glob("*")) == []


def test_publisher_that_does_not_see_the_first_one_leaves_it_in_place(room):
    """Other bytes under one key: the first publisher's stay, also when the second looked too early to see."""
    root = room / "store"
    first = open_store(root).publish_partition(LAUNCH_KEY, make_partition(room / "a"), room / "a")
    other = make_partition(room / "b", functions=FUNCTIONS | {"Llama.decode": b"different"})
    second = client(root, 1).publish_partition(LAUNCH_KEY, other, room / "b")
    assert (second.created, second.ref, second.conflicts) == (False, first.ref, ("Llama.decode",))
    assert open_store(root).verify().faults == ()
