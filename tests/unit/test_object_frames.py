"""The stored form of blobs: round trips, what shrinks, damage, and frames made to burst."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("zstandard", reason="object stores are an extra: pip install 'warmrank[s3]'")

import zstandard

from warmrank.cache_store.backends.objects.frames import (
    decode,
    decode_whole,
    encode,
    encode_stream,
    is_framed,
)
from warmrank.cache_store.errors import Corrupt

NAME = "cas/sha256/ab/blob"
SHRINKS = b"the same again and again. " * 1000


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def decoded(data: bytes, *, piece_bytes: int = 1 << 20) -> bytes:
    return b"".join(decode(pieces(data, piece_bytes), name=NAME))


def zstd(content: bytes, announced_bytes: int) -> bytes:
    return f"warmrank-blob 1 zstd {announced_bytes}\n".encode() + zstandard.ZstdCompressor().compress(content)


@given(content=st.binary(max_size=3000), repeated=st.integers(1, 50), piece_bytes=st.integers(1, 4000))
def test_encode_stream_round_trips(content, repeated, piece_bytes):
    content = content * repeated
    stored = b"".join(encode_stream(pieces(content, piece_bytes), len(content)))
    assert decoded(stored, piece_bytes=piece_bytes) == content


@given(
    stored=st.sampled_from([encode(SHRINKS), encode(b"short"), b"{}"]),
    at=st.integers(0),
    bits=st.integers(0, 255),
)
def test_decode_whole_says_what_decode_says(stored, at, bits):
    damaged = bytearray(stored)
    damaged[at % len(stored)] ^= bits
    whole = decode_whole(bytes(damaged))
    try:
        assert whole in (decoded(bytes(damaged)), None)
    except Corrupt:
        assert whole is None


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
