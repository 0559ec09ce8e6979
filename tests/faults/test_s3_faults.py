"""What an object store can do wrong, and what then comes of a put and a get.

Each fault is tried `--fault-rounds` times through a proxy before a real server. Whatever happens, no wrong
bytes are accepted, nothing is replaced, and the caller gets an answer after few requests; how long each may
take is what ``test_object_store.py`` is about.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.s3_server import Fault, FaultyProxy, S3Server, new_prefix, running_proxy
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.object_client import ObjectClient
from warmrank.cache_store.backends.object_store import WHOLE_BYTES, ObjectBackend
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, StoreError, StoreUnavailable
from warmrank.cache_store.layout import PROBE, blob_name

pytestmark = [pytest.mark.faults, pytest.mark.timeout(0)]  # the full counts take longer than any one test

ANSWER_S = 1.0
PATIENT_S = 30.0  # where the fault heals, so that a slow machine does not make another one of it
MAX_TRIES = 4  # with that little patience: pauses of at least 25, 50, 100 ms; a fifth try comes too late
FOR_EVER = 1 << 30
HEALED_BY_A_RETRY = (Fault.OVERLOADED, Fault.RESET, Fault.CONFLICT, Fault.LOST_ACK, Fault.LOST_ACK_503)
UNAVAILABLE_FOR_EVER = (Fault.OVERLOADED, Fault.RESET, Fault.SILENT, Fault.LOST_ACK_503)


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[FaultyProxy]:
    with running_proxy(s3_server.port) as running:
        yield running


@pytest.fixture(scope="module")
def backend(proxy: FaultyProxy) -> ObjectBackend:
    return ObjectBackend(new_prefix(), answer_s=PATIENT_S, options=proxy.options)


@pytest.fixture(scope="module")
def impatient(backend: ObjectBackend, proxy: FaultyProxy) -> ObjectBackend:
    """Opened with patience all the same: that is not what its tests are about."""
    impatient = ObjectBackend(backend.url, answer_s=PATIENT_S, options=proxy.options)
    impatient._client = ObjectClient(backend.url, answer_s=ANSWER_S, options=proxy.options)
    return impatient


def new_document() -> NewFile:
    data = f'{{"unique":"{uuid.uuid4()}"}}'.encode() * 4
    return NewFile(name=f"ac/ab/{uuid.uuid4().hex}", source=data, expected=digest_bytes(data))


def new_blob(size_bytes: int) -> NewFile:
    data = os.urandom(16) + os.urandom(256) * (size_bytes // 256)
    return NewFile(name=blob_name(digest_bytes(data).sha256), source=data, expected=digest_bytes(data))


NEW_FILES = {
    "document": new_document,
    "blob": lambda: new_blob(20_000),
    "large blob": lambda: new_blob(WHOLE_BYTES + 1000),
}


def read(backend: ObjectBackend, file: NewFile) -> bytes:
    with backend.open(file.name) as stream:
        return stream.read()


@pytest.mark.one_in(8)
@pytest.mark.parametrize("make", [NEW_FILES["document"], NEW_FILES["blob"]], ids=["document", "blob"])
@pytest.mark.parametrize("fault", HEALED_BY_A_RETRY)
def test_put_that_fails_once_creates_and_says_so(backend, proxy, fault, make, fault_rounds):
    for _ in range(fault_rounds):
        file = make()
        with proxy.breaking(fault, "PUT", times=1) as plan:
            assert backend.put_new([file]) == (file.name,)
        assert (plan.broken, read(backend, file)) == (1, file.source)


@pytest.mark.parametrize("fault", [Fault.OVERLOADED, Fault.RESET, Fault.LOST_ACK, Fault.LOST_ACK_503])
def test_part_of_a_large_upload_that_fails_once_is_sent_again(backend, proxy, fault, fault_rounds):
    for _ in range(fault_rounds):
        file = new_incompressible_blob()
        with proxy.breaking(fault, "PUT", times=1) as plan:
            assert backend.put_new([file]) == (file.name,)
        assert (plan.broken, read(backend, file)) == (1, file.source)


def new_incompressible_blob() -> NewFile:
    data = os.urandom(WHOLE_BYTES + 1000)
    return NewFile(name=blob_name(digest_bytes(data).sha256), source=data, expected=digest_bytes(data))


@pytest.mark.one_in(8)
@pytest.mark.parametrize("make", NEW_FILES.values(), ids=NEW_FILES)
@pytest.mark.parametrize("fault", UNAVAILABLE_FOR_EVER)
def test_put_that_fails_for_ever_is_unavailable_soon(backend, impatient, proxy, fault, make, fault_rounds):
    # Parts of a large upload are patient, as a slow line needs it; what begins it is not.
    method = "HEAD" if make is NEW_FILES["large blob"] else "PUT"
    for _ in range(fault_rounds):
        file = make()
        with proxy.breaking(fault, method, times=FOR_EVER) as plan, pytest.raises(StoreUnavailable) as caught:
            impatient.put_new([file])
        assert caught.value.transport
        assert 1 <= plan.broken <= MAX_TRIES
        backend.put_new([file])  # and to try again is safe
        assert read(backend, file) == file.source


@pytest.mark.parametrize(
    "fault",
    [Fault.LOST_ACK, Fault.LOST_ACK_503, Fault.RESET, Fault.OVERLOADED, Fault.EXISTS, Fault.CONFLICT],
)
def test_no_answer_makes_a_winner_of_a_loser_or_replaces_a_name(backend, proxy, fault, fault_rounds):
    for _ in range(fault_rounds):
        first = new_document()
        other = NewFile(name=first.name, source=b"other", expected=digest_bytes(b"other"))
        backend.put_new([first])
        with proxy.breaking(fault, "PUT", times=1) as plan:
            assert backend.put_new([other]) == ()
        assert (plan.broken, read(backend, first)) == (1, first.source)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("make", NEW_FILES.values(), ids=NEW_FILES)
@pytest.mark.parametrize("fault", [Fault.OVERLOADED, Fault.RESET, Fault.LOST_ACK, Fault.SHORT_BODY])
def test_get_that_fails_once_gives_all_bytes(backend, proxy, fault, make, fault_rounds):
    for _ in range(fault_rounds):
        file = make()
        backend.put_new([file])
        with proxy.breaking(fault, "GET", times=1) as plan:
            assert read(backend, file) == file.source
        assert plan.broken == 1


def test_download_that_breaks_off_goes_on_where_it_broke(backend, proxy, fault_rounds):
    for _ in range(fault_rounds):
        file = new_incompressible_blob()
        backend.put_new([file])
        with proxy.breaking(Fault.SHORT_BODY, "GET", times=2) as plan:
            assert read(backend, file) == file.source
        assert plan.broken == 2


@pytest.mark.one_in(8)
@pytest.mark.parametrize("fault", [*UNAVAILABLE_FOR_EVER, Fault.SHORT_BODY])
def test_get_that_fails_for_ever_is_unavailable_soon(backend, impatient, proxy, fault, fault_rounds):
    file = new_document()
    backend.put_new([file])
    for _ in range(fault_rounds):
        with proxy.breaking(fault, "GET", times=FOR_EVER) as plan, pytest.raises(StoreUnavailable) as caught:
            read(impatient, file)
        assert caught.value.transport
        assert 1 <= plan.broken <= MAX_TRIES


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault.DENIED, "access was denied (403 AccessDenied); set the credentials"),
        (Fault.SKEWED, "too far apart (403 RequestTimeTooSkewed); set the clock"),
        (Fault.FULL, "no room left (507 XMinioStorageFull); make room"),
    ],
)
def test_answer_of_the_server_is_the_reason_and_no_silence(backend, proxy, fault, reason):
    calls = {"GET": lambda: list(backend.list("ac/")), "PUT": lambda: backend.put_new([new_document()])}
    for method, call in calls.items():
        with proxy.breaking(fault, method, times=FOR_EVER) as plan, pytest.raises(StoreUnavailable) as caught:
            call()
        assert (reason in str(caught.value), caught.value.transport, plan.broken > 0) == (True, False, True)


def test_blob_cut_by_a_lying_server_is_corrupt(backend, proxy, fault_rounds):
    for _ in range(fault_rounds):
        file = new_blob(20_000)
        backend.put_new([file])
        with proxy.breaking(Fault.CUT_BODY, "GET", times=1), pytest.raises(Corrupt):
            read(backend, file)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("fault", [*UNAVAILABLE_FOR_EVER, Fault.SHORT_BODY, Fault.CUT_BODY])
def test_store_that_is_broken_from_the_start_is_not_opened(proxy, fault, fault_rounds):
    url = new_prefix()
    ObjectBackend(url, answer_s=PATIENT_S, options=proxy.options)
    for _ in range(fault_rounds):
        with proxy.breaking(fault, "GET", times=FOR_EVER) as plan, pytest.raises(StoreError):
            ObjectBackend(url, answer_s=ANSWER_S, options=proxy.options)
        assert 1 <= plan.broken <= MAX_TRIES


def test_lost_answer_to_the_probe_is_not_taken_for_an_ignored_condition(proxy, fault_rounds):
    """The next try finds the name taken: by the first try, as its bytes tell."""
    for _ in range(fault_rounds):
        url = new_prefix()
        ObjectBackend(url, answer_s=PATIENT_S, options=proxy.options).move(PROBE, None)
        with proxy.breaking(Fault.LOST_ACK, "PUT", times=1) as plan:
            ObjectBackend(url, answer_s=PATIENT_S, options=proxy.options)
        assert plan.broken == 1


def test_server_that_ignores_conditions_is_not_written(proxy, fault_rounds):
    for _ in range(fault_rounds):
        url = new_prefix()
        with (
            proxy.breaking(Fault.IGNORED_CONDITION, "PUT", times=FOR_EVER),
            pytest.raises(StoreUnavailable, match=r"ignores 'If-None-Match.*mode 'ro'"),
        ):
            ObjectBackend(url, answer_s=PATIENT_S, options=proxy.options)


def test_server_that_ignores_conditions_since_yesterday_is_not_written(proxy, fault_rounds):
    url = new_prefix()
    ObjectBackend(url, answer_s=PATIENT_S, options=proxy.options)
    for _ in range(fault_rounds):
        with (
            proxy.breaking(Fault.IGNORED_CONDITION, "PUT", times=FOR_EVER),
            pytest.raises(StoreUnavailable, match="ignores 'If-None-Match"),
        ):
            ObjectBackend(url, answer_s=PATIENT_S, options=proxy.options)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("fault", [None, Fault.LOST_ACK, Fault.OVERLOADED, Fault.RESET])
def test_one_of_64_writers_wins(backend, proxy, fault, fault_rounds):
    num_writers = 64
    for _ in range(fault_rounds):
        name = f"ac/ab/{uuid.uuid4().hex}"
        barrier = threading.Barrier(num_writers)

        def put(number: int, name: str = name, barrier: threading.Barrier = barrier) -> bool:
            data = f"by {number}".encode()
            barrier.wait()
            return bool(backend.put_new([NewFile(name=name, source=data, expected=digest_bytes(data))]))

        with (
            proxy.breaking(fault or Fault.RESET, "PUT", times=0 if fault is None else 8),
            ThreadPoolExecutor(num_writers) as pool,
        ):
            created = list(pool.map(put, range(num_writers)))
        with backend.open(name) as stream:
            stands = stream.read()
        assert [f"by {number}".encode() for number, won in enumerate(created) if won] == [stands]
