"""A module whose method reads Python state in many ways, and for each way a change that it must notice."""

from __future__ import annotations

import collections
import functools
import math
import os
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.reader_state import (
    Base,
    Colour,
    Dictionary,
    Frozen,
    Layer,
    Level,
    Listing,
    Looked,
    OtherThing,
    Pair,
    Plain,
    Sized,
    Slotted,
    Thing,
    closed_over,
    joined,
    matched,
)

LIMIT = 5
SERIES = [1, 2]
TABLE = {"a": 1}


def plus_one(value: int) -> int:
    return value + 1


def plus_fifty(value: int) -> int:
    return value + 50


def negative(value: int) -> int:
    return -value


def with_list(given: list[int] = SERIES) -> int:
    return sum(given)


def with_keyword(*, k: int = 2) -> int:
    return k


Read = Callable[["Reader"], Any]
Change = Callable[["Reader", pytest.MonkeyPatch], Any]


class Reader(Base):
    """Adds what one of the `READS` makes of its state."""

    OWN = 4
    OWN_TABLE = {"a": 4}  # noqa: RUF012 - a mutable class attribute is under test

    def __init__(self, chosen: str) -> None:  # noqa: PLR0915 - one line for each kind of state
        super().__init__()
        self.chosen = chosen
        self.named: dict[str, int] = {"a": 1, "b": 2}
        self.empty: dict[str, int] = {}
        self.empty_list: list[int] = []
        self.listed = [1, 2]
        self.members = {1, 2}
        self.frozen = frozenset({1})
        self.flags = [False, False]
        self.label = "ab"
        self.count = 5
        self.pair = (1, 2)
        self.nested = (1, (2,))
        self.thing = self.same_thing = Thing()
        self.other_thing = Thing()
        self.called = plus_one
        self.nothing: Any = None
        self.range = range(3)
        self.deque = collections.deque([1, 2])
        self.default: Any = collections.defaultdict(int, q=1)
        self.ordered = collections.OrderedDict(a=1, b=2)
        self.space = types.SimpleNamespace(x=2)
        self.plain = Plain(1)
        self.by_frozen = {Frozen(1): 4}
        self.named_pair = Pair(1, 2)
        self.slotted = Slotted()
        self.sized = Sized(4)
        self.looked = Looked()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.layers_by_name = nn.ModuleDict({"a": Layer()})
        self.weight = nn.Parameter(torch.ones(3))
        self.other_weight = nn.Parameter(torch.ones(3))
        self.matrix = nn.Parameter(torch.ones(4, 3))
        self.register_buffer("held", torch.ones(3))
        self.held: torch.Tensor
        self.register_buffer("no_buffer", None)
        self.register_parameter("no_parameter", None)
        self.real = 4.0
        self.zero = 0.0
        self.one: Any = 1
        self.closure = closed_over()
        self.partial = functools.partial(joined, 1)
        self.partial_keyword = functools.partial(joined, b=1)
        self.bound = Thing().plus
        self.colour = Colour.RED
        self.level = Level.LOW
        self.dtype = torch.float32
        self.size = torch.Size([2])
        self.dictionary = Dictionary(a=1)
        self.listing = Listing([1])
        self.user_dict = collections.UserDict(a=1)
        self.cls: type[Thing] = Thing
        self.attribute_name = "one"
        self.keywords = {"a": 1, "b": 2}
        self.key = plus_one
        self.tensors = [torch.ones(1)]

    def forward(self, x: torch.Tensor) -> Any:
        return x + READS[self.chosen][0](self)


def absent_attribute_by_exception(m: Reader) -> Any:
    try:
        return m.other_thing.absent  # type: ignore[attr-defined]
    except AttributeError:
        return 3


def absent_key_by_exception(m: Reader) -> Any:
    try:
        return m.keywords["absent"]
    except KeyError:
        return 3


def absent_key_of_global(m: Reader) -> Any:
    try:
        return TABLE["absent"]
    except KeyError:
        return 3


def special_methods(m: Reader) -> Any:
    truth = 2 if m.sized else 3
    return len(m.sized) + m.sized[1] + sum(m.sized) + m.sized() + truth + (4 in m.sized) + (m.sized == 4)


READS: dict[str, tuple[Read, Change]] = {
    "length_of_dict": (lambda m: len(m.named), lambda m, _: m.named.update(z=1)),
    "truth_of_dict": (lambda m: 2 if m.empty else 3, lambda m, _: m.empty.update(z=1)),
    "truth_of_list": (lambda m: 2 if m.empty_list else 3, lambda m, _: m.empty_list.append(1)),
    "membership_in_list": (lambda m: 2 if 7 in m.listed else 3, lambda m, _: m.listed.__setitem__(0, 7)),
    "membership_in_set": (lambda m: 2 if 7 in m.members else 3, lambda m, _: m.members.add(7)),
    "sum_of_frozenset": (lambda m: sum(m.frozen), lambda m, _: setattr(m, "frozen", frozenset({9}))),
    "index_in_list": (lambda m: m.listed.index(2), lambda m, _: m.listed.insert(0, 5)),
    "items_of_dict": (
        lambda m: sum(len(key) * value for key, value in m.named.items()),
        lambda m, _: m.named.update(b=9),
    ),
    "order_of_dict": (
        lambda m: next(iter(m.named.values())),
        lambda m, _: m.named.update(a=m.named.pop("a")),
    ),
    "any_of_list": (lambda m: 2 if any(m.flags) else 3, lambda m, _: m.flags.__setitem__(0, True)),
    "start_of_text": (lambda m: 2 if m.label.startswith("a") else 3, lambda m, _: setattr(m, "label", "bc")),
    "length_of_formatted": (lambda m: len(f"{m.label}-{m.count}"), lambda m, _: setattr(m, "count", 1000)),
    "item_of_tuple": (lambda m: m.pair[0] + matched(m.pair), lambda m, _: setattr(m, "pair", (9, 2))),
    "item_of_nested_tuple": (lambda m: m.nested[1][0], lambda m, _: setattr(m, "nested", (1, (9,)))),
    "type_of_object": (
        lambda m: 2 if type(m.thing) is Thing else 3,
        lambda m, _: setattr(m, "thing", OtherThing()),
    ),
    "attribute": (lambda m: m.thing.x, lambda m, _: setattr(m.thing, "x", 9)),
    "attribute_of_attribute": (lambda m: m.thing.child.x, lambda m, _: setattr(m.thing.child, "x", 9)),
    "absent_attribute": (lambda m: getattr(m.thing, "absent", 3), lambda m, _: setattr(m.thing, "absent", 9)),
    "absent_attribute_by_exception": (
        absent_attribute_by_exception,
        lambda m, _: setattr(m.other_thing, "absent", 9),
    ),
    "absent_key": (lambda m: m.empty.get("absent", 3), lambda m, _: m.empty.update(absent=9)),
    "absent_key_by_exception": (absent_key_by_exception, lambda m, _: m.keywords.update(absent=9)),
    "absent_key_of_global": (absent_key_of_global, lambda _, patch: patch.setitem(TABLE, "absent", 9)),
    "absent_environment_variable": (
        lambda m: len(os.environ.get("WARMRANK_READER", "")),
        lambda _, patch: patch.setenv("WARMRANK_READER", "long text"),
    ),
    "environment_variable": (
        lambda m: len(os.environ["WARMRANK_READER_SET"]),
        lambda _, patch: patch.setenv("WARMRANK_READER_SET", "changed"),
    ),
    "instance_dict": (lambda m: vars(m.thing)["x"], lambda m, _: setattr(m.thing, "x", 9)),
    "none": (lambda m: 2 if m.nothing is None else 3, lambda m, _: setattr(m, "nothing", 4)),
    "function_as_attribute": (
        lambda m: m.called(3) + (2 if m.called is plus_one else 3),
        lambda m, _: setattr(m, "called", plus_fifty),
    ),
    "same_object": (
        lambda m: 2 if m.thing is m.same_thing else 3,
        lambda m, _: setattr(m, "same_thing", Thing()),
    ),
    "different_objects": (
        lambda m: 2 if m.thing is m.other_thing else 3,
        lambda m, _: setattr(m, "other_thing", m.thing),
    ),
    "range_object": (lambda m: sum(m.range), lambda m, _: setattr(m, "range", range(1, 6))),
    "deque": (lambda m: sum(m.deque), lambda m, _: m.deque.append(4)),
    "default_dict": (lambda m: m.default["q"], lambda m, _: m.default.update(q=9)),
    "ordered_dict": (lambda m: next(iter(m.ordered.values())), lambda m, _: m.ordered.move_to_end("a")),
    "namespace": (lambda m: m.space.x, lambda m, _: setattr(m.space, "x", 9)),
    "equality_of_dataclass": (
        lambda m: 2 if m.plain == Plain(1) else 3,
        lambda m, _: setattr(m, "plain", Plain(5)),
    ),
    "dataclass_as_key": (
        lambda m: m.by_frozen.get(Frozen(1), 3),
        lambda m, _: setattr(m, "by_frozen", {Frozen(2): 4}),
    ),
    "named_tuple": (lambda m: m.named_pair.left, lambda m, _: setattr(m, "named_pair", Pair(9, 2))),
    "slot": (lambda m: m.slotted.x, lambda m, _: setattr(m.slotted, "x", 9)),
    "property_of_object": (lambda m: m.thing.shown, lambda m, _: setattr(m.thing, "hidden", 9)),
    "special_methods": (special_methods, lambda m, _: setattr(m.sized, "count", 9)),
    "attribute_hook": (lambda m: m.looked.found, lambda m, _: m.looked.table.update(found=9)),
    "number_of_layers": (lambda m: len(m.layers), lambda m, _: m.layers.append(Layer())),
    "attribute_of_layer": (lambda m: m.layers[0].factor, lambda m, _: setattr(m.layers[0], "factor", 9)),
    "different_layers": (
        lambda m: 2 if m.layers[0] is m.layers[1] else 3,
        lambda m, _: m.layers.__setitem__(1, m.layers[0]),
    ),
    "number_of_children": (lambda m: len(list(m.children())), lambda m, _: setattr(m, "added", Layer())),
    "names_of_layers": (
        lambda m: 2 if "q" in m.layers_by_name else 3,
        lambda m, _: m.layers_by_name.update({"q": Layer()}),
    ),
    "number_of_parameters": (
        lambda m: len([name for name, _ in m.named_parameters()]),
        lambda m, _: setattr(m, "added", nn.Parameter(torch.ones(2))),
    ),
    "sizes_of_buffers": (
        lambda m: sum(buffer.shape[0] for _, buffer in m.named_buffers()),
        lambda m, _: m.register_buffer("added", torch.ones(5)),
    ),
    "size_of_parameter": (
        lambda m: m.weight.shape[0],
        lambda m, _: setattr(m, "weight", nn.Parameter(torch.ones(5))),
    ),
    "gradients_of_parameter": (
        lambda m: 2 if m.weight.requires_grad else 3,
        lambda m, _: m.weight.requires_grad_(False),
    ),
    "layout_of_parameter": (
        lambda m: 2 if m.matrix.is_contiguous() else 3,
        lambda m, _: setattr(m, "matrix", nn.Parameter(torch.ones(3, 4).t())),
    ),
    "rank_of_buffer": (lambda m: m.held.ndim, lambda m, _: setattr(m, "held", torch.ones(2, 2))),
    "different_parameters": (
        lambda m: 2 if m.weight is m.other_weight else 3,
        lambda m, _: setattr(m, "other_weight", m.weight),
    ),
    "missing_buffer": (
        lambda m: 2 if m.no_buffer is None else 3,
        lambda m, _: setattr(m, "no_buffer", torch.ones(1)),
    ),
    "missing_parameter": (
        lambda m: 2 if m.no_parameter is None else 3,
        lambda m, _: setattr(m, "no_parameter", nn.Parameter(torch.ones(1))),
    ),
    "number_of_tensors": (lambda m: len(m.tensors), lambda m, _: m.tensors.append(torch.ones(1))),
    "root_of_number": (lambda m: math.sqrt(m.real) + int(m.real), lambda m, _: setattr(m, "real", 9.0)),
    "sign_of_zero": (lambda m: math.copysign(1.0, m.zero), lambda m, _: setattr(m, "zero", -0.0)),
    "type_of_number": (lambda m: 2 if m.one is True else 3, lambda m, _: setattr(m, "one", True)),
    "class_attribute": (lambda m: m.OWN, lambda _, patch: patch.setattr(Reader, "OWN", 9)),
    "class_attribute_hidden": (lambda m: m.OWN, lambda m, _: setattr(m, "OWN", 9)),
    "dict_of_class": (lambda m: m.OWN_TABLE["a"], lambda _, patch: patch.setitem(Reader.OWN_TABLE, "a", 9)),
    "attribute_of_base_class": (lambda m: m.INHERITED, lambda _, patch: patch.setattr(Base, "INHERITED", 9)),
    "attribute_of_another_class": (lambda m: Thing.KIND, lambda _, patch: patch.setattr(Thing, "KIND", 9)),
    "class_as_attribute": (lambda m: m.cls.KIND + m.cls().x, lambda m, _: setattr(m, "cls", OtherThing)),
    "global_number": (lambda m: LIMIT, lambda _, patch: patch.setitem(globals(), "LIMIT", 9)),
    "global_list": (lambda m: sum(SERIES), lambda _, patch: patch.setitem(globals(), "SERIES", [1, 2, 3])),
    "global_dict": (lambda m: TABLE["a"], lambda _, patch: patch.setitem(TABLE, "a", 9)),
    "global_function": (
        lambda m: negative(3),
        lambda _, patch: patch.setitem(globals(), "negative", plus_fifty),
    ),
    "default_argument": (
        lambda m: with_list(),
        lambda _, patch: patch.setattr(with_list, "__defaults__", ([9],)),
    ),
    "default_keyword": (
        lambda m: with_keyword(),
        lambda _, patch: patch.setattr(with_keyword, "__kwdefaults__", {"k": 9}),
    ),
    "closure": (lambda m: m.closure(3), lambda m, _: setattr(m.closure.__closure__[0], "cell_contents", 9)),  # type: ignore[index]
    "partial_argument": (
        lambda m: m.partial(1),
        lambda m, _: setattr(m, "partial", functools.partial(joined, 9)),
    ),
    "partial_keyword": (
        lambda m: m.partial_keyword(1),
        lambda m, _: setattr(m, "partial_keyword", functools.partial(joined, b=9)),
    ),
    "object_of_bound_method": (lambda m: m.bound(), lambda m, _: setattr(m.bound.__self__, "x", 9)),  # type: ignore[attr-defined]
    "enum_member": (
        lambda m: m.colour.value + len(m.colour.name) + (2 if m.colour is Colour.RED else 3),
        lambda m, _: setattr(m, "colour", Colour.ULTRAMARINE),
    ),
    "integer_enum_member": (lambda m: m.level + 1, lambda m, _: setattr(m, "level", Level.HIGH)),
    "dtype": (
        lambda m: 2 if m.dtype == torch.float16 else 3,
        lambda m, _: setattr(m, "dtype", torch.float16),
    ),
    "size": (lambda m: m.size[0], lambda m, _: setattr(m, "size", torch.Size([9]))),
    "subclass_of_dict": (lambda m: m.dictionary["a"], lambda m, _: m.dictionary.update(a=9)),
    "subclass_of_list": (lambda m: m.listing[0], lambda m, _: m.listing.__setitem__(0, 9)),
    "user_dict": (lambda m: m.user_dict["a"], lambda m, _: m.user_dict.update(a=9)),
    "attribute_by_name": (
        lambda m: getattr(m, m.attribute_name),
        lambda m, _: setattr(m, "attribute_name", "count"),
    ),
    "keyword_arguments": (
        lambda m: joined(**{key: m.keywords[key] for key in ("a", "b")}),
        lambda m, _: m.keywords.update(a=9),
    ),
    "function_as_key": (lambda m: sum(map(m.key, m.listed)), lambda m, _: setattr(m, "key", negative)),
    "training": (lambda m: 2 if m.training else 3, lambda m, _: m.eval()),
}
"""Ways of reading, each with a change that it must notice."""
