"""What conditions are made of: guards as JSON, paths to objects, constants, and descriptions of objects."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import importlib
import json
import math
import operator
import sys
from collections import Counter, namedtuple
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, Generic, NamedTuple, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.fuzz.parts.calls import CALLED
from tests.support.small_models import Plain
from tests.support.tracing import compiled, misfits, traced, traces_more
from warmrank.cache_store.canonical import canonical_json
from warmrank.worker.errors import NotPortable
from warmrank.worker.guards.paths import PathTable
from warmrank.worker.guards.translate import refuse_unaccounted
from warmrank.worker.keys.code import class_digest, function_digest
from warmrank.worker.runtime.artifact import PortableGuards, TracedSource
from warmrank.worker.runtime.check import MISSING, resolve
from warmrank.worker.runtime.constants import describe, encode
from warmrank.worker.runtime.decoding import decode, equal
from warmrank.worker.runtime.files import guards_json
from warmrank.worker.torch_private.dynamo_guards import GuardTree, Leaf
from warmrank.worker.torch_private.patching import intercepted, steps_in

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


@settings(max_examples=40)
@given(guards=GUARDS)
def test_guards_round_trip_through_json(guards: PortableGuards) -> None:
    assert PortableGuards.from_json(json.loads(json.dumps(guards_json(guards)))) == guards


class Point(NamedTuple):
    x: int
    y: int


def table_of(*expressions: str) -> PathTable:
    table = PathTable({"__import_math": "math", "__import_gone": "no_such_module"})
    for expression in expressions:
        table.add(expression)
    return table


def found_paths(expression: str, local: Mapping[str, Any], global_: Mapping[str, Any] | None = None) -> Any:
    """What an expression leads to."""
    table = table_of(expression)
    values: list[Any] = []
    for index in range(len(table.nodes)):
        values.append(resolve(table.nodes, values, index, {"local": local, "global": global_ or {}}))
    return values[-1]


VALUE = SimpleNamespace(
    items=[10, 11],
    table={"a": 1, 2: "two", (1, 2): "pair", 1.5: "half"},
    plain=object(),
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
        ("type(L['x'])", SimpleNamespace),
        ("dict(L['x'].table)", VALUE.__dict__["table"]),
        ("___namedtuple_fields(L['x'].point)", ("x", "y")),
        ("L['x'].__dict__['items']", VALUE.__dict__["items"]),
        ("G['__import_math'].pi", math.pi),
        ("G['__builtins_dict___0']['len']", len),
        ("G['LIMIT']", 7),
    ],
)
def test_expression_of_dynamo_leads_to_its_object(expression: str, expected: Any) -> None:
    assert found_paths(expression, {"x": VALUE}, {"LIMIT": 7}) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "L['y']", "L['x'].gone", "L['x'].items[9]", "L['x'].items['a']", "L['x'].table['gone']",
        "L['x'].plain['a']", "list(L['x'].plain)[0]", "L['x'].gone.more[1]", "G['gone']",
        "G['__import_gone'].pi",
    ],
)  # fmt: skip
def test_expression_that_leads_nowhere_is_missing(expression: str) -> None:
    assert found_paths(expression, {"x": VALUE}) is MISSING


def test_keys_of_equal_value_and_different_type_are_different_nodes() -> None:
    table = table_of("L['x'][1]", "L['x'][1.0]", "L['x'][True]")
    assert len(table.nodes) == 4


@pytest.mark.parametrize(
    "expression", ["L['x'] + 1", "f(L['x'])", "weird(L['x']).a", "3", "L['x'].items[L['y']]", "L['x'][y]"]
)
def test_expression_without_a_portable_form_is_refused_with_its_text(expression: str) -> None:
    with pytest.raises(NotPortable, match="cannot be found again in another process"):
        table_of(expression)


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Level(enum.IntEnum):
    LOW = 1


class Flag(enum.Flag):
    A = 1
    B = 2


Untyped = namedtuple("Untyped", ["x", "y"])  # noqa: PYI024 - the untyped kind is under test


class Outer:
    class Inner:
        pass


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=12),
    st.binary(max_size=12),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False),
    st.sampled_from([Colour.RED, Level.LOW, torch.float16, torch.int64, torch.strided, torch.channels_last]),
    st.just(...),
)
HASHABLE = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=3,
)
VALUES = st.recursive(
    SCALARS
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 3))
    | st.builds(slice, st.none() | st.integers(), st.none() | st.integers(), st.none() | st.integers()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=8,
)


def exact(value: Any) -> Any:
    """The value with its types, so that ``1 == True`` and ``0.0 == -0.0`` do not pass for equal."""
    if isinstance(value, dict):
        return (dict, [(exact(key), exact(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [exact(item) for item in value])
    if isinstance(value, (set, frozenset)):
        return (type(value), sorted(repr(exact(item)) for item in value))
    return (type(value), repr(value))


@given(value=VALUES)
def test_constant_round_trips_through_json(value: Any) -> None:
    assert exact(decode(json.loads(json.dumps(encode(value))))) == exact(value)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -0.0,
        torch.Size([2, 3]),
        torch.device("cpu"),
        torch.channels_last_3d,
        torch.sparse_coo,
        Untyped(1, (2.0, None)),
        Flag.B,
        torch.distributed.ReduceOp.MAX,
        int,
        torch.Tensor,
        Outer.Inner,
        torch.nn.Linear,
        {"b": 1, "a": 2},
        2**80,
        "\ud800",
    ],
    ids=repr,
)
def test_special_constant_round_trips(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value), ensure_ascii=False).encode()))
    assert exact(back) == exact(value)


@given(values=st.lists(st.integers() | st.text(), min_size=2, unique=True))
def test_sets_encode_alike_whatever_their_order(values: list[Any]) -> None:
    turned = values[::-1]
    assert encode(set(values)) == encode(set(turned))


def test_numbers_of_different_type_encode_differently() -> None:
    assert len({json.dumps(encode(value)) for value in (1, 1.0, True, 1 + 0j, Level.LOW, "1", b"1")}) == 7


@pytest.mark.parametrize(
    "value", [object(), torch.ones(1), lambda: 0, iter([])], ids=lambda v: type(v).__name__
)
def test_value_without_a_meaning_elsewhere_is_refused_by_type(value: object) -> None:
    with pytest.raises(
        NotPortable, match=f"{type(value).__qualname__} cannot be compared in another process"
    ):
        encode(value)


@pytest.mark.parametrize(
    "value",
    [np.float32(1.1), np.float64(1.1), np.int8(3), np.bool_(True), np.arange(6).reshape(2, 3)],
    ids=["float32", "float64", "int8", "bool", "array"],
)
def test_numbers_of_numpy_keep_type_and_value(value: Any) -> None:
    again = decode(encode(value))
    assert type(again) is type(value)
    assert again.dtype == value.dtype
    assert (again == value).all()


def add(x: int, y: int) -> int:
    return x + y


def made(constant: int) -> Callable[..., int]:
    scope: dict[str, Any] = {"__name__": "made_identity"}
    exec(f"def f(x):\n    return x + {constant}\n", scope)  # noqa: S102 - two functions that differ in one place
    f: Callable[..., int] = scope["f"]
    return f


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math, ["module", "math"]),
        (F, ["module", "torch.nn.functional"]),
        (Plain, ["class", "tests.support.small_models", "Plain", class_digest(Plain)]),
        (torch.nn.Linear, ["class", "torch.nn.modules.linear", "Linear"]),
        (Generic, ["class", "typing", "Generic"]),
        (list[int], ["generic", ["class", "builtins", "list"], ["class", "builtins", "int"]]),
        (add, ["function", __name__, "add", function_digest(cast("FunctionType", add))]),
        (F.relu, ["function", "torch.nn.functional", "relu", ""]),
        (len, ["builtin", "builtins", "len"]),
        (str.join, ["builtin", "builtins.str", "join"]),
        (operator.add, ["builtin", "_operator", "add"]),
        (torch.ops.aten.add.Tensor, ["operator", "aten.add.Tensor"]),
        (torch.ops.aten.add, ["operator", "aten.add"]),
        (Colour.RED, ["constant", {"enum": [__name__, "Colour", "RED", 1]}]),
        (3, ["constant", 3]),
        (torch.float16, ["constant", {"dtype": "float16"}]),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, list) else "",
)
def test_description_says_what_the_object_is(value: Any, expected: list[Any]) -> None:
    assert describe(value) == expected


@pytest.mark.parametrize(
    "other",
    [functools.partial(add, 2, y=2), functools.partial(add, 1, y=3), functools.partial(made(1), 1, y=2)],
    ids=["argument", "keyword", "function"],
)
def test_partial_with_something_else_differs(other: Any) -> None:
    assert describe(other) != describe(functools.partial(add, 1, y=2))


@pytest.mark.parametrize("keywords", [{"a": 1, "b": 2}, {"b": 2, "a": 1}], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("kind", [operator.methodcaller, functools.partial])
def test_keywords_that_an_object_was_made_with_are_in_a_file_in_their_order(
    kind: Any, keywords: dict[str, int]
) -> None:
    """A file sorts the keys of JSON objects."""
    made = functools.partial(kind, add if kind is functools.partial else "clamp")
    described = describe(made(**keywords))
    assert equal(json.loads(canonical_json({"made": described}))["made"], described)
    assert not equal(describe(made(**dict(reversed(keywords.items())))), described)


@pytest.mark.parametrize("value", [Plain(), torch.ones(2)], ids=["module", "tensor"])
def test_object_with_nothing_but_an_address_is_refused_by_type(value: Any) -> None:
    with pytest.raises(NotPortable, match=f"type {type(value).__qualname__} is compared by address"):
        describe(value)


def test_field_that_does_not_say_how_it_is_passed_has_the_same_digest_in_every_process() -> None:
    """Such a field's kw_only is an object, whose text holds its address; transformers makes them."""
    known = set()
    for mark in ("one", "another"):
        made = dataclasses.make_dataclass("Made", [("size", int, 3)])
        made.__module__ = __name__
        (field,) = dataclasses.fields(made)
        field.kw_only = type("Missing", (), {"__repr__": lambda _, mark=mark: mark})()
        known.add(class_digest(made))
    assert len(known) == 1


X = torch.arange(6.0).reshape(3, 2)


@pytest.fixture
def printed() -> Iterator[list[Any]]:
    """Dynamo's own holders of the trees that are built."""
    seen: list[Any] = []

    class Notes:
        @steps_in("torch._dynamo.guards:CheckFunctionManager", "compile_check_fn")
        def compiled(self, original: Callable[..., Any], manager: Any, *args: Any) -> None:
            original(manager, *args)
            seen.append(manager.guard_manager)

    with intercepted(Notes()):
        yield seen


def num_printed(holder: Any) -> Counter[str]:
    """Conditions in Dynamo's own print of a tree, by class of the leaf."""
    lines = [line.lstrip("| ") for line in str(holder).splitlines()]
    kinds = (line.removeprefix("+- ").partition(":")[0] for line in lines if line.startswith("+- "))
    return Counter(kind for kind in kinds if kind.isupper())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own derivatives
@pytest.mark.filterwarnings("ignore:.* should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.one_in(12)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=traces_more if name == "derived numbers" else ())
        for name, each in CALLED.items()
        if not each.refused
    ],
)
def test_leaves_are_accounted_for_and_counts_agree(
    name: str, printed: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = CALLED[name].program
    program.write(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for module in [each for each in sys.modules if each.partition(".")[0] == "fuzzed"]:
        monkeypatch.delitem(sys.modules, module)
    main = importlib.import_module("fuzzed.main")
    args, kwargs = main.arguments(0)
    with contextlib.ExitStack() as stack:
        for context in eval(f"({program.context},)", {"torch": torch}):  # noqa: S307 - of the table
            stack.enter_context(context)
        # What has no symbols is traced for its sizes, see `worker.compile.compiler`.
        dynamic = program.dynamic and name not in ("no symbol", "texts of lists that change")
        trace_ = traced(main.build().forward, *args, dynamic=dynamic, **kwargs)
    refuse_unaccounted(trace_.tree, pinned=())
    counted = Counter(leaf.kind for leaf in trace_.tree.leaves for _ in leaf.conditions)
    assert counted == num_printed(printed[-1])


def test_leaf_that_nothing_stands_for_is_refused_with_its_name_and_object() -> None:
    leaf = Leaf(source="L['self'].x", kind="NEW_MATCH", conditions=("new_match(L['self'].x)",), made_by="")
    tree = GuardTree(leaves=(leaf,), dicts=(), looked_up=())
    with pytest.raises(NotPortable, match=r"L\['self'\].x by NEW_MATCH"):
        refuse_unaccounted(tree, pinned=())


class Appends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = [1.0]

    def forward(self, x: torch.Tensor, given: list[float]) -> torch.Tensor:
        given.append(2.0)
        return x * len(self.a)


def test_argument_that_is_an_attribute_too_is_noticed() -> None:
    holder = Appends()
    artifact = compiled(holder.forward, X, [1.0])
    assert not misfits(artifact, holder.forward, X, [1.0])
    assert misfits(artifact, holder.forward, X, holder.a)
