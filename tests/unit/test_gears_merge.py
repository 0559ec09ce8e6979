"""How gears of several dimensions become combinations, and which combination covers a call."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmrank.worker.errors import GearError
from warmrank.worker.gears.model import MAX_COMBINATIONS, Axis, GearedInput, GearFacts, covering, merged

GEARS = st.lists(st.integers(1, 9), min_size=2, max_size=4)


@given(
    st.integers(2, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(1, 9), min_size=n, max_size=n), min_size=1)
    )
)
def test_zip_pairs_gears_by_position(gears: list[list[int]]) -> None:
    assert set(merged(gears, "zip")) == {tuple(each[i] for each in gears) for i in range(len(gears[0]))}


@given(st.lists(GEARS, min_size=1, max_size=3))
def test_product_takes_all_with_all_each_once(gears: list[list[int]]) -> None:
    found = merged(gears, "product")
    assert len(found) == len(set(found))
    assert set(found) == set(itertools.product(*gears))


def test_zip_of_lists_of_different_lengths_is_refused_by_name() -> None:
    with pytest.raises(GearError, match=r"x has 2, y has 3.*product"):
        merged([[2, 4], [1, 2, 3]], "zip", ["x", "y"])


@pytest.mark.parametrize("last", [10, 11])
def test_a_hundred_combinations_are_allowed_and_no_more(last: int) -> None:
    gears = [range(1, 11), range(1, last + 1)]
    if last == 10:
        assert len(merged(gears, "product")) == MAX_COMBINATIONS
    else:
        with pytest.raises(GearError, match="more than 100 combinations"):
            merged(gears, "product")


def test_a_product_that_could_never_be_written_out_is_refused_at_once() -> None:
    with pytest.raises(GearError, match="more than 100 combinations"):
        merged([range(1, 101)] * 9, "product")


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), unique=True, min_size=1),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_the_covering_combination_is_the_last_that_is_nowhere_smaller(
    combinations: list[tuple[int, int]], sizes: tuple[int, int]
) -> None:
    ordered = sorted(combinations, key=lambda item: -item[0] * item[1])
    covers = [item for item in ordered if item[0] >= sizes[0] and item[1] >= sizes[1]]
    assert covering(ordered, sizes) == (covers[-1] if covers else None)


def _facts(combinations: list[tuple[int, int]], conditions: tuple[str, ...]) -> GearFacts:
    axes = [
        Axis(
            source=f"L['{name}']", node=node, dim=0, gears=(1, 2), symbol=f"s{node}", position=node, number=-1
        )
        for node, name in enumerate("xy")
    ]
    return GearFacts(
        axes=tuple(axes),
        combinations=tuple(combinations),
        inputs=(GearedInput(position=0, sizes=("s0", "3"), strides=("3", "1")),),
        numbers=((2, "2*s0"),),
        bound=(("s9", 3),),
        outputs=(("s0", "3"), "s0 + s1", None),
        conditions=conditions,
        ahead=True,
    )


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_gear_facts_come_back_from_json(combinations: list[tuple[int, int]]) -> None:
    facts = _facts(combinations, ("s0 == s1",))
    assert GearFacts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_sizes_that_the_code_would_treat_otherwise_have_no_gear() -> None:
    facts = _facts([(4, 4), (2, 2)], ("s0 > 2",))
    assert facts.gear_of((3, 3)) == (4, 4)
    assert facts.gear_of((2, 1)) is None
