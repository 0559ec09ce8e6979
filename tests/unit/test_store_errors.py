from __future__ import annotations

import dataclasses
import pickle

import pytest

from warmrank.cache_store.errors import (
    Conflict,
    Corrupt,
    EvictRefused,
    NewerFormat,
    NotInStore,
    StoreError,
    StoreUnavailable,
    Untrusted,
    UntrustedReason,
    UnusableCache,
    is_damage,
    os_errors_are_unavailable,
)

ALL: list[StoreError] = [
    StoreUnavailable(what="store", where="/s", reason="No space left on device"),
    Corrupt(what="blob", where="cas/1", expected="sha256 a", actual="sha256 b"),
    NewerFormat(what="manifest", where="ac/1", found=2, supported=1),
    Untrusted(reason="unsigned", what="manifest", where="ac/1", detail="no signature", remedy="sign it"),
    NotInStore(what="blob", where="cas/1"),
    Conflict(what="manifest", where="ac/1", expected="a", actual="b", remedy="publish again"),
    EvictRefused(what="store", where="/s", reason="the listing is empty", remedy="check the store"),
    UnusableCache(what="file", where="/c", expected="mode 0600", actual="mode 0644", remedy="chmod"),
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_error_keeps_its_fields_through_pickling(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is type(error)
    assert dataclasses.asdict(copy) == dataclasses.asdict(error)


@pytest.mark.parametrize(
    ("reason", "damaged"),
    [
        ("bad_signature", True),
        ("replayed", True),
        ("unsigned", False),
        ("unknown_signer", False),
        ("revoked", False),
    ],
)
def test_is_damage_leaves_what_others_may_trust(reason: UntrustedReason, damaged):
    error = Untrusted(reason=reason, what="manifest", where="ac/1", detail="", remedy="")
    assert is_damage(error) is damaged


def test_os_error_becomes_unavailable_with_its_reason():
    with (
        pytest.raises(StoreUnavailable, match="No space left on device") as caught,
        os_errors_are_unavailable("blob", "/s"),
    ):
        raise OSError(28, "No space left on device")
    assert isinstance(caught.value.__cause__, OSError)
