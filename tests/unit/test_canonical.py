from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmrank.cache_store.keys import canonical_json

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@given(VALUES)
def test_canonical_json_round_trips(value):
    assert json.loads(canonical_json(value)) == value


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(), min_size=2))
def test_canonical_json_ignores_order(value):
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_canonical_json_refuses_what_json_has_not(number):
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json([number])


@pytest.mark.parametrize("value", [{1: "a"}, [{"a": {None: 1}}]])
def test_canonical_json_refuses_keys_that_json_would_convert(value):
    with pytest.raises(TypeError, match="is a string"):
        canonical_json(value)
