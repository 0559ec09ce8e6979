"""Paths to guarded objects: parsed once, found again in another process."""

from __future__ import annotations

import builtins
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from warmrank.worker.errors import NotPortable
from warmrank.worker.guards.paths import PathTable
from warmrank.worker.runtime.check import MISSING, resolve, root_names, text


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


def test_fields_of_a_dataclass_are_found() -> None:
    fields = found("___dataclass_fields(L['x'].options)", {"x": VALUE})
    assert [field.name for field in fields] == ["width"]


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


def test_builtins_are_those_of_this_process() -> None:
    assert found("G['__builtins_dict___3']", {}) is vars(builtins)


def test_equal_prefixes_are_one_node() -> None:
    table = table_of("L['x'].a.b", "L['x'].a.c", "L['x'].a.b")
    assert table.nodes == [
        (-1, "local", "x"),
        (0, "attr", "a"),
        (1, "attr", "b"),
        (1, "attr", "c"),
    ]


def test_nodes_stand_behind_their_parents() -> None:
    table = table_of("L['x'].table['a']", "type(L['y'].b)", "list(dict.keys(L['x'].table))[0]")
    assert all(parent < index for index, (parent, _, _) in enumerate(table.nodes))


def test_keys_of_equal_value_and_different_type_are_different_nodes() -> None:
    table = table_of("L['x'][1]", "L['x'][1.0]", "L['x'][True]")
    assert len(table.nodes) == 4


@pytest.mark.parametrize(
    "expression", ["L['x'] + 1", "f(L['x'])", "weird(L['x']).a", "3", "L['x'].items[L['y']]", "L['x'][y]"]
)
def test_expression_without_a_portable_form_is_refused_with_its_text(expression: str) -> None:
    with pytest.raises(NotPortable, match="cannot be found again in another process"):
        table_of(expression)


def test_root_of_every_node_is_known() -> None:
    table = table_of("L['x'].a.b", "G['LIMIT']", "G['__import_math'].pi")
    assert root_names(table.nodes) == [
        ("local", "x"),
        ("local", "x"),
        ("local", "x"),
        ("global", "LIMIT"),
        ("import", "math"),
        ("import", "math"),
    ]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("L['self']._modules['0'].weight", "self._modules['0'].weight"),
        ("type(L['x'])", "type(x)"),
        ("list(dict.keys(L['x']))[1]", "list(x)[1]"),
        ("G['__import_math'].pi", "math.pi"),
        ("G['__builtins_dict___0']['len']", "builtins['len']"),
        ("L['x'][(1, 2)]", "x[(1, 2)]"),
    ],
)
def test_path_reads_as_a_person_would_write_it(expression: str, expected: str) -> None:
    table = table_of(expression)
    assert text(table.nodes, len(table.nodes) - 1) == expected
