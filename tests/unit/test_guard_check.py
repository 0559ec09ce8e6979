"""Conditions, checked in full at a load and by a generated function on every call, which must agree."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from tests.support.devices import fake_world
from tests.support.made_artifacts import like, made_guards
from tests.support.tracing import Checked
from warmrank.worker import groups
from warmrank.worker.keys.code import type_name
from warmrank.worker.runtime import asked
from warmrank.worker.runtime.artifact import PortableGuards, TracedSource
from warmrank.worker.runtime.check import mismatches
from warmrank.worker.runtime.constants import describe, encode
from warmrank.worker.runtime.per_call import compile_input_check

ONES = torch.ones(2, 3)
LIMIT = 5
LIGATURE = "\ufb01"  # as an identifier, Python takes it for `fi`


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Other(Holder):
    pass


class DeniesAll(dict[str, Any]):
    def __contains__(self, _key: object) -> bool:
        return False


class Mine(torch.Tensor):
    """A tensor of a class of its own."""


def plain(self: Any, x: Any) -> Any: ...
def defaults(self: Any, x: Any, y: Any = 2, z: Any = None) -> Any: ...
def keyword_only(self: Any, x: Any, *, y: Any = 2) -> Any: ...
def positional_only(self: Any, x: Any, /, y: Any = 2) -> Any: ...
def variadic(self: Any, x: Any, *rest: Any, y: Any = 2, **named: Any) -> Any: ...
def named_after_modules(self: Any, torch: Any, G: Any) -> Any: ...  # noqa: N803
def named_after_nodes(self: Any, p0: Any, _p1: Any, _k0: Any) -> Any: ...


def check_of(function: Any, *checks: tuple[str, str, Any], shapes: Any = ()) -> Callable[..., bool]:
    assert isinstance(function, FunctionType)
    return compile_input_check(made_guards(*checks, shapes=shapes), function)


def found(guards: PortableGuards, x: Any = None, y: Any = None) -> tuple[str, ...]:
    """Why conditions of `defaults` do not hold."""
    assert isinstance(defaults, FunctionType)
    return mismatches(guards, defaults, {"self": None, "x": x, "y": y}, device_kind="cpu")


SIGNATURES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (plain, (1,), {}),
    (plain, (), {"x": 1}),
    (defaults, (1,), {}),
    (defaults, (1, 2), {"z": None}),
    (defaults, (), {"x": 1, "y": 2}),
    (keyword_only, (1,), {}),
    (keyword_only, (1,), {"y": 2}),
    (positional_only, (1,), {}),
    (positional_only, (1, 2), {}),
    (positional_only, (1,), {"y": 2}),
    (variadic, (1,), {}),
    (variadic, (1, 5, 6), {"y": 2, "more": 7}),
]


@pytest.mark.parametrize(
    ("function", "args", "kwargs"), SIGNATURES, ids=[f"{f.__name__}-{a}-{k}" for f, a, k in SIGNATURES]
)
def test_check_takes_its_arguments_as_the_function_does(function, args, kwargs):
    of_y = [] if function is plain else [("L['y']", "equals", 2)]
    assert check_of(function, ("L['x']", "equals", 1), *of_y)(None, *args, **kwargs)
    assert not check_of(function, ("L['x']", "equals", 3))(None, *args, **kwargs)


# A condition, a value for which it holds, one for which it does not, and what is then said.

LIKE, ZEROS = like(ONES), torch.zeros(2, 3)
REVERSED = partial(defaults, y=2, x=1)
ANY_ROWS = like(ONES, sizes=[None, 3], strides=[None, 1])
CASES: list[tuple[str, Any, Any, Any, str]] = [
    ("type", type_name(Holder), Holder(), Other(), f"type of x: {__name__}.Holder -> {__name__}.Other"),
    ("type", "builtins:int", 1, True, "type of x: builtins.int -> builtins.bool"),
    ("equals", 3, 3, 4, "x: 3 -> 4"),
    ("equals", 1, 1, True, "x: 1 -> True"),
    ("equals", True, True, 1, "x: True -> 1"),
    ("equals", "a", "a", "b", "x: 'a' -> 'b'"),
    ("equals", encode(0.5), 0.5, 0.25, "x: 0.5 -> 0.25"),
    ("equals", None, None, 0, "x: None -> 0"),
    ("equals", encode((1, "a")), (1, "a"), (1, "b"), "x: (1, 'a') -> (1, 'b')"),
    ("equals", encode((1,)), (1,), [1], "x: (1,) -> [1]"),
    ("equals", encode((1, (2,))), (1, (2,)), (1, (2.0,)), "x: (1, (2,)) -> (1, (2.0,))"),
    ("equals", encode(((1,),)), ((1,),), ((True,),), "x: ((1,),) -> ((True,),)"),
    ("equals", encode(frozenset({0})), frozenset({0}), frozenset({False}), "x: "),
    ("equals", encode((0.0,)), (0.0,), (-0.0,), "x: (0.0,) -> (-0.0,)"),
    ("equals", encode(slice(1)), slice(1), slice(True), "x: "),
    ("equals", encode(torch.float16), torch.float16, torch.float32, "x: 'float16' -> torch.float32"),
    ("equals", encode(torch.device("cpu")), torch.device("cpu"), torch.device("meta"), "x: 'cpu' -> "),
    ("equals", encode((1, 2)), (1, 2), object(), "x: (1, 2) -> <object"),
    ("identity", describe(partial(plain, 1)), partial(plain, 1), partial(plain, True), "x: another partial"),
    ("identity", describe(partial(defaults, x=1, y=2)), partial(defaults, x=1, y=2), REVERSED, "x: another "),
    ("identity", describe(len), len, max, "x: another builtin than len"),
    ("identity", describe(Holder), Holder, Other, "x: another class than Holder"),
    ("identity", describe(plain), plain, lambda x: x, "x: another function than plain"),
    ("identity", describe(len), len, object(), "x: another builtin than len"),
    ("length", 2, [1, 2], [1], "length of x: 2 -> 1"),
    ("keys", [encode((1,))], {(1,): 1}, {(True,): 1}, "members of x: "),
    ("keys", ["a", "b"], {"a": 1, "b": 2}, {"b": 2, "a": 1}, "members of x: ['a', 'b'] -> ['b', 'a']"),
    ("keys", ["a"], {"a": 1}, {"a": 1, "b": 2}, "members of x: ['a'] -> ['a', 'b']"),
    ("keys", [*"abcd"], dict.fromkeys("abcd"), dict.fromkeys("abcde"), "x after the first 4: [] -> ['e']"),
    ("has_key", "a", {"a": 1}, {}, "x: has key 'a' no longer holds"),
    ("has_key", encode((1, 2)), {(1, 2)}, {(1, 3)}, "x: has key"),
    ("no_key", "a", {}, {"a": 1}, "x: no key 'a' no longer holds"),
    ("has_key", "a", DeniesAll(a=1), DeniesAll(), "x: has key 'a' no longer holds"),
    ("no_key", "a", DeniesAll(), DeniesAll(a=1), "x: no key 'a' no longer holds"),
    ("has_attr", "a", Holder(a=1), Holder(), "x: has attr 'a' no longer holds"),
    ("no_attr", "a", Holder(), Holder(a=1), "x: no attr 'a' no longer holds"),
    ("not_in_dict", "forward", Holder(), Holder(forward=1), "x: not in dict 'forward' no longer holds"),
    ("empty", None, {}, {1: "hook"}, "x: 1 added"),
    ("none", None, None, 1, "x: none None no longer holds"),
    ("not_none", None, 1, None, "x: not none None no longer holds"),
    *((kind, expected, fits, 5, "") for kind, expected, fits in (
        ("length", 2, (1, 2)), ("keys", ["a"], {"a": 1}), ("has_key", "a", {"a": 1}), ("no_key", "a", {}),
        ("empty", None, {}), ("not_in_dict", "forward", Holder()), ("tensor", LIKE, ZEROS),
    )),
    ("tensor", LIKE, ZEROS, torch.zeros(3, 3), "sizes [2, 3] -> [3, 3]"),
    ("tensor", LIKE, ZEROS, ONES[:1], "sizes [2, 3] -> [1, 3]"),
    ("tensor", LIKE, ZEROS, ONES[None], "sizes [2, 3] -> [1, 2, 3]"),
    ("tensor", LIKE, ZEROS, ONES.double(), "dtype float32 -> float64"),
    ("tensor", LIKE, ZEROS, ONES.T.contiguous().T, "strides [3, 1] -> [1, 2]"),
    ("tensor", LIKE, ZEROS, ONES.to_sparse(), "layout strided -> sparse_coo"),
    ("tensor", LIKE, ZEROS, ONES.to("meta"), "device cpu -> meta"),
    ("tensor", LIKE, ZEROS, nn.Parameter(ONES), "type torch:Tensor -> torch.nn.parameter:Parameter"),
    ("tensor", LIKE, ZEROS, ONES.as_subclass(Mine), "type torch:Tensor -> "),
    ("tensor", LIKE, ZEROS, ONES.clone().requires_grad_(), "requires_grad False -> True"),
    ("tensor", LIKE, ZEROS, None, ""),
    ("tensor", LIKE, ZEROS, 3, "is a int, was a tensor"),
    ("tensor", like(ONES * 1j), ZEROS * 1j, (ONES * 1j).conj(), "lazy_bits [False, False] -> [True, False]"),
    ("tensor", like(ONES, sizes=[None, 3]), torch.ones(7, 3), torch.ones(7, 4), "sizes ['*', 3] -> [7, 4]"),
    ("tensor", ANY_ROWS, ONES[:, :3], torch.ones(2), "sizes"),
    ("tensor", like(ONES.to_sparse()), ONES.to_sparse(), ONES, "layout sparse_coo -> strided"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "expected", "fits", "differs", "said"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)]
)
def test_condition_holds_for_what_was_traced_and_else_says_why(kind, expected, fits, differs, said):
    guards = made_guards(("L['x']", kind, expected))
    check = check_of(plain, ("L['x']", kind, expected))
    assert found(guards, fits) == ()
    assert check(None, fits)
    assert any(said in reason for reason in found(guards, differs))
    assert not check(None, differs)


@pytest.mark.parametrize(
    ("expression", "fits", "differs"),
    [
        ("L['x'].a.b", Holder(a=Holder(b=1)), Holder(a=Holder())),
        ("L['x'][1]", [0, 1], [0]),
        ("L['x']['k']", {"k": 1}, {}),
        ("L['x'][(1, 2)]", {(1, 2): 1}, {(1, 3): 1}),
        ("list(dict.keys(L['x']))[0]", {1: "a"}, {}),
        ("dict(L['x'])['k']", {"k": 1}, 5),
        ("getattr(L['x'], 'no identifier')", Holder(**{"no identifier": 1}), Holder()),
        ("getattr(L['x'], 'class')", Holder(**{"class": 1}), Holder(**{"class": 2})),
        (f"getattr(L['x'], {LIGATURE!r})", Holder(**{LIGATURE: 1}), Holder(**{LIGATURE: 2, "fi": 1})),
    ],
)
def test_part_of_an_argument_is_looked_at(expression: str, fits: Any, differs: Any) -> None:
    check = check_of(plain, (expression, "equals", 1))
    assert check(None, fits)
    assert not check(None, differs)


SHAPE = ("{}()[0] == {}()[1]", "L['x'].size", "L['y'].size")
DIVIDED = ("8 % {}()[0] == 0", "L['x'].size")
SAME_MEMBER = ("L['x'].a", "same", "L['y'].a")
SAME, DISTINCT = ("L['x']", "same", "L['y']"), ("L['x']", "distinct", ["L['y']"])
COPY, SQUARE = ONES.clone(), torch.ones(3, 3)
OF_TWO: list[tuple[list[Any], list[Any], tuple[Any, Any], tuple[Any, Any], str]] = [
    ([SAME], [], (ONES, ONES), (ONES, COPY), "x and y are no longer the same object"),
    ([SAME_MEMBER], [], (Holder(a=1), Holder(a=1)), (Holder(), Holder()), "x.a is missing"),
    ([DISTINCT], [], (ONES, COPY), (ONES, ONES), "x and y are now the same "),
    ([("L['x']", "distinct", ["L['y'].a"])], [], (ONES, Holder(a=COPY)), (ONES, Holder()), "y.a is missing"),
    ([], [SHAPE], (ONES, ONES.T), (ONES, SQUARE), "sizes: x.size()[0] == y.size()[1] does not hold"),
    ([], [SHAPE], (ONES, ONES.T), (None, ONES), "sizes: "),
    ([], [SHAPE], (ONES, ONES.T), (torch.ones(()), ONES), "sizes: "),
    ([], [DIVIDED], (torch.ones(4), None), (torch.ones(0, 3), None), "sizes: "),
]  # fmt: skip


@pytest.mark.parametrize(("checks", "shapes", "fits", "differs", "said"), OF_TWO)
def test_objects_are_compared_with_each_other(checks, shapes, fits, differs, said):
    guards, check = made_guards(*checks, shapes=shapes), check_of(defaults, *checks, shapes=shapes)
    assert found(guards, *fits) == ()
    assert check(None, *fits)
    assert found(guards, *differs)[0].startswith(said)
    assert not check(None, *differs)


TABLE = Holder(table=ONES)
OF_MODULES = ("torch.sym_min({}, 2) == 1", "L['torch']")
OF_NODES = ("{} + 1 == {}", "L['p0']", "L['_p1']")
OF_TABLE = ("{}()[0] <= {}()[0]", "L['x'].size", "L['self'].table.size")
AFTER_MODULES = [("L['torch']", "equals", 1), ("L['G']", "equals", 2)]
AFTER_NODES = [("L['p0']", "equals", 1), ("L['_p1']", "equals", 2), ("L['_k0']", "equals", encode(0.5))]
DISTINCT_FROM_TABLE = ("L['self'].table", "distinct", ["L['x']", "L['y']"])
OF_CALLS: list[tuple[Any, list[Any], list[Any], tuple[Any, ...], tuple[Any, ...]]] = [
    (plain, [("type(L['x'])", "has_attr", "bit_length")], [], (None, 1), (None, "1")),
    (variadic, [("L['rest'][1]", "equals", 6)], [], (None, 1, 5, 6), (None, 1, 5, 7)),
    (variadic, [("L['rest']", "length", 2)], [], (None, 1, 5, 6), (None, 1, 5)),
    (defaults, [DISTINCT_FROM_TABLE], [], (TABLE, COPY, ONES.clone()), (TABLE, COPY, COPY)),
    (plain, [("L['x']", "same", "L['self'].table")], [], (TABLE, ONES), (TABLE, COPY)),
    (plain, [("L['x']", "same", "G['ONES']")], [], (None, ONES), (None, COPY)),
    (plain, [], [OF_TABLE], (TABLE, torch.ones(1)), (TABLE, torch.ones(5))),
    (named_after_modules, AFTER_MODULES, [OF_MODULES], (0, 1, 2), (0, 1, 3)),
    (named_after_nodes, AFTER_NODES, [OF_NODES], (0, 1, 2, 0.5), (0, 1, 2, 0.25)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "checks", "shapes", "fits", "differs"), OF_CALLS)
def test_arguments_are_compared_with_the_module_and_globals(function, checks, shapes, fits, differs):
    check = check_of(function, *checks, shapes=shapes)
    assert check(*fits)
    assert not check(*differs)


@pytest.mark.parametrize(
    ("traced", "changed"),
    [
        (5, 6), (5, 5.0), ("a", "b"), (None, 1), (2.5, 2), (2.5, 3.5), (0.0, -0.0), (float("nan"), 1.0),
        (torch.float32, torch.float16),
    ],
)  # fmt: skip
def test_variables_of_the_module_file_are_looked_at_at_a_load_and_on_every_call(monkeypatch, traced, changed):
    condition = ("G['LIMIT']", "none", None) if traced is None else ("G['LIMIT']", "equals", encode(traced))
    check = check_of(plain, condition)
    for value, holds in ((traced, True), (changed, False)):
        monkeypatch.setitem(globals(), "LIMIT", value)
        assert check(None, 1) is holds
        assert (found(made_guards(condition)) == ()) is holds


def test_source_that_changed_is_named_and_nothing_else_is_looked_at() -> None:
    source = TracedSource(kind="code", module=__name__, name="plain", digest="0" * 32)
    guards = made_guards(("L['x']", "equals", 3), sources=(source,))
    assert found(guards, 4) == (f"source of {__name__}:plain changed",)


@pytest.fixture
def pair() -> Iterator[torch.distributed.ProcessGroup]:
    """A group of two under the role ``tp``, on rank 1 of a world of 4."""
    with fake_world(rank=1, world_size=4):
        group = torch.distributed.new_group([0, 1])
        groups.declare_groups({"tp": group})
        yield group


OF_TP = {"group": "tp"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ((asked.RANK, [], {}, 1), ""),
        ((asked.SIZE, [], {}, 4), ""),
        ((asked.SIZE, [OF_TP], {}, 2), ""),
        ((asked.RANK, [], {"group": OF_TP}, 1), ""),
        ((asked.RANK, [], {}, 0), "get_rank(): 0 -> 1"),
        ((asked.SIZE, [], {}, 8), "get_world_size(): 8 -> 4"),
        ((asked.SIZE, [OF_TP], {}, 4), "get_world_size(tp): 4 -> 2"),
        ((asked.SIZE, [{"group": "pp"}], {}, 2), "get_world_size(pp): 2 -> none"),
        ((asked.RANK, [], {"group": OF_TP}, 0), "get_rank(group=tp): 0 -> 1"),
    ],
)
def test_rank_or_size_that_differs_is_named(pair: Any, call: asked.Call, said: str) -> None:
    assert found(made_guards(asked=[call])) == ((said,) if said else ())


@pytest.mark.parametrize(("expected", "fits"), [(["tp", 2], True), (["pp", 2], False), (["tp", 4], False)])
def test_group_is_compared_by_role_and_size(pair: Any, expected: Any, fits: bool) -> None:
    assert (found(made_guards(("L['x']", "group", expected)), pair) == ()) is fits


def test_part_of_the_module_that_the_function_writes_to_is_looked_at_on_every_call() -> None:
    assert isinstance(plain, FunctionType)
    guards = made_guards(("L['self'].calls", "equals", 1), volatile=["L['self'].calls"])
    check = compile_input_check(guards, plain)
    assert check(Holder(calls=1), 1)
    assert not check(Holder(calls=2), 1)


def hostile(
    self: Any, _p0: Any, _k12: Any, _torch: Any, _globals: Any, check: Any, _wp1: Any, max: Any,  # noqa: A002
    ª: Any = 1, *_others: Any, __type: Any = 2, len: Any = 3, **_holds: Any,  # noqa: A002, PLC2401
) -> Any:  # fmt: skip
    return self


def test_names_of_parameters_are_the_users_own() -> None:
    names = ("_p0", "_k12", "_torch", "_globals", "check", "_wp1", "max")
    keys = (("L['_holds']", "keys", ["_id"]), ("L['__type']", "equals", 2), ("L['_others']", "length", 0))
    tensors = tuple((f"L[{name!r}]", "tensor", like(ONES)) for name in names)
    shapes = [("max({}()[0], 2) == 2", "L['_p0'].size")]
    check = check_of(hostile, *tensors, *keys, ("L['a']", "equals", 1), shapes=shapes)
    fitting = [ONES.clone() for _ in names]
    assert check(None, *fitting, _id=1)
    for position in range(len(names)):
        unfit = [*fitting]
        unfit[position] = ONES.double()
        assert not check(None, *unfit, _id=1)
    assert not check(None, *fitting, __type=3, _id=1)
    assert not check(None, *fitting)


VALUES: list[Any] = [1, True, None, "a", 0.5, (1, 2), [1], {"a": 1}, ONES, torch.ones(3, 3), Holder(a=1)]
CONDITIONS = [("L['x']", kind, expected) for kind, expected, *_ in CASES if kind != "identity"]


@given(
    condition=st.sampled_from(CONDITIONS),
    second=st.sampled_from(CONDITIONS),
    position=st.integers(0, len(VALUES) - 1),
)
def test_check_agrees_with_the_words_of_a_look_up(condition, second, position):
    value = VALUES[position]
    # Never guarded without a type before it, and a tensor raises what no container raises.
    assume(not (isinstance(value, torch.Tensor) and {"has_key", "no_key"} & {condition[1], second[1]}))
    guards: PortableGuards = made_guards(condition, second)
    assert isinstance(plain, FunctionType)
    fits = compile_input_check(guards, plain)(None, value)
    assert fits == (not mismatches(guards, plain, {"self": None, "x": value}, device_kind="cpu"))


X = torch.arange(6.0).reshape(3, 2)


COUNTED = 0
ITEMS = {"k": 2}


class Changing(torch.nn.Module):
    count = 0

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0
        self.table = {"k": 2}
        self.listed = [object()]
        self.weight = torch.nn.Parameter(torch.ones(2, 3))


def step(self: Any, x: Any) -> Any:
    return x


WATCHED: tuple[tuple[str, str, Any], ...] = (
    ("L['self'].scale", "equals", {"float": (2.0).hex()}),
    ("L['self'].table['k']", "equals", 2),
    ("L['self']._parameters['weight']", "tensor", like(torch.nn.Parameter(torch.ones(2, 3)))),
    ("G['ITEMS']['k']", "equals", 2),
    ("L['self'].listed[0]", "not_none", None),
    ("L['x']", "tensor", like(X)),
)


def holder() -> tuple[Checked, Changing]:
    module = Changing()
    return Checked(made_guards(*WATCHED), step, module, x=X), module


BESIDE: dict[str, Callable[[Changing, int], Any]] = {
    "attribute": lambda m, n: setattr(m, "unread", n),
    "equal value": lambda m, n: setattr(m, "scale", float("2.0")),
    "item": lambda m, n: m.table.update(unread=n),
    "weight": lambda m, n: setattr(m, "weight", torch.nn.Parameter(torch.full((2, 3), float(n)))),
    "data of another weight": lambda m, n: setattr(m.weight, "data", torch.full((2, 3), float(n))),
    "global": lambda m, n: globals().update(COUNTED=n),
    "item of a global": lambda m, n: ITEMS.update(unread=n),
    "class": lambda m, n: setattr(Changing, "count", n),
    "member of a list": lambda m, n: m.listed.__setitem__(0, object()),
}


READ: dict[str, Callable[[Changing, pytest.MonkeyPatch], Any]] = {
    "attribute": lambda m, _: setattr(m, "scale", 3.0),
    "item": lambda m, _: m.table.update(k=3),
    "sizes of a weight": lambda m, _: setattr(m, "weight", torch.nn.Parameter(torch.ones(3, 2))),
    "item of a global": lambda _, patch: patch.setitem(ITEMS, "k", 3),
    "global": lambda _, patch: patch.setitem(globals(), "ITEMS", {"k": 3}),
    "member of a list": lambda m, _: m.listed.__setitem__(0, None),
}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("beside", BESIDE)
def test_what_changes_on_every_call_beside_conditions_soon_costs_no_full_check(beside, read, monkeypatch):
    """The conditions count as before."""
    checked, module = holder()
    for numbers in (range(12), range(12, 20)):
        before = checked.num_full_checks
        for number in numbers:
            BESIDE[beside](module, number)
            assert checked.call()
    assert checked.num_full_checks == before
    READ[read](module, monkeypatch)
    assert not checked.call()


def test_threads_see_the_same() -> None:
    checked, module = holder()
    wrong: list[bool] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            wrong.extend(found for found in [checked.holds()] if not found)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        assert checked.call()
    stop.set()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert not wrong
    module.scale = 3.0
    assert not checked.holds()


def test_default_values_that_can_be_changed_are_noticed() -> None:
    def defaulted(self: Any, x: Any, given: list[int] = [1]) -> Any:  # noqa: B006 - under test
        return x

    assert isinstance(defaulted, FunctionType)
    checked = Checked(made_guards(), defaulted, Changing(), x=X)
    assert checked.holds()
    (defaulted.__defaults__ or ([],))[0].append(2)
    assert not checked.holds()
