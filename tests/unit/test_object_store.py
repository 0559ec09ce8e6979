"""The store in a bucket: connection, frames, objects."""

from __future__ import annotations

import os
import socket
import urllib.request
import warnings
from collections.abc import Callable, Iterator

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st
from obstore.store import ObjectStore, from_url

from tests.support.backends import new_file, read
from tests.support.s3_server import BUCKET, ENVIRONMENT, PATIENT_S, S3Server, new_prefix
from warmrank.cache_store.backends.backend import NewFile
from warmrank.cache_store.backends.object_client import ObjectClient
from warmrank.cache_store.backends.object_store import (
    WHOLE_BYTES,
    ObjectBackend,
    decode,
    encode,
    encode_stream,
    is_framed,
)
from warmrank.cache_store.digests import digest_bytes
from warmrank.cache_store.errors import Corrupt, StoreUnavailable
from warmrank.cache_store.layout import FORMAT_FILE, PROBE, blob_name

pytest.importorskip("obstore", reason="object stores are an extra: pip install 'warmrank[s3]'")


SHRINKS = b"the same again and again. " * 1000
Open = Callable[..., ObjectBackend]


@pytest.fixture
def url() -> str:
    return new_prefix()


@pytest.fixture
def objects(s3_server: S3Server, url: str) -> ObjectStore:
    """The place behind the store's back."""
    store: ObjectStore = from_url(
        url, config={"endpoint": s3_server.endpoint}, client_options={"allow_http": True}
    )
    return store


@pytest.fixture
def open_store(s3_server: S3Server, url: str) -> Open:
    return lambda **options: ObjectBackend(url, answer_s=PATIENT_S, options=s3_server.options, **options)


@pytest.fixture
def backend(open_store: Open) -> ObjectBackend:
    return open_store()


def new_blob(data: bytes) -> NewFile:
    return new_file(blob_name(digest_bytes(data).sha256), data)


def names(objects: ObjectStore) -> list[str]:
    return sorted(item["path"] for page in objects.list() for item in page)


def test_new_store_has_a_format_and_a_probe(backend, objects):
    assert names(objects) == [FORMAT_FILE, PROBE]
    assert bytes(objects.get(FORMAT_FILE).bytes()) == (
        b'{"blobs":"warmrank-blob 1","digest":"sha256","format":1}'
    )


@pytest.mark.parametrize("how", [{"create": False}, {"writable": False}])
def test_store_that_is_not_there_is_not_made(open_store, objects, how):
    with pytest.raises(StoreUnavailable, match="there is no store at") as caught:
        open_store(**how)
    assert not caught.value.transport
    assert names(objects) == []


def test_place_of_something_else_is_not_made_a_store(open_store, objects):
    objects.put("photos/1.jpg", b"x")
    with pytest.raises(StoreUnavailable, match="holds 'photos' but no FORMAT"):
        open_store()
    assert names(objects) == ["photos/1.jpg"]


def test_blob_is_kept_compressed(backend):
    file = new_blob(SHRINKS)
    backend.put_new([file])
    info = backend.stat([file.name])[file.name]
    assert info.stored_bytes < len(SHRINKS) / 10
    assert info.content_bytes is None
    assert read(backend, file.name) == SHRINKS


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "data",
    [os.urandom(WHOLE_BYTES), os.urandom(WHOLE_BYTES + 1), os.urandom(3 * WHOLE_BYTES), SHRINKS * 500],
    ids=["largest in one request", "smallest in parts", "random", "shrinks"],
)
@pytest.mark.parametrize("is_file", [False, True], ids=["memory", "file"])
def test_large_blob_round_trips(backend, tmp_path, data, is_file):
    file = new_blob(data)
    if is_file:
        path = tmp_path / "source"
        path.touch(mode=0o600)
        path.write_bytes(data)
        file = NewFile(name=file.name, source=path, expected=file.expected)
    assert backend.put_new([file]) == (file.name,)
    assert backend.put_new([file]) == ()
    assert read(backend, file.name) == data


def test_large_source_that_changes_while_it_is_sent_leaves_nothing(backend, s3_server, tmp_path, monkeypatch):
    data = os.urandom(3 * WHOLE_BYTES)
    path = tmp_path / "source"
    path.touch(mode=0o600)
    path.write_bytes(data)
    file = NewFile(name=new_blob(data).name, source=path, expected=digest_bytes(data))
    at_staged = "warmrank.cache_store.backends.object_store.reached"  # it was verified, and is sent next
    monkeypatch.setattr(at_staged, lambda _step: path.write_bytes(data[::-1]))
    with pytest.raises(Corrupt, match=r"source of cas/.*found sha256 "):
        backend.put_new([file])
    assert backend.stat([file.name]) == {}
    assert b"<Upload>" not in uploads(s3_server)


def uploads(server: S3Server) -> bytes:
    with urllib.request.urlopen(f"{server.endpoint}/{BUCKET}?uploads", timeout=30) as answer:  # noqa: S310
        data: bytes = answer.read()
    return data


def test_forked_child_is_refused(backend, open_store):
    calls: list[Callable[[], object]] = [
        open_store,  # a new client has the threads of the first one, which did not come along
        lambda: backend.stat(["ac/ab/x"]),
        lambda: list(backend.list("")),
        lambda: backend.put_new([new_blob(os.urandom(WHOLE_BYTES + 1))]),
    ]
    for call in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that it is a bad idea is shown here
            child = os.fork()
        if not child:
            try:
                call()
            except StoreUnavailable as error:
                os._exit(42 if "by spawn" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


URL = "s3://bucket/prefix"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that refuses connections, because who has it does not listen."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield closed.getsockname()[1]


def options(port: int) -> dict[str, str]:
    return {"endpoint": f"http://127.0.0.1:{port}"}


def refusal(url: str, **opened: object) -> str:
    with pytest.raises(StoreUnavailable) as caught:
        ObjectClient(url, answer_s=1.0, options=opened)  # type: ignore[arg-type]
    assert not caught.value.transport
    return str(caught.value)


def test_password_in_the_url_is_refused_and_not_repeated():
    message = refusal("s3://user:hunter2@bucket/prefix")
    assert "credentials come from the environment" in message
    assert "hunter2" not in message


def test_plain_http_must_be_allowed(monkeypatch, free_port):
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreUnavailable, match="begins with http://") as caught:
        ObjectBackend(URL, options=options(free_port))
    assert 'set AWS_ALLOW_HTTP=true, or allow_http: "true" in the store\'s options' in str(caught.value)
    assert not caught.value.transport  # nobody was asked, so nothing is known of the place


@pytest.mark.parametrize(
    "url", ["az://account/container/x", "abfss://container@account.dfs.core.windows.net/x"]
)
def test_each_cloud_has_its_own_variables(monkeypatch, url, free_port):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "bm90LWEtc2VjcmV0")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{free_port}")
    with pytest.raises(StoreUnavailable, match="set AZURE_ALLOW_HTTP=true"):
        ObjectBackend(url)
    monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
    with pytest.raises(StoreUnavailable, match="connection was refused"):
        ObjectBackend(url)


def test_refused_connection_is_said_at_once(free_port):
    with pytest.raises(StoreUnavailable, match="the connection was refused; check that the") as caught:
        ObjectBackend(URL, answer_s=1e6, options=options(free_port))
    assert caught.value.transport


NAME = "cas/sha256/ab/blob"


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def decoded(data: bytes, *, piece_bytes: int = 1 << 20) -> bytes:
    return b"".join(decode(pieces(data, piece_bytes), name=NAME))


def zstd(content: bytes, announced_bytes: int) -> bytes:
    return f"warmrank-blob 1 zstd {announced_bytes}\n".encode() + zstandard.ZstdCompressor().compress(content)


@example(content=SHRINKS, repeated=4, piece_bytes=4000)  # compressed piece by piece
@given(content=st.binary(max_size=3000), repeated=st.integers(1, 50), piece_bytes=st.integers(1, 4000))
def test_encode_stream_round_trips(content, repeated, piece_bytes):
    content = content * repeated
    stored = b"".join(encode_stream(pieces(content, piece_bytes), len(content)))
    assert decoded(stored, piece_bytes=piece_bytes) == content


@pytest.mark.parametrize("content", [b"warmrank-blob 1 raw 3\nabc", b"warmrank-blob 9"])
def test_document_that_looks_like_a_blob_is_framed(content):
    assert is_framed("pins/x", content)
    assert decoded(encode(content)) == content


@pytest.mark.parametrize(
    "header",
    [
        b"warmrank-blob 2 raw 3\n",
        b"warmrank-blob 1 lz4 3\n",
        b"warmrank-blob 1 raw -3\n",
        b"warmrank-blob 1 raw 03\n",
        b"warmrank-blob 1 raw 3",
        b"warmrank-blob 1 raw 3\r\n",
        b"warmrank-blob 1 raw " + b"9" * 40 + b"\n",
    ],
)
def test_damaged_line_is_corrupt(header):
    with pytest.raises(Corrupt, match=r"<raw\|zstd> <size>"):
        decoded(header + b"abc")


@given(end=st.integers(0, len(encode(SHRINKS)) - 1))
def test_cut_frame_is_no_content(end):
    try:
        content = decoded(encode(SHRINKS)[:end])
    except Corrupt:
        return
    assert content == encode(SHRINKS)[:end]  # so little is left that it is no blob; its digest is wrong
    assert end < len(b"warmrank-blob ")


def test_decompression_bomb_gives_no_more_than_announced():
    bomb = zstd(bytes(256 << 20), 1000)
    taken: list[bytes] = []
    with pytest.raises(Corrupt, match="expected 1000 bytes, found more"):
        taken.extend(decode([bomb], name=NAME))
    assert sum(map(len, taken)) <= 1000


def test_frame_that_asks_for_a_huge_window_is_refused():
    parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=27)
    compressing = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = compressing.compress(os.urandom(100)) + compressing.flush()
    with pytest.raises(Corrupt, match="a zstd frame"):
        decoded(b"warmrank-blob 1 zstd 100\n" + frame)
