"""A near and a far place as one store, their opening, and places that do not answer."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from tests.support.backends import NearAndFar, WaywardBackend, new_file, read, unavailable
from tests.support.stored import FUNCTIONS, OFF, PATIENT_S, blob_path, publish_launch, stored
from warmrank.cache_store.backends.backend import GuardedFile
from warmrank.cache_store.backends.deadline import Call, Ticks, Tier, TierMode, circuit_of
from warmrank.cache_store.backends.places import Places as Tiers
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, NewerFormat, NotInStore, StoreUnavailable
from warmrank.cache_store.gc.evict import EvictPolicy
from warmrank.cache_store.layout import BLOBS, blob_name, pin_name
from warmrank.cache_store.store import TierSpec, open_store

pytestmark = pytest.mark.usefixtures("fresh_process")

DOCUMENT = "ac/ab/one"
BLOB = blob_name(digest_bytes(b"blob").sha256)


@pytest.mark.parametrize(("name", "first"), [(BLOB, b"near"), (DOCUMENT, b"far")])
def test_blob_is_read_from_the_nearest_place_and_document_from_the_farthest(places, name, first):
    places.near.put_new([new_file(name, b"near")])
    places.far.put_new([new_file(name, b"far")])
    assert read(places.view(), name) == first


def test_put_reaches_every_writable_place_the_farthest_first(places):
    order: list[str] = []
    places.near.on_put = lambda _: order.append("near")
    places.far.on_put = lambda _: order.append("far")
    assert places.view().put_new([new_file(DOCUMENT, b"data")]) == (DOCUMENT,)
    assert order == ["far", "near"]
    assert (read(places.near, DOCUMENT), read(places.far, DOCUMENT)) == (b"data", b"data")


@pytest.mark.parametrize("name", [BLOB, DOCUMENT])
@pytest.mark.parametrize("holder", ["near", "far"])
def test_file_of_one_place_only_is_found(places, holder, name):
    getattr(places, holder).put_new([new_file(name, b"data")])
    view = places.view()
    assert read(view, name) == b"data"
    assert list(view.stat([name])) == [name]


def test_stat_and_listing_do_without_a_failing_place(places):
    places.near.put_new([new_file(DOCUMENT, b"near")])
    places.far.failure = unavailable()
    view = places.view()
    assert list(view.stat([DOCUMENT])) == [DOCUMENT]
    assert [info.name for info in view.list("ac/")] == [DOCUMENT]


@pytest.mark.parametrize("failing", ["near", "far"])
def test_put_goes_on_where_one_place_fails(places, failing):
    getattr(places, failing).failure = unavailable()
    view = places.view()
    assert view.put_new([new_file(DOCUMENT, b"data")]) == (DOCUMENT,)
    assert [f"store {failing}" in line for line in view.problems] == [True]


@pytest.mark.parametrize(("near", "far"), [("required", "rw"), ("rw", "required")])
def test_put_where_a_required_place_fails_is_an_error_that_says_so(places, near, far):
    (places.near if near == "required" else places.far).failure = unavailable()
    with pytest.raises(StoreUnavailable, match="No space left") as caught:
        places.view(near, far).put_new([new_file(DOCUMENT, b"data")])
    assert caught.value.required


@pytest.mark.parametrize(("name", "first"), [(BLOB, "near"), (DOCUMENT, "far")])
def test_damaged_file_goes_into_the_quarantine_of_its_place_and_the_next_is_read(places, name, first):
    second = "far" if first == "near" else "near"
    getattr(places, first).put_new([new_file(name, b"????")])
    getattr(places, second).put_new([new_file(name, b"good")])

    def use(file: GuardedFile) -> bytes:
        if (data := file.read()) == b"????":
            raise Corrupt(what=name, where="here", expected="good", actual="????")
        return data

    assert places.view().read(name, use, repairs=False) == b"good"
    assert getattr(places, first).stat([name])
    assert places.view().read(name, use) == b"good"
    assert [len(place.stat([name])) for place in (places.near, places.far)].count(1) == 1
    assert len(list(getattr(places, first).list("quarantine/"))) == 2
    getattr(places, second).failure = unavailable()
    getattr(places, first).put_new([new_file(name, b"????")])
    with pytest.raises(Corrupt):
        places.view().read(name, use)


@pytest.mark.parametrize("name", [BLOB, DOCUMENT])
@pytest.mark.parametrize("repairs", [True, False])
def test_one_bad_answer_is_asked_again_and_moves_nothing(places, monkeypatch, name, repairs):
    places.far.put_new([new_file(name, b"good")])
    answers = [b"<html>"]
    real = places.far.open
    monkeypatch.setattr(places.far, "open", lambda name: io.BytesIO(answers.pop()) if answers else real(name))

    def use(file: GuardedFile) -> bytes:
        if (data := file.read()) != b"good":
            raise Corrupt(what=name, where="here", expected="good", actual=repr(data))
        return data

    assert places.view().read(name, use, repairs=repairs) == b"good"
    assert (list(places.far.stat([name])), list(places.far.list("quarantine/"))) == ([name], [])


DECODE = blob_name(digest_bytes(FUNCTIONS["Llama.decode"]).sha256)


@pytest.fixture
def both(places: NearAndFar, tmp_path: Path) -> NearAndFar:
    """Both places, which hold one launch."""
    publish_launch(places.store(), tmp_path / "cache")
    return places


@pytest.fixture
def record(both: NearAndFar) -> str:
    """The name of its record."""
    (info,) = both.far.list("launch/")
    return info.name


@pytest.mark.parametrize(
    ("kind", "how"),
    [(kind, "damaged") for kind in ("cas/", "ac/", "launch/")]
    + [(kind, "missing") for kind in ("cas/", "ac/")],
)
def test_repair_takes_what_another_place_has_whole(both, kind, how):
    name = next(info.name for info in both.far.list(kind))
    good = both.near.open(name).read()
    both.far.move(name, None)
    if how == "damaged":
        both.far.put_new([new_file(name, good[:-1] + b"?")])
    report = both.store().verify(repair=True)
    assert f"far: {name}: put again from another place of the store" in report.repairs
    assert both.far.open(name).read() == good
    assert both.store().verify().faults == ()


@pytest.mark.parametrize("data", [b"damaged", b"X" * len(FUNCTIONS["Llama.decode"])])
@pytest.mark.parametrize("verb", ["fetch", "fetch_blob"])
def test_damaged_blob_in_a_read_only_near_place_hides_no_good_one(both, tmp_path, data, verb):
    both.near.move(DECODE, None)
    both.near.put_new([new_file(DECODE, data)])
    store, cache = both.store(near="ro"), tmp_path / "node"
    if verb == "fetch":
        (record,) = store.launches()
        assert store.fetch_partitions(record.partitions, cache).faults == ()
    else:
        path = store.fetch_blob(DECODE.rpartition("/")[2], cache / "f", cache_root=cache)
        assert path.read_bytes() == FUNCTIONS["Llama.decode"]


def test_what_the_farthest_place_lacks_is_a_fault_though_a_nearer_one_has_it(both):
    both.far.move(DECODE, None)
    (fault,) = both.store().verify().faults
    assert fault.startswith("far: ")
    assert "missing" in fault


def test_near_place_need_not_be_whole_though_the_farthest_is_away(tmp_path):
    near, far = (TierSpec(location=str(tmp_path / name), answer_s=PATIENT_S) for name in ("near", "far"))
    publish_launch(open_store([near, far], trust=OFF), tmp_path / "cache", world_size=2)
    stored(tmp_path / "near", "ac")[0].unlink()
    blob_path(tmp_path / "near", FUNCTIONS["Llama.decode"]).unlink()
    (tmp_path / "far").rename(tmp_path / "away")
    (tmp_path / "far").write_bytes(b"")  # which is no directory
    store = open_store([near, far], trust=OFF)
    (fault,) = store.verify().faults
    assert fault.startswith(far.location)
    for path in stored(tmp_path / "near", "launch"):
        path.unlink()
    done = store.evict(EvictPolicy(grace_s=0))
    assert [(report.location, report.taken) for report in done.reports] == [(near.location, ())]
    assert [state.location for state in done.faults] == [far.location]


def test_pin_that_fails_leaves_none_in_any_place(both, record):
    for place in (both.near, both.far):
        for info in list(place.list("ac/")):
            place.move(info.name, None)
    with pytest.raises(NotInStore):
        both.store().pin(record.rpartition("/")[2])
    assert both.store().pins() == ()


class SilentAtBlobs(WaywardBackend):
    """Hangs, at pings too, from the first blob on that is read."""

    def open(self, name: str) -> BinaryIO:
        self.hangs = self.hangs or name.startswith(BLOBS)
        return super().open(name)


class _BadSector(io.BytesIO):
    def read(self, size: int | None = -1, /) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_file_that_the_near_place_cannot_read_is_read_from_the_far_one(places, monkeypatch):
    for place in (places.near, places.far):
        place.put_new([new_file(BLOB, b"blob")])
    monkeypatch.setattr(places.near, "open", lambda _: _BadSector())
    view = places.view()
    assert read(view, BLOB) == b"blob"
    assert [("store near" in line, os.strerror(errno.EIO) in line) for line in view.problems] == [
        (True, True)
    ]
    assert [tier.circuit.is_open for tier in view.tiers] == [False, False]


def test_fetch_goes_on_where_the_near_place_falls_silent_among_blobs(both, tmp_path):
    whole, both.near = both.near, SilentAtBlobs()
    both.near.put_new([new_file(info.name, whole.open(info.name).read()) for info in whole.list(BLOBS)])
    store = both.store(answer_s=0.5)
    (record,) = store.launches()
    outcome = store.fetch_partitions(record.partitions, tmp_path / "node")
    both.near.thaw()
    assert (outcome.faults, [tier.state for tier in store.tiers]) == ((), ["away", "used"])


def test_pin_and_unpin_act_on_every_place(both, record):
    store, name = both.store(), pin_name(record)
    store.pin(record.rpartition("/")[2])
    assert [len(place.stat([name])) for place in (both.near, both.far)] == [1, 1]
    assert store.unpin(record.rpartition("/")[2]) == (record,)
    assert [len(place.stat([name])) for place in (both.near, both.far)] == [0, 0]


def test_unknown_scheme_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreUnavailable, match=r"ftp://bucket/x"):
        open_store([TierSpec(location="ftp://bucket/x")], trust=OFF)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [("", Corrupt, "FORMAT"), ('{"format":9}', NewerFormat, "format 9.*upgrade warmrank")],
    ids=["damaged", "newer"],
)
@pytest.mark.parametrize("mode", ["ro", "rw", "required"])
def test_place_that_cannot_be_read_as_a_store_is_left_out_unless_required(tmp_path, mode, text, error, said):
    near, far = (TierSpec(location=str(tmp_path / name)) for name in ("near", "far"))
    open_store([near], trust=OFF)
    path = Path(near.location, "FORMAT")
    path.chmod(0o600)
    path.write_text(text)
    open_store([far], trust=OFF)
    specs = [replace(near, mode=mode), far]
    if mode == "required":
        with pytest.raises(error, match=said):
            open_store(specs, trust=OFF)
        return
    store = open_store(specs, trust=OFF)
    assert [(tier.location, tier.state) for tier in store.tiers] == [
        (far.location, "used"),
        (near.location, "away"),
    ]
    assert [near.location in line for line in store.problems] == [True]
    assert bool(store.behind) == (mode == "rw")
    assert not circuit_of(near.location, {}).is_open


class SlowPlaces:
    """A near place that answers and a far one that may hang, in fake time.

    Ticks of the far one take no time; `slept_s` is how much would have passed, as long as it `passes`: once
    a call of it hangs, so that a busy machine is not taken for silence. The near one has time.
    """

    def __init__(self) -> None:
        self.fast, self.slow = WaywardBackend(), WaywardBackend()
        self.slept_s = 0.0
        self.passes: Callable[[], bool] = self.slow.hung.is_set
        self.near = Tier(name="near", backend=self.fast, is_farthest=False, ticks=Ticks(clock=lambda: 0.0))
        self.far = Tier(
            name="far", backend=self.slow, ticks=Ticks(clock=lambda: self.slept_s, wait=self._wait)
        )

    def view(self, far: TierMode = "rw") -> Tiers:
        self.far.mode = far
        return Tiers([self.near, self.far])

    def pass_until(self, seconds: float) -> None:
        while self.slept_s < seconds:
            threading.Event().wait(0.001)

    def _wait(self, call: Call[object], timeout_s: float) -> bool:
        if call.wait(0.001):
            return True
        if self.passes():
            self.slept_s += timeout_s
        return False


@pytest.fixture
def slow_places() -> Iterator[SlowPlaces]:
    made = SlowPlaces()
    yield made
    made.slow.thaw()


def put_document(backend: Tiers | Tier) -> tuple[str, ...]:
    return backend.put_new([new_file(DOCUMENT, b"data")])


def test_hanging_place_among_others_is_left_out_of_a_verb(slow_places):
    slow_places.slow.hangs = True
    view = slow_places.view()
    assert put_document(view) == (DOCUMENT,)
    assert slow_places.fast.stat([DOCUMENT])
    assert [tier.state.state for tier in view.tiers] == ["used", "away"]
    assert view.problems == [str(slow_places.far.away())]


def test_place_that_is_left_alone_is_asked_no_more(slow_places):
    slow_places.slow.hangs = True
    put_document(slow_places.view())
    asked = len(slow_places.slow.calls)
    slow_places.passes = lambda: False  # a wait would last for ever
    view = slow_places.view()
    view.stat([DOCUMENT])
    assert len(slow_places.slow.calls) == asked
    assert len(view.problems) == 1


def test_required_place_that_hangs_is_an_error_that_says_so(slow_places):
    slow_places.slow.hangs = True
    with pytest.raises(StoreUnavailable, match="required store far") as caught:
        put_document(slow_places.view("required"))
    assert caught.value.required


def test_place_that_hangs_in_the_middle_of_a_file_is_left_alone(slow_places):
    view = slow_places.view()
    put_document(view)
    slow_places.slow.hangs_while_read = True
    assert read(view, DOCUMENT) == b"data"
    assert [tier.state.state for tier in view.tiers] == ["used", "away"]


class _Stuck(io.RawIOBase):
    """Has some bytes; a further read waits until it is released."""

    def __init__(self, released: threading.Event) -> None:
        self._left = 1 << 17
        self._released = released

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._left:
            self._released.wait(60)
        self._left, num_bytes = self._left - min(self._left, len(buffer)), min(self._left, len(buffer))
        return num_bytes


def test_read_that_hangs_is_left_behind(slow_places, monkeypatch):
    released, ended = threading.Event(), threading.Event()
    slow_places.passes = lambda: True  # for as long as it reads, too
    monkeypatch.setattr(slow_places.slow, "open", lambda _: io.BufferedReader(_Stuck(released)))

    def read_all() -> None:
        with contextlib.suppress(StoreUnavailable):
            slow_places.far.read(BLOB, lambda file: list(iter(lambda: file.read(1 << 16), b"")))
        ended.set()

    threading.Thread(target=read_all, daemon=True).start()
    has_ended = ended.wait(20)
    released.set()
    assert (has_ended, slow_places.far.state.state) == (True, "away")


def test_fault_of_transport_leaves_the_place_out_at_once(slow_places):
    slow_places.slow.failure = unavailable("connection refused", transport=True)
    slow_places.passes = lambda: False  # a wait would last for ever
    assert put_document(slow_places.view()) == (DOCUMENT,)
    assert slow_places.far.circuit.reason == "connection refused"


def test_long_call_of_a_living_place_is_not_left_behind(slow_places):
    slow_places.slow.on_put = lambda _: slow_places.pass_until(100)
    slow_places.passes = lambda: not slow_places.far._is_pinged  # not while a ping is on its way
    assert put_document(slow_places.far) == (DOCUMENT,)
    assert slow_places.far.state.state == "used"


def test_interrupt_of_the_caller_is_not_held_back(slow_places):
    begun, release = threading.Event(), threading.Event()

    def interrupted(call: Call[object], timeout_s: float) -> bool:
        begun.wait(60)
        raise KeyboardInterrupt

    def hang(_: object) -> None:
        begun.set()
        release.wait(60)

    slow_places.slow.on_put = hang
    slow_places.far.ticks = Ticks(wait=interrupted)
    with pytest.raises(KeyboardInterrupt):
        put_document(slow_places.far)
    release.set()
