"""The function that says, on every call, whether the arguments fit."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.made_guards import like, made_guards
from tests.support.tracing import Checked
from warmrank.worker.keys.code import type_name
from warmrank.worker.runtime.artifact import PortableGuards
from warmrank.worker.runtime.check import mismatches
from warmrank.worker.runtime.constants import encode
from warmrank.worker.runtime.per_call import compile_input_check

ONES = torch.ones(2, 3)
LIMIT = 5
LIGATURE = "\ufb01"  # as an identifier, Python takes it for `fi`


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


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


# Signatures.

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


# Conditions, each with a value that fits and one that does not.

CASES: list[tuple[str, Any, Any, Any]] = [
    ("type", type_name(Holder), Holder(), object()),
    ("type", "builtins:int", 1, True),
    ("equals", 3, 3, 4),
    ("equals", 1, 1, True),
    ("equals", True, True, 1),
    ("equals", "a", "a", "b"),
    ("equals", None, None, 0),
    ("equals", encode(0.5), 0.5, 0.25),
    ("equals", encode((1, 2)), (1, 2), [1, 2]),
    ("length", 2, [1, 2], [1]),
    ("length", 2, (1, 2), 5),
    ("keys", ["a"], {"a": 1}, {"b": 1}),
    ("has_key", "a", {"a": 1}, {"b": 1}),
    ("has_key", "a", {"a": 1}, 5),
    ("no_key", "a", {"b": 1}, {"a": 1}),
    ("has_attr", "a", Holder(a=1), Holder()),
    ("no_attr", "a", Holder(), Holder(a=1)),
    ("not_in_dict", "a", Holder(), Holder(a=1)),
    ("not_in_dict", "a", Holder(), 5),
    ("empty", None, [], [1]),
    ("none", None, None, 1),
    ("not_none", None, 1, None),
    ("tensor", like(ONES), torch.zeros(2, 3), torch.zeros(3, 3)),
    ("tensor", like(ONES), torch.zeros(2, 3), ONES.double()),
    ("tensor", like(ONES), torch.zeros(2, 3), ONES.T.contiguous().T),
    ("tensor", like(ONES), torch.zeros(2, 3), ONES.to_sparse()),
    ("tensor", like(ONES), torch.zeros(2, 3), ONES.to("meta")),
    ("tensor", like(ONES), torch.zeros(2, 3), torch.nn.Parameter(ONES)),
    ("tensor", like(ONES), torch.zeros(2, 3), ONES.clone().requires_grad_()),
    ("tensor", like(ONES), torch.zeros(2, 3), ONES[None]),
    ("tensor", like(ONES), torch.zeros(2, 3), None),
    ("tensor", like(ONES * 1j), torch.zeros(2, 3) * 1j, (ONES * 1j).conj()),
    ("tensor", like(ONES, sizes=[None, 3], strides=[3, 1]), torch.ones(7, 3), torch.ones(7, 4)),
    ("tensor", like(ONES, sizes=[None, 3], strides=[None, 1]), ONES[:, :3], torch.ones(2)),
    ("tensor", like(ONES.to_sparse()), ONES.to_sparse(), ONES),
]
IDS = [f"{number}-{kind}" for number, (kind, *_) in enumerate(CASES)]


@pytest.mark.parametrize(("kind", "expected", "fits", "differs"), CASES, ids=IDS)
def test_argument_fits_as_it_was_traced_and_no_other(kind, expected, fits, differs):
    check = check_of(plain, ("L['x']", kind, expected))
    assert check(None, fits)
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


TABLE, OTHER = Holder(table=ONES), ONES.clone()
SIZES = [("{}()[0] == {}()[1]", "L['x'].size", "L['y'].size")]
OF_TABLE = [("{}()[0] <= {}()[0]", "L['x'].size", "L['self'].table.size")]
DIVIDED = [("8 % {}()[0] == 0", "L['x'].size")]


@pytest.mark.parametrize(
    ("function", "checks", "shapes", "fits", "differs"),
    [
        (plain, [("type(L['x'])", "has_attr", "bit_length")], (), (None, 1), (None, "1")),
        (variadic, [("L['rest'][1]", "equals", 6)], (), (None, 1, 5, 6), (None, 1, 5, 7)),
        (variadic, [("L['rest']", "length", 2)], (), (None, 1, 5, 6), (None, 1, 5)),
        (defaults, [("L['x']", "same", "L['y']")], (), (None, ONES, ONES), (None, ONES, OTHER)),
        (defaults, [("L['x']", "distinct", ["L['y']"])], (), (None, ONES, OTHER), (None, ONES, ONES)),
        (
            defaults,
            [("L['self'].table", "distinct", ["L['x']", "L['y']"])],
            (),
            (TABLE, OTHER, ONES.clone()),
            (TABLE, OTHER, OTHER),
        ),
        (plain, [("L['x']", "same", "L['self'].table")], (), (TABLE, ONES), (TABLE, OTHER)),
        (plain, [("L['x']", "same", "G['ONES']")], (), (None, ONES), (None, OTHER)),
        (defaults, [], SIZES, (None, ONES, ONES.T), (None, ONES, torch.ones(3, 3))),
        (plain, [], OF_TABLE, (TABLE, torch.ones(1)), (TABLE, torch.ones(5))),
        (plain, [], DIVIDED, (None, torch.ones(4)), (None, torch.ones(0))),
        (
            named_after_modules,
            [("L['torch']", "equals", 1), ("L['G']", "equals", 2)],
            [("torch.sym_min({}, 2) == 1", "L['torch']")],
            (None, 1, 2),
            (None, 1, 3),
        ),
        (
            named_after_nodes,
            [("L['p0']", "equals", 1), ("L['_p1']", "equals", 2), ("L['_k0']", "equals", encode(0.5))],
            [("{} + 1 == {}", "L['p0']", "L['_p1']")],
            (None, 1, 2, 0.5),
            (None, 1, 2, 0.25),
        ),
    ],
)
def test_arguments_are_compared_with_each_other_the_module_and_globals(
    function, checks, shapes, fits, differs
):
    check = check_of(function, *checks, shapes=shapes)
    assert check(*fits)
    assert not check(*differs)


@pytest.mark.parametrize(
    ("traced", "changed"),
    [
        (5, 6),
        (5, 5.0),
        ("a", "b"),
        (None, 1),
        (2.5, 2),
        (2.5, 3.5),
        (0.0, -0.0),
        (float("nan"), 1.0),
        (torch.float32, torch.float16),
    ],
)
def test_variables_of_the_module_file_are_looked_at_on_every_call(monkeypatch, traced, changed):
    asked = ("G['LIMIT']", "none", None) if traced is None else ("G['LIMIT']", "equals", encode(traced))
    check = check_of(plain, asked)
    monkeypatch.setitem(globals(), "LIMIT", traced)
    assert check(None, 1)
    monkeypatch.setitem(globals(), "LIMIT", changed)
    assert not check(None, 1)


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


# The same answer as the slow way.

VALUES: list[Any] = [1, True, None, "a", 0.5, (1, 2), [1], {"a": 1}, ONES, torch.ones(3, 3), Holder(a=1)]
CONDITIONS = [("L['x']", kind, expected) for kind, expected, *_ in CASES]


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


def holder(*more: tuple[str, str, Any]) -> tuple[Checked, Changing]:
    module = Changing()
    return Checked(made_guards(*WATCHED, *more), step, module, x=X), module


def count_global(module: Changing, number: int) -> None:
    globals()["COUNTED"] = number


def put_weight(module: Changing, number: int) -> None:
    module.weight = torch.nn.Parameter(torch.full((2, 3), float(number)))


BESIDE: dict[str, Callable[[Changing, int], Any]] = {
    "attribute": lambda m, n: setattr(m, "unread", n),
    "equal value": lambda m, n: setattr(m, "scale", float("2.0")),
    "item": lambda m, n: m.table.update(unread=n),
    "weight": put_weight,
    "data of another weight": lambda m, n: setattr(m.weight, "data", torch.full((2, 3), float(n))),
    "global": count_global,
    "item of a global": lambda m, n: ITEMS.update(unread=n),
    "class": lambda m, n: setattr(Changing, "count", n),
    "member of a list": lambda m, n: m.listed.__setitem__(0, object()),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_changes_on_every_call_beside_the_conditions_soon_costs_no_full_check(name: str) -> None:
    checked, module = holder()
    for number in range(12):
        BESIDE[name](module, number)
        assert checked.call()
    before = checked.num_full_checks
    for number in range(12, 20):
        BESIDE[name](module, number)
        assert checked.call()
    assert checked.num_full_checks == before


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
def test_conditions_count_as_well_where_other_things_change_on_every_call(beside, read, monkeypatch):
    checked, module = holder()
    for number in range(12):
        BESIDE[beside](module, number)
        assert checked.call()
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
