from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warmrank.cache_store.layout import (
    blob_name,
    launch_name,
    launch_prefix,
    manifest_name,
    split_launch_name,
)
from warmrank.cache_store.paths import path_fault

HEX = st.binary(min_size=32, max_size=32).map(bytes.hex)
KEY = "ab" + "0" * 62


def test_names_are_those_of_the_format():
    assert blob_name(KEY) == f"cas/sha256/ab/{KEY}"
    assert manifest_name(KEY) == f"ac/ab/{KEY}"
    assert launch_name(KEY, "c" * 64) == f"launch/ab/{KEY}/{'c' * 64}"


@given(HEX, HEX)
def test_launch_name_round_trips(launch_key, sha256):
    name = launch_name(launch_key, sha256)
    assert split_launch_name(name) == (launch_key, sha256)
    assert name.startswith(launch_prefix(launch_key))
    assert path_fault(name) is None
