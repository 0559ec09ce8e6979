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
READS: dict[str, Read] = {}
CHANGES: dict[str, Change] = {}


def read(change: Change) -> Callable[[Read], Read]:
    """Enter a way of reading, with a change that it must notice."""

    def enter(function: Read) -> Read:
        READS[function.__name__] = function
        CHANGES[function.__name__] = change
        return function

    return enter


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
        return x + READS[self.chosen](self)


@read(lambda m, _: m.named.update(z=1))
def length_of_dict(m: Reader) -> Any:
    return len(m.named)


@read(lambda m, _: m.empty.update(z=1))
def truth_of_dict(m: Reader) -> Any:
    return 2 if m.empty else 3


@read(lambda m, _: m.empty_list.append(1))
def truth_of_list(m: Reader) -> Any:
    return 2 if m.empty_list else 3


@read(lambda m, _: m.listed.__setitem__(0, 7))
def membership_in_list(m: Reader) -> Any:
    return 2 if 7 in m.listed else 3


@read(lambda m, _: m.members.add(7))
def membership_in_set(m: Reader) -> Any:
    return 2 if 7 in m.members else 3


@read(lambda m, _: setattr(m, "frozen", frozenset({9})))
def sum_of_frozenset(m: Reader) -> Any:
    return sum(m.frozen)


@read(lambda m, _: m.listed.insert(0, 5))
def index_in_list(m: Reader) -> Any:
    return m.listed.index(2)


@read(lambda m, _: m.named.update(b=9))
def items_of_dict(m: Reader) -> Any:
    return sum(len(key) * value for key, value in m.named.items())


@read(lambda m, _: m.named.update(a=m.named.pop("a")))
def order_of_dict(m: Reader) -> Any:
    return next(iter(m.named.values()))


@read(lambda m, _: m.flags.__setitem__(0, True))
def any_of_list(m: Reader) -> Any:
    return 2 if any(m.flags) else 3


@read(lambda m, _: setattr(m, "label", "bc"))
def start_of_text(m: Reader) -> Any:
    return 2 if m.label.startswith("a") else 3


@read(lambda m, _: setattr(m, "count", 1000))
def length_of_formatted(m: Reader) -> Any:
    return len(f"{m.label}-{m.count}")


@read(lambda m, _: setattr(m, "pair", (9, 2)))
def item_of_tuple(m: Reader) -> Any:
    return m.pair[0] + matched(m.pair)


@read(lambda m, _: setattr(m, "nested", (1, (9,))))
def item_of_nested_tuple(m: Reader) -> Any:
    return m.nested[1][0]


@read(lambda m, _: setattr(m, "thing", OtherThing()))
def type_of_object(m: Reader) -> Any:
    return 2 if type(m.thing) is Thing else 3


@read(lambda m, _: setattr(m.thing, "x", 9))
def attribute(m: Reader) -> Any:
    return m.thing.x


@read(lambda m, _: setattr(m.thing.child, "x", 9))
def attribute_of_attribute(m: Reader) -> Any:
    return m.thing.child.x


@read(lambda m, _: setattr(m.thing, "absent", 9))
def absent_attribute(m: Reader) -> Any:
    return getattr(m.thing, "absent", 3)


@read(lambda m, _: setattr(m.other_thing, "absent", 9))
def absent_attribute_by_exception(m: Reader) -> Any:
    try:
        return m.other_thing.absent  # type: ignore[attr-defined]
    except AttributeError:
        return 3


@read(lambda m, _: m.empty.update(absent=9))
def absent_key(m: Reader) -> Any:
    return m.empty.get("absent", 3)


@read(lambda m, _: m.keywords.update(absent=9))
def absent_key_by_exception(m: Reader) -> Any:
    try:
        return m.keywords["absent"]
    except KeyError:
        return 3


@read(lambda _, patch: patch.setitem(TABLE, "absent", 9))
def absent_key_of_global(m: Reader) -> Any:
    try:
        return TABLE["absent"]
    except KeyError:
        return 3


@read(lambda _, patch: patch.setenv("WARMRANK_READER", "long text"))
def absent_environment_variable(m: Reader) -> Any:
    return len(os.environ.get("WARMRANK_READER", ""))


@read(lambda _, patch: patch.setenv("WARMRANK_READER_SET", "changed"))
def environment_variable(m: Reader) -> Any:
    return len(os.environ["WARMRANK_READER_SET"])


@read(lambda m, _: setattr(m.thing, "x", 9))
def instance_dict(m: Reader) -> Any:
    return vars(m.thing)["x"]


@read(lambda m, _: setattr(m, "nothing", 4))
def none(m: Reader) -> Any:
    return 2 if m.nothing is None else 3


@read(lambda m, _: setattr(m, "called", plus_fifty))
def function_as_attribute(m: Reader) -> Any:
    return m.called(3) + (2 if m.called is plus_one else 3)


@read(lambda m, _: setattr(m, "same_thing", Thing()))
def same_object(m: Reader) -> Any:
    return 2 if m.thing is m.same_thing else 3


@read(lambda m, _: setattr(m, "other_thing", m.thing))
def different_objects(m: Reader) -> Any:
    return 2 if m.thing is m.other_thing else 3


@read(lambda m, _: setattr(m, "range", range(1, 6)))
def range_object(m: Reader) -> Any:
    return sum(m.range)


@read(lambda m, _: m.deque.append(4))
def deque(m: Reader) -> Any:
    return sum(m.deque)


@read(lambda m, _: m.default.update(q=9))
def default_dict(m: Reader) -> Any:
    return m.default["q"]


@read(lambda m, _: m.ordered.move_to_end("a"))
def ordered_dict(m: Reader) -> Any:
    return next(iter(m.ordered.values()))


@read(lambda m, _: setattr(m.space, "x", 9))
def namespace(m: Reader) -> Any:
    return m.space.x


@read(lambda m, _: setattr(m, "plain", Plain(5)))
def equality_of_dataclass(m: Reader) -> Any:
    return 2 if m.plain == Plain(1) else 3


@read(lambda m, _: setattr(m, "by_frozen", {Frozen(2): 4}))
def dataclass_as_key(m: Reader) -> Any:
    return m.by_frozen.get(Frozen(1), 3)


@read(lambda m, _: setattr(m, "named_pair", Pair(9, 2)))
def named_tuple(m: Reader) -> Any:
    return m.named_pair.left


@read(lambda m, _: setattr(m.slotted, "x", 9))
def slot(m: Reader) -> Any:
    return m.slotted.x


@read(lambda m, _: setattr(m.thing, "hidden", 9))
def property_of_object(m: Reader) -> Any:
    return m.thing.shown


@read(lambda m, _: setattr(m.sized, "count", 9))
def special_methods(m: Reader) -> Any:
    truth = 2 if m.sized else 3
    return len(m.sized) + m.sized[1] + sum(m.sized) + m.sized() + truth + (4 in m.sized) + (m.sized == 4)


@read(lambda m, _: m.looked.table.update(found=9))
def attribute_hook(m: Reader) -> Any:
    return m.looked.found


@read(lambda m, _: m.layers.append(Layer()))
def number_of_layers(m: Reader) -> Any:
    return len(m.layers)


@read(lambda m, _: setattr(m.layers[0], "factor", 9))
def attribute_of_layer(m: Reader) -> Any:
    return m.layers[0].factor


@read(lambda m, _: m.layers.__setitem__(1, m.layers[0]))
def different_layers(m: Reader) -> Any:
    return 2 if m.layers[0] is m.layers[1] else 3


@read(lambda m, _: setattr(m, "added", Layer()))
def number_of_children(m: Reader) -> Any:
    return len(list(m.children()))


@read(lambda m, _: m.layers_by_name.update({"q": Layer()}))
def names_of_layers(m: Reader) -> Any:
    return 2 if "q" in m.layers_by_name else 3


@read(lambda m, _: setattr(m, "added", nn.Parameter(torch.ones(2))))
def number_of_parameters(m: Reader) -> Any:
    return len([name for name, _ in m.named_parameters()])


@read(lambda m, _: m.register_buffer("added", torch.ones(5)))
def sizes_of_buffers(m: Reader) -> Any:
    return sum(buffer.shape[0] for _, buffer in m.named_buffers())


@read(lambda m, _: setattr(m, "weight", nn.Parameter(torch.ones(5))))
def size_of_parameter(m: Reader) -> Any:
    return m.weight.shape[0]


@read(lambda m, _: m.weight.requires_grad_(False))
def gradients_of_parameter(m: Reader) -> Any:
    return 2 if m.weight.requires_grad else 3


@read(lambda m, _: setattr(m, "matrix", nn.Parameter(torch.ones(3, 4).t())))
def layout_of_parameter(m: Reader) -> Any:
    return 2 if m.matrix.is_contiguous() else 3


@read(lambda m, _: setattr(m, "held", torch.ones(2, 2)))
def rank_of_buffer(m: Reader) -> Any:
    return m.held.ndim


@read(lambda m, _: setattr(m, "other_weight", m.weight))
def different_parameters(m: Reader) -> Any:
    return 2 if m.weight is m.other_weight else 3


@read(lambda m, _: setattr(m, "no_buffer", torch.ones(1)))
def missing_buffer(m: Reader) -> Any:
    return 2 if m.no_buffer is None else 3


@read(lambda m, _: setattr(m, "no_parameter", nn.Parameter(torch.ones(1))))
def missing_parameter(m: Reader) -> Any:
    return 2 if m.no_parameter is None else 3


@read(lambda m, _: m.tensors.append(torch.ones(1)))
def number_of_tensors(m: Reader) -> Any:
    return len(m.tensors)


@read(lambda m, _: setattr(m, "real", 9.0))
def root_of_number(m: Reader) -> Any:
    return math.sqrt(m.real) + int(m.real)


@read(lambda m, _: setattr(m, "zero", -0.0))
def sign_of_zero(m: Reader) -> Any:
    return math.copysign(1.0, m.zero)


@read(lambda m, _: setattr(m, "one", True))
def type_of_number(m: Reader) -> Any:
    return 2 if m.one is True else 3


@read(lambda _, patch: patch.setattr(Reader, "OWN", 9))
def class_attribute(m: Reader) -> Any:
    return m.OWN


@read(lambda m, _: setattr(m, "OWN", 9))
def class_attribute_hidden(m: Reader) -> Any:
    return m.OWN


@read(lambda _, patch: patch.setitem(Reader.OWN_TABLE, "a", 9))
def dict_of_class(m: Reader) -> Any:
    return m.OWN_TABLE["a"]


@read(lambda _, patch: patch.setattr(Base, "INHERITED", 9))
def attribute_of_base_class(m: Reader) -> Any:
    return m.INHERITED


@read(lambda _, patch: patch.setattr(Thing, "KIND", 9))
def attribute_of_another_class(m: Reader) -> Any:
    return Thing.KIND


@read(lambda m, _: setattr(m, "cls", OtherThing))
def class_as_attribute(m: Reader) -> Any:
    return m.cls.KIND + m.cls().x


@read(lambda _, patch: patch.setitem(globals(), "LIMIT", 9))
def global_number(m: Reader) -> Any:
    return LIMIT


@read(lambda _, patch: patch.setitem(globals(), "SERIES", [1, 2, 3]))
def global_list(m: Reader) -> Any:
    return sum(SERIES)


@read(lambda _, patch: patch.setitem(TABLE, "a", 9))
def global_dict(m: Reader) -> Any:
    return TABLE["a"]


@read(lambda _, patch: patch.setitem(globals(), "negative", plus_fifty))
def global_function(m: Reader) -> Any:
    return negative(3)


@read(lambda _, patch: patch.setattr(with_list, "__defaults__", ([9],)))
def default_argument(m: Reader) -> Any:
    return with_list()


@read(lambda _, patch: patch.setattr(with_keyword, "__kwdefaults__", {"k": 9}))
def default_keyword(m: Reader) -> Any:
    return with_keyword()


@read(lambda m, _: setattr(m.closure.__closure__[0], "cell_contents", 9))  # type: ignore[index]
def closure(m: Reader) -> Any:
    return m.closure(3)


@read(lambda m, _: setattr(m, "partial", functools.partial(joined, 9)))
def partial_argument(m: Reader) -> Any:
    return m.partial(1)


@read(lambda m, _: setattr(m, "partial_keyword", functools.partial(joined, b=9)))
def partial_keyword(m: Reader) -> Any:
    return m.partial_keyword(1)


@read(lambda m, _: setattr(m.bound.__self__, "x", 9))  # type: ignore[attr-defined]
def object_of_bound_method(m: Reader) -> Any:
    return m.bound()


@read(lambda m, _: setattr(m, "colour", Colour.ULTRAMARINE))
def enum_member(m: Reader) -> Any:
    return m.colour.value + len(m.colour.name) + (2 if m.colour is Colour.RED else 3)


@read(lambda m, _: setattr(m, "level", Level.HIGH))
def integer_enum_member(m: Reader) -> Any:
    return m.level + 1


@read(lambda m, _: setattr(m, "dtype", torch.float16))
def dtype(m: Reader) -> Any:
    return 2 if m.dtype == torch.float16 else 3


@read(lambda m, _: setattr(m, "size", torch.Size([9])))
def size(m: Reader) -> Any:
    return m.size[0]


@read(lambda m, _: m.dictionary.update(a=9))
def subclass_of_dict(m: Reader) -> Any:
    return m.dictionary["a"]


@read(lambda m, _: m.listing.__setitem__(0, 9))
def subclass_of_list(m: Reader) -> Any:
    return m.listing[0]


@read(lambda m, _: m.user_dict.update(a=9))
def user_dict(m: Reader) -> Any:
    return m.user_dict["a"]


@read(lambda m, _: setattr(m, "attribute_name", "count"))
def attribute_by_name(m: Reader) -> Any:
    return getattr(m, m.attribute_name)


@read(lambda m, _: m.keywords.update(a=9))
def keyword_arguments(m: Reader) -> Any:
    return joined(**{key: m.keywords[key] for key in ("a", "b")})


@read(lambda m, _: setattr(m, "key", negative))
def function_as_key(m: Reader) -> Any:
    return sum(map(m.key, m.listed))


@read(lambda m, _: m.eval())
def training(m: Reader) -> Any:
    return 2 if m.training else 3
