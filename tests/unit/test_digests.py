from __future__ import annotations

import io

import pytest

from warmrank.cache_store.digests import (
    Digest,
    TooLong,
    copy_and_digest,
    is_sha256,
)


def test_copy_and_digest_stops_at_its_limit():
    target = io.BytesIO()
    with pytest.raises(TooLong):
        copy_and_digest(io.BytesIO(b"four"), target, limit_bytes=3)
    assert target.getvalue() == b""


@pytest.mark.parametrize("text", ["", "a" * 63, "A" * 64, "g" * 64, "a" * 64 + "\n", "../" + "a" * 61])
def test_digest_refuses_what_is_no_sha256(text):
    assert not is_sha256(text)
    with pytest.raises(ValueError, match="64 lowercase hex"):
        Digest(sha256=text, size_bytes=0)
