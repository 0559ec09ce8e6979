from __future__ import annotations

import pytest

from tests.support.backends import WaywardBackend, new_file, unavailable
from warmrank.cache_store.backends.backend import BlobBackend
from warmrank.cache_store.backends.places import Tier, TieredBackend, TierMode
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import StoreUnavailable
from warmrank.cache_store.layout import blob_name

DOCUMENT = "ac/ab/one"
BLOB = blob_name(digest_bytes(b"blob").sha256)


class Places:
    """A near and a far place, and views of both."""

    def __init__(self) -> None:
        self.near = WaywardBackend()
        self.far = WaywardBackend()

    def view(self, near: TierMode = "rw", far: TierMode = "rw") -> TieredBackend:
        return TieredBackend(
            [Tier(name="near", backend=self.near, mode=near), Tier(name="far", backend=self.far, mode=far)]
        )


@pytest.fixture
def places() -> Places:
    return Places()


def read(backend: BlobBackend, name: str) -> bytes:
    with backend.open(name) as file:
        return file.read()


def test_put_reaches_every_writable_place_the_farthest_first(places):
    order: list[str] = []
    places.near.on_put = lambda _: order.append("near")
    places.far.on_put = lambda _: order.append("far")
    assert places.view().put_new([new_file(DOCUMENT, b"data")]) == (DOCUMENT,)
    assert order == ["far", "near"]
    assert (read(places.near, DOCUMENT), read(places.far, DOCUMENT)) == (b"data", b"data")


def test_blob_is_read_from_the_nearest_place(places):
    places.near.put_new([new_file(BLOB, b"near")])
    places.far.put_new([new_file(BLOB, b"blob")])
    assert read(places.view(), BLOB) == b"near"


def test_document_is_read_from_the_farthest_place(places):
    places.near.put_new([new_file(DOCUMENT, b"near")])
    places.far.put_new([new_file(DOCUMENT, b"far")])
    assert read(places.view(), DOCUMENT) == b"far"


@pytest.mark.parametrize("name", [BLOB, DOCUMENT])
@pytest.mark.parametrize("holder", ["near", "far"])
def test_file_of_one_place_only_is_found(places, holder, name):
    getattr(places, holder).put_new([new_file(name, b"data")])
    view = places.view()
    assert read(view, name) == b"data"
    assert list(view.stat([name])) == [name]


def test_file_that_only_a_failing_place_may_have_is_unavailable(places):
    places.far.failure = unavailable()
    with pytest.raises(StoreUnavailable, match="No space left"):
        places.view().open(DOCUMENT)


def test_stat_and_listing_do_without_a_failing_place(places):
    places.near.put_new([new_file(DOCUMENT, b"near")])
    places.far.failure = unavailable()
    view = places.view()
    assert list(view.stat([DOCUMENT])) == [DOCUMENT]
    assert [info.name for info in view.list("ac/")] == [DOCUMENT]


def test_stat_and_listing_of_failing_places_only_are_errors(places):
    places.near.failure = places.far.failure = unavailable()
    with pytest.raises(StoreUnavailable):
        places.view().stat([DOCUMENT])
    with pytest.raises(StoreUnavailable):
        list(places.view().list(""))


def test_listing_of_a_place_alone_fails_with_it(places):
    places.far.failure = unavailable()
    far, near = places.view().alone()
    with pytest.raises(StoreUnavailable):
        list(far.list(""))
    assert [tier.name for tier in (*far.tiers, *near.tiers)] == ["far", "near"]


def test_read_only_place_is_never_written_and_makes_no_other_read_only(places):
    view = places.view(near="ro")
    assert view.put_new([new_file(BLOB, b"blob")]) == (BLOB,)
    view.fill([new_file(DOCUMENT, b"data")])
    assert view.move(BLOB, "trash/one")
    assert set(places.near.calls) <= {"stat"}
    assert places.far.stat(["trash/one"])


def test_read_only_far_place_leaves_the_near_one_writable(places):
    view = places.view(far="ro")
    assert view.put_new([new_file(DOCUMENT, b"data")]) == (DOCUMENT,)
    assert places.near.stat([DOCUMENT])
    assert places.far.calls == []


def test_read_only_places_only_cannot_be_written(places):
    with pytest.raises(StoreUnavailable, match="every place of it is read-only"):
        places.view("ro", "ro").put_new([new_file(DOCUMENT, b"data")])


@pytest.mark.parametrize("failing", ["near", "far"])
def test_put_goes_on_where_one_place_fails(places, failing):
    getattr(places, failing).failure = unavailable()
    view = places.view()
    assert view.put_new([new_file(DOCUMENT, b"data")]) == (DOCUMENT,)
    assert [f"store {failing}" in line for line in view.problems] == [True]


def test_put_where_every_place_fails_is_the_farthest_places_error(places):
    places.near.failure, places.far.failure = unavailable("near is full"), unavailable("far is full")
    with pytest.raises(StoreUnavailable, match="far is full"):
        places.view().put_new([new_file(DOCUMENT, b"data")])


@pytest.mark.parametrize(("near", "far"), [("required", "rw"), ("rw", "required")])
def test_put_where_a_required_place_fails_is_an_error_that_says_so(places, near, far):
    (places.near if near == "required" else places.far).failure = unavailable()
    with pytest.raises(StoreUnavailable, match="No space left") as caught:
        places.view(near, far).put_new([new_file(DOCUMENT, b"data")])
    assert caught.value.required


def test_place_that_did_not_take_a_blob_takes_no_manifest(places):
    places.far.failure = unavailable()
    view = places.view()
    view.put_new([new_file(BLOB, b"blob")])
    places.far.failure = None
    view.put_new([new_file(DOCUMENT, b"names the blob")])
    assert places.far.stat([DOCUMENT]) == {}
    assert places.near.stat([DOCUMENT])


def test_move_acts_on_the_place_that_would_be_read(places):
    for place in (places.near, places.far):
        place.put_new([new_file(BLOB, b"blob"), new_file(DOCUMENT, b"data")])
    view = places.view()
    assert view.move(BLOB, "quarantine/blob")
    assert view.move(DOCUMENT, "quarantine/document")
    assert places.near.stat([BLOB, DOCUMENT]).keys() == {DOCUMENT}
    assert places.far.stat([BLOB, DOCUMENT]).keys() == {BLOB}


def test_bad_file_of_a_read_only_place_is_read_from_the_next(places):
    places.near.put_new([new_file(BLOB, b"bad!")])
    places.far.put_new([new_file(BLOB, b"blob")])
    view = places.view(near="ro")
    assert not view.move(BLOB, "quarantine/blob")
    assert read(view, BLOB) == b"blob"
    assert read(places.near, BLOB) == b"bad!"


def test_fill_goes_into_the_near_place_only_blobs_first(places):
    batches: list[list[str]] = []
    places.near.on_put = lambda files: batches.append([file.name for file in files])
    places.view().fill([new_file("launch/x", b"l"), new_file(DOCUMENT, b"d"), new_file(BLOB, b"blob")])
    assert batches == [[BLOB], ["launch/x"], [DOCUMENT]]
    assert places.far.calls == []


def test_write_goes_to_the_next_place_where_the_farthest_fails(places):
    places.far.failure = unavailable()
    view = places.view()
    assert view.write_farthest(lambda backend: backend.put_new([new_file(BLOB, b"blob")])) == (BLOB,)
    assert places.near.stat([BLOB])
    assert len(view.problems) == 1


def test_fault_of_transport_opens_the_circuit_of_its_place_alone(places):
    places.far.failure = unavailable("connection refused", transport=True)
    view = places.view()
    view.put_new([new_file(DOCUMENT, b"data")])
    assert [tier.circuit.reason for tier in view.tiers] == ["", "connection refused"]
    asked = len(places.far.calls)
    assert list(view.stat([DOCUMENT])) == [DOCUMENT]
    assert len(places.far.calls) == asked


def test_view_that_was_left_refuses_every_call_also_of_its_parts(places):
    view = places.view()
    parts = view.alone()
    view.leave()
    for backend in (view, *parts):
        with pytest.raises(StoreUnavailable, match="given up"):
            backend.put_new([new_file(DOCUMENT, b"data")])
        with pytest.raises(StoreUnavailable, match="given up"):
            list(backend.list(""))
    assert places.near.stat([DOCUMENT]) == {}
