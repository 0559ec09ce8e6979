from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warmrank.cache_store.keys import changed_components, key_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COMPONENTS = st.dictionaries(TEXT, TEXT, max_size=4)


@given(COMPONENTS, COMPONENTS)
def test_key_of_differs_exactly_with_its_components(one, other):
    assert (key_of(one) == key_of(other)) == (one == other)


def test_key_of_is_pinned():
    # A change of this value makes every store miss: it needs a new format.
    assert key_of({"torch": "2.13.0"}) == "851b8dbc83237080a80818d773346b6db2902e26e79f082f70215e36b7fce0e7"


@given(COMPONENTS, COMPONENTS)
def test_changed_components_lead_from_before_to_after(before, after):
    patched = dict(before)
    for change in changed_components(before, after):
        assert patched.get(change.name) == change.before
        if change.after is None:
            del patched[change.name]
        else:
            patched[change.name] = change.after
    assert patched == after
