"""Traces: what Dynamo gives, what is refused by name; operators in Python, functions of torch replaced."""

from __future__ import annotations

import contextlib
import cProfile
import dataclasses
import gc
import importlib
import inspect
import operator
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.variables import ConstDictVariable, ListVariable

from tests.support.checkout import python
from tests.support.small_models import Faulty, Unfit
from tests.support.tracing import compiled, misfits, outcome, tells_arguments, traced
from warmrank.inference import cache_compile
from warmrank.worker.errors import FunctionRaised, GraphBreak, NotPortable
from warmrank.worker.keys import reachable
from warmrank.worker.torch_private.unchanged import dicts_tell

pytestmark = pytest.mark.usefixtures("no_grad")

PLAIN_ROWS = torch.ones(2, 4)


def test_builder_of_guards_does_not_outlive_the_compile() -> None:
    compiled(nn.Linear(4, 4).forward, PLAIN_ROWS)
    gc.collect()
    assert not any(type(one).__name__ == "GuardBuilder" for one in gc.get_objects())


class Counts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * sum(divmod(7, len(self._modules) + 2))


def test_compile_leaves_cprofile_on(tmp_path: Path) -> None:
    function = cache_compile(Counts().forward, cache_dir=tmp_path)
    with cProfile.Profile() as profile:
        function(PLAIN_ROWS)
        inspect.cleandoc("")
    assert any("cleandoc" in str(entry.code) for entry in profile.getstats())


def test_capture_of_a_branch_on_data_gives_dynamos_reason_and_the_line() -> None:
    with pytest.raises(GraphBreak) as raised:
        traced(Unfit().breaks, PLAIN_ROWS)
    message = str(raised.value)
    assert "Unfit.breaks does not form one whole graph" in message
    assert "Data-dependent branching" in message
    assert "in Unfit.breaks): if x.sum() > 0:" in message
    assert "(small_models.py:" in message
    assert raised.value.function == "Unfit.breaks"


class Text:
    def __repr__(self) -> str:
        raise AttributeError


class Silent(Text, nn.Module):
    """Has no text, as a module half of whose attributes are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Any = 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.held if isinstance(self.held, int) else 3)


def test_texts_of_modules_are_needed_neither_for_traces_nor_for_reasons(tmp_path: Path) -> None:
    model = Silent()
    function = cache_compile(model.forward, cache_dir=tmp_path)
    function(PLAIN_ROWS)
    model.held = Text()
    assert torch.equal(function(PLAIN_ROWS), model(PLAIN_ROWS))


class Told(ValueError):
    def __init__(self, said: str, number: int) -> None:
        super().__init__(f"{said} {number}", number)


class Keeps(nn.Module):
    """Keeps errors that it catches."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[Told] = []

    def found(self, name: str) -> int:
        try:
            return {"a": 1}[name]
        except KeyError:
            raise Told("nothing", 3) from KeyError(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self.found("b")
        except Told as told:
            self.errors.append(told)
            given = Told(f"after {told.__cause__}", 4)
            given.args = (*given.args, 5)
            self.errors.append(given)
        return x * len(given.args)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="Dynamo makes no exception again that was raised")
def test_errors_that_a_call_keeps_have_the_arguments_and_the_causes_that_eagers_have(tmp_path: Path) -> None:
    eager, model = Keeps(), Keeps()
    function = cache_compile(model.forward, cache_dir=tmp_path)
    assert torch.equal(function(PLAIN_ROWS), eager(PLAIN_ROWS))
    for kept, expected in zip(model.errors, eager.errors, strict=True):
        assert (kept.args, repr(kept.__cause__)) == (expected.args, repr(expected.__cause__))


def test_global_with_a_name_that_frames_keep_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("__builtins_dict__", "__compiled_fn", "__import_torch", "__object_1", "x_12_c34"):
        scope: dict[str, Any] = {"__name__": __name__, name: 3}
        exec(f"def reads(self, x): return x * {name}", scope)  # noqa: S102

        class Reads(nn.Module):
            forward = scope["reads"]

        with pytest.raises(NotPortable, match="rename it"):
            traced(Reads().forward, torch.ones(2))


def test_replaced_dataclass_has_the_names_of_its_class_as_condition():
    @dataclasses.dataclass(frozen=True)
    class Frozen:
        size: int
        name: str = "a"

    class Replaces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = Frozen(size=3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * dataclasses.replace(self.held, name="x").size

    module = Replaces()
    assert misfits(compiled(module.forward, torch.ones(2)), module.forward, torch.ones(2)) == ()


def marked_nonstrict(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_function_that_is_not_traced_strictly_is_refused() -> None:
    marked = torch._dynamo.nonstrict_trace(marked_nonstrict)

    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return marked(x)

    with pytest.raises(NotPortable, match="nonstrict_trace"):
        traced(Calls().forward, PLAIN_ROWS)


WIDE = torch.ones(2, 8)


def raised(name: str) -> FunctionRaised:
    with pytest.raises(FunctionRaised) as caught:
        traced(getattr(Faulty(), name), WIDE)
    return caught.value


def line_of(name: str, text: str) -> int:
    lines, first = inspect.getsourcelines(getattr(Faulty, name))
    return first + next(at for at, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("name", "said", "line"),
    [
        ("bad", "ValueError: bad shape in attention", "raise"),
        ("wide", "RuntimeError: a and b must have same reduction dim, but got [2, 7] X [8, 8].", "linear"),
        ("adds", "TypeError: unsupported operand type(s) for +: 'Tensor' and 'NoneType'", "None"),
        pytest.param("lacks", "KeyError: 'a'", "return", marks=tells_arguments),
        ("wants", "AttributeError: 'Faulty' object has no attribute 'nothing'", "nothing"),
        ("asserts", 'AssertionError: assert x.dim() > 3, "too flat"', "assert x"),
        ("calls", "TypeError: Too many positional arguments: got 3, expected 2", "linear"),
        ("overruns", "IndexError: index 9 is out of bounds for dimension 0 with size 2", "x[9]"),
        ("misspells", "NameError: name 'no_such_name' is not defined", "no_such_name"),
    ],
)
def test_exception_is_named_with_the_line_of_the_method(name: str, said: str, line: str) -> None:
    error = raised(name)
    where = f"small_models.py:{line_of(name, line)} in Faulty.{name}"
    assert (error.function, error.reason, error.where) == (f"Faulty.{name}", said, where)
    assert str(error).startswith(f"{said} ({where}). ")


def test_exception_that_the_caller_handles_is_not_taken_for_the_methods(capfd) -> None:
    try:
        Path("/no/such/file").read_text()
    except FileNotFoundError:
        error = raised("wide")
    assert error.reason.startswith("RuntimeError: a and b must have same reduction dim")
    assert not capfd.readouterr().err


@pytest.mark.parametrize("name", ["reads", "stops"])
def test_graph_break_stays_one(name: str) -> None:
    with pytest.raises(GraphBreak, match=f"Faulty.{name} does not form one whole graph"):
        traced(getattr(Faulty(), name), WIDE)


META = """
import torch
FACTOR = 4
def op(x): return x[:, :FACTOR].contiguous()
library = torch.library.Library("{name}", "FRAGMENT")
library.define("op(Tensor x) -> Tensor")
library.impl("op", op, "CPU")
library.impl("op", op, "Meta")
"""


class Uses(nn.Module):
    """Calls an operator, and reads the shape of its result."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.operator = getattr(torch.ops, name).op

    def step(self, x: torch.Tensor) -> Any:
        y = self.operator(x)
        return y.sum(-1) / y.shape[-1]


@pytest.fixture
def defined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module with an operator, and forgets it at the end."""
    made: list[str] = []

    def define(text: str, name: str) -> ModuleType:
        (tmp_path / f"{name}.py").write_text(text.format(name=name))
        monkeypatch.syspath_prepend(str(tmp_path))
        made.append(name)
        return importlib.import_module(name)

    yield define
    for name in made:
        del sys.modules[name]


@pytest.mark.parametrize("guards", ["once", "skip"])
def test_operator_that_is_not_registered_is_looked_for(guards: Any, defined: Any, tmp_path: Path) -> None:
    name = f"warmrank_late_{guards}"
    module = defined(META, name)
    model, x = Uses(name), torch.ones(3, 8)
    cache_compile(model.step, cache_dir=tmp_path, guards=guards)(x)
    module.library._destroy()
    del sys.modules[name]
    function = cache_compile(model.step, cache_dir=tmp_path, guards=guards)
    function(x)
    assert outcome(function) == "loaded"


X = torch.tensor([-1.0, 2.0, 3.0])
FACTOR = 7


def other(x: Any, *_: Any) -> Any:
    return x * FACTOR


class CallsTorch(nn.Module):
    """Calls one function of torch."""

    def __init__(self, use: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.use = use

    def forward(self, x: torch.Tensor) -> Any:
        return self.use(x)


REACHED = """
import functools
import torch
FACTOR, KNOWN, LIST = 2.0, {{"a": 3.0}}, [5.0]
class Held:
    def __init__(self): self.value = 7.0
HELD = Held()
@functools.lru_cache
def cached(x): return x
def helper(x, *, by=1.0): return x * FACTOR * KNOWN["a"] * LIST[0] * HELD.value * by * cached(1)
def patch(x, *_, **__): return helper(x)
@torch.library.custom_op("{name}::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor: return helper(x)
@op.register_fake
def _(x): return torch.empty_like(helper(x))
"""
REACHED_CHANGES: dict[str, Callable[[Any], Any]] = {
    "global": lambda module: setattr(module, "FACTOR", 3.0),
    "member of a dict": lambda module: module.KNOWN.update(a=4.0),
    "member of a list": lambda module: module.LIST.__setitem__(0, 6.0),
    "attribute": lambda module: setattr(module.HELD, "value", 8.0),
    "code": lambda module: setattr(module.helper, "__code__", (lambda x, *, by=1.0: x + by).__code__),
    "default": lambda module: module.helper.__kwdefaults__.update(by=9.0),
    "cached function": lambda module: setattr(module.cached.__wrapped__, "__code__", other.__code__),
    "another function": lambda module: setattr(module, "helper", torch.neg),
}


@pytest.mark.parametrize("change", REACHED_CHANGES)
def test_change_of_what_a_patch_reaches_is_noticed_by_the_next_call(change, defined, tmp_path, monkeypatch):
    patches = defined(REACHED, f"warmrank_patch_{[*REACHED_CHANGES].index(change)}")
    monkeypatch.setattr(torch.Tensor, "softmax", patches.patch)
    model = CallsTorch(lambda x: nn.functional.softmax(x, 0))
    function = cache_compile(model.forward, cache_dir=tmp_path)
    for _ in range(3):
        assert torch.equal(function(X), model.forward(X))
    REACHED_CHANGES[change](patches)
    for _ in range(3):
        assert torch.equal(function(X), model.forward(X))


@pytest.mark.skipif(not dicts_tell(), reason="in this Python no watch of a dict sees all changes")
@pytest.mark.parametrize("change", REACHED_CHANGES)
def test_calls_of_an_operator_compute_no_digest_until_its_code_changes(
    change, defined, tmp_path, monkeypatch
):
    name = f"warmrank_reached_{[*REACHED_CHANGES].index(change)}"
    module = defined(REACHED, name)
    computed: list[str] = []
    digest = reachable.operator_digest

    def counted(operator: str, overload: Any) -> str:
        computed.append(operator)
        return digest(operator, overload)

    monkeypatch.setattr(reachable, "operator_digest", counted)
    model = CallsTorch(getattr(torch.ops, name).op)
    function = cache_compile(model.forward, cache_dir=tmp_path)
    for _ in range(3):
        function(X)
    computed.clear()
    for _ in range(3):
        assert torch.equal(function(X), model.forward(X))
    assert not computed
    REACHED_CHANGES[change](module)
    assert torch.equal(function(X), model.forward(X))
    assert computed


@contextlib.contextmanager
def doubling() -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    "decorate", [torch.autocast("cpu", torch.bfloat16), doubling()], ids=["casts", "own"]
)
def test_context_around_a_function_of_torch_is_noticed(
    decorate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = CallsTorch(lambda x: torch.einsum("i,j->ij", x, x))
    artifact = compiled(module.forward, X)
    monkeypatch.setattr(torch, "einsum", decorate(torch.einsum))
    assert any("was patched" in reason for reason in misfits(artifact, module.forward, X))


PATCHING = """
import sys, torch
from warmrank.inference import cache_compile

def doubled(function):
    return lambda *args: function(*args) * 2

for name in ("index_select", "einsum"):
    setattr(torch, name, doubled(getattr(torch, name)))

class Patched(torch.nn.Module):
    def forward(self, x, rows):
        return torch.einsum("ij,kj->ik", torch.index_select(x, 0, rows), x)

function = cache_compile(Patched().forward, cache_dir=sys.argv[1])
x, rows = torch.eye(3), torch.tensor([2, 0])
assert function(x, rows).tolist() == Patched()(x, rows).tolist() == [[0, 0, 4], [4, 0, 0]]
print(function.last_result.outcome)
"""


def test_functions_of_torch_that_a_package_patched_when_it_was_imported_are_traced(tmp_path: Path) -> None:
    """Before Dynamo learned torch's functions by their names, as ``torch_geometric`` does."""
    outcomes = [python("-c", PATCHING, str(tmp_path)) for _ in range(2)]
    assert outcomes == ["compiled\n", "loaded\n"]


class Collects(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        listed: list[int] = []
        keyed: dict[int, int] = {}
        for number in range(40):
            listed.append(number)
            keyed[number] = listed[-1]
            x = x + keyed.get(number, 0) + len(listed)
        return x


def test_container_is_not_made_anew_for_each_call_of_its_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[type] = []
    for kind in (ListVariable, ConstDictVariable):
        of_kind = kind.as_python_constant

        def counted(variable: Any, of_kind: Any = of_kind) -> Any:
            made.append(type(variable))
            return of_kind(variable)

        monkeypatch.setattr(kind, "as_python_constant", counted)
    traced(Collects().forward, PLAIN_ROWS)
    assert len(made) < 5


@dataclasses.dataclass
class Point:
    x: int
    held: list[Any]


class TellsOfContainers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.point = Point(1, [(2,)])
        # Up to 2.12 Dynamo has no text for a list of objects.
        self.points = [self.point] if torch.__version__ >= "2.13" else self.point
        self.held = OrderedDict(a={1, 2}, b=OrderedDict(c=(1,)))
        # From 2.15 on the text of a defaultdict is refused.
        self.counted = defaultdict(int, {1: 2}) if torch.__version__ < "2.15" else {}

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        made = OrderedDict(a=1)
        texts = [
            f"{each} {each!r}" + "%s %r" % (each, each)  # noqa: UP031 - as users write it
            for each in (self.held, made, [made], {1, 2}, frozenset({1}), {"a": {1, 2}}, {"a": (1,)})
        ]
        texts += [repr(each) for each in (self.held.keys(), made.items(), {"a": 1, "b": (2,)}.items())]
        return x + 1, [*texts, made.__repr__(), str(self.counted), f"{self.point} {self.points}"]


def test_containers_are_told_of_by_their_names(tmp_path: Path) -> None:
    module = TellsOfContainers()
    assert cache_compile(module.forward, cache_dir=tmp_path)(PLAIN_ROWS)[1] == module(PLAIN_ROWS)[1]


class Gets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 4).requires_grad_(False)
        self.get = operator.attrgetter("inner.bias")

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.get(self) + operator.attrgetter("inner.weight")(self).sum()


def test_getter_of_a_name_with_dots_is_traced(tmp_path: Path) -> None:
    """Dynamo makes such getters of functions that close over functions."""
    model, rows = Gets(), torch.rand(2, 4)
    assert torch.equal(cache_compile(model.forward, cache_dir=tmp_path)(rows), model(rows))


class Measures(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len([1, 2])


def test_global_that_hides_a_builtin_is_noticed_and_so_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = compiled(Measures().forward, X)
    assert misfits(artifact, Measures().forward, X) == ()
    monkeypatch.setitem(globals(), "len", lambda _: 9)
    assert misfits(artifact, Measures().forward, X) != ()
    hidden = compiled(Measures().forward, X)
    assert misfits(hidden, Measures().forward, X) == ()
    monkeypatch.undo()
    assert misfits(hidden, Measures().forward, X) != ()


class Distinguishes(nn.Module):
    def forward(self, x: torch.Tensor, value: Any) -> torch.Tensor:
        is_text = torch.jit.isinstance(value, str)
        return x + 1 if is_text else x * torch.jit.isinstance(value, (float, torch.Tensor))


def test_instances_are_told_apart_as_torchscript_does(tmp_path: Path) -> None:
    """torchaudio's spectrograms ask so, which Dynamo refuses."""
    model = Distinguishes()
    function = cache_compile(model.forward, cache_dir=tmp_path)
    for value in ("text", 2, 2.5, PLAIN_ROWS, None, [1]):
        assert torch.equal(function(PLAIN_ROWS, value), model(PLAIN_ROWS, value))
