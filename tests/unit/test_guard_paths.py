"""Paths to guarded objects: parsed once, found again in another process."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from warmrank.worker.errors import NotPortable
from warmrank.worker.guards.paths import PathTable
from warmrank.worker.runtime.check import MISSING, resolve


@dataclasses.dataclass
class Options:
    width: int = 3


class Point(NamedTuple):
    x: int
    y: int


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def table_of(*expressions: str) -> PathTable:
    table = PathTable({"__import_math": "math", "__import_gone": "no_such_module"})
    for expression in expressions:
        table.add(expression)
    return table


def found(expression: str, local: Mapping[str, Any], global_: Mapping[str, Any] | None = None) -> Any:
    """What an expression leads to."""
    table = table_of(expression)
    values: list[Any] = []
    for index in range(len(table.nodes)):
        values.append(resolve(table.nodes, values, index, {"local": local, "global": global_ or {}}))
    return values[-1]


VALUE = Holder(
    items=[10, 11],
    table={"a": 1, 2: "two", (1, 2): "pair", 1.5: "half"},
    options=Options(),
    point=Point(5, 6),
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("L['x']", VALUE),
        ("L['x'].items", VALUE.__dict__["items"]),
        ("L['x'].items[1]", 11),
        ("L['x'].table['a']", 1),
        ("L['x'].table[2]", "two"),
        ("L['x'].table[(1, 2)]", "pair"),
        ("L['x'].table[1.5]", "half"),
        ("dict.__getitem__(L['x'].table, 'a')", 1),
        ("list(dict.keys(L['x'].table))[1]", 2),
        ("list(L['x'].items)[1]", 11),
        ("getattr(L['x'], 'items')", VALUE.__dict__["items"]),
        ("object.__getattribute__(L['x'], 'items')", VALUE.__dict__["items"]),
        ("type(L['x'])", Holder),
        ("dict(L['x'].table)", VALUE.__dict__["table"]),
        ("___namedtuple_fields(L['x'].point)", ("x", "y")),
        ("L['x'].__dict__['items']", VALUE.__dict__["items"]),
        ("G['__import_math'].pi", math.pi),
        ("G['__builtins_dict___0']['len']", len),
        ("G['LIMIT']", 7),
    ],
)
def test_expression_of_dynamo_leads_to_its_object(expression: str, expected: Any) -> None:
    assert found(expression, {"x": VALUE}, {"LIMIT": 7}) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "L['y']",
        "L['x'].gone",
        "L['x'].items[9]",
        "L['x'].items['a']",
        "L['x'].table['gone']",
        "L['x'].options['a']",
        "list(L['x'].options)[0]",
        "L['x'].gone.more[1]",
        "G['gone']",
        "G['__import_gone'].pi",
    ],
)
def test_expression_that_leads_nowhere_is_missing(expression: str) -> None:
    assert found(expression, {"x": VALUE}) is MISSING


def test_keys_of_equal_value_and_different_type_are_different_nodes() -> None:
    table = table_of("L['x'][1]", "L['x'][1.0]", "L['x'][True]")
    assert len(table.nodes) == 4


@pytest.mark.parametrize(
    "expression", ["L['x'] + 1", "f(L['x'])", "weird(L['x']).a", "3", "L['x'].items[L['y']]", "L['x'][y]"]
)
def test_expression_without_a_portable_form_is_refused_with_its_text(expression: str) -> None:
    with pytest.raises(NotPortable, match="cannot be found again in another process"):
        table_of(expression)
