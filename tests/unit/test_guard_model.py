"""Guards as data: to JSON and back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from warmrank.worker.runtime.artifact import PortableGuards, TracedSource
from warmrank.worker.runtime.constants import encode

ARGUMENTS = st.one_of(
    st.text(), st.integers(), st.floats(allow_nan=False).map(encode), st.just(encode((1, "a")))
)
NODES = st.lists(st.tuples(st.integers(-1, 5), st.sampled_from(["local", "attr", "item"]), ARGUMENTS))
EXPECTED = st.none() | ARGUMENTS | st.lists(st.integers()) | st.dictionaries(st.text(), st.integers())
GUARDS = st.builds(
    PortableGuards,
    nodes=NODES.map(tuple),
    checks=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["type", "equals"]), EXPECTED)).map(tuple),
    shapes=st.lists(st.tuples(st.text(), st.lists(st.integers(0, 5)).map(tuple))).map(tuple),
    ambient=st.dictionaries(st.text(), st.text()),
    sources=st.lists(
        st.builds(TracedSource, kind=st.text(), module=st.text(), name=st.text(), digest=st.text())
    ).map(tuple),
    asked=st.lists(
        st.tuples(
            st.text(),
            st.lists(ARGUMENTS, max_size=2),
            st.dictionaries(st.text(), ARGUMENTS, max_size=1),
            ARGUMENTS,
        ),
        max_size=2,
    ).map(tuple),
    volatile=st.lists(st.integers(0, 5)).map(tuple),
    runtime_state=st.dictionaries(st.text(), st.text(), max_size=3),
)


def through_json(guards: PortableGuards) -> PortableGuards:
    data: dict[str, Any] = json.loads(json.dumps(guards.to_json()))
    return PortableGuards.from_json(data)


@settings(max_examples=40)
@given(guards=GUARDS)
def test_guards_round_trip_through_json(guards: PortableGuards) -> None:
    assert through_json(guards) == guards


@given(guards=GUARDS)
def test_guards_without_runtime_state_are_written_as_before_it_existed(guards: PortableGuards) -> None:
    stateless = replace(guards, runtime_state={})
    assert "runtime_state" not in stateless.to_json()
