"""Digests of traced source: what counts as a change, where code is found again, what is pinned elsewhere."""

from __future__ import annotations

import collections.abc
import linecache
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from warmrank.worker.keys.code import class_digest, code_digest, function_digest, is_pinned_module, type_name
from warmrank.worker.keys.sources import collect

from tests.support import small_models
from tests.support.made_guards import MadeModule, code_of
from tests.support.small_models import Plain
from warmrank.worker.errors import NotPortable
from warmrank.worker.runtime.artifact import TracedSource
from warmrank.worker.runtime.sources import changed, present_digest

pytestmark = pytest.mark.usefixtures("forget_modules")

BODY = "def f(x, y=1, *, z=2):\n    return x + y * z\n"


def function_of(text: str, file_name: str = "<text>") -> FunctionType:
    """The function ``f`` of a piece of source."""
    scope: dict[str, Any] = {}
    exec(compile(text, file_name, "exec"), scope)  # noqa: S102 - a module in memory
    function = scope["f"]
    assert isinstance(function, FunctionType)
    return function


def class_of(text: str, file_name: str = "made.py") -> type:
    """The class ``C`` of a piece of source."""
    scope: dict[str, Any] = {"__name__": "made_classes", "__file__": "made.py", "torch": torch}
    exec(compile(text, file_name, "exec"), scope)  # noqa: S102 - a module in memory
    made = scope["C"]
    assert isinstance(made, type)
    return made


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeModule:
    monkeypatch.syspath_prepend(tmp_path)
    return MadeModule(tmp_path)


def inner_codes(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]


# Digests of functions.


@pytest.mark.parametrize(
    "same",
    [
        "\n\n\n" + BODY,
        "# about f\n" + BODY,
        BODY.replace("x + y", "x  +  y"),
        BODY.replace("    return", "    # why\n    return"),
        BODY.replace("x,", "x: int,"),
    ],
    ids=["another line", "comment above", "blanks", "comment inside", "annotation"],
)
def test_function_digest_is_the_same_for_what_does_the_same(same: str) -> None:
    assert function_digest(function_of(same)) == function_digest(function_of(BODY))


def test_function_digest_does_not_depend_on_the_file() -> None:
    assert function_digest(function_of(BODY, "/a/b.py")) == function_digest(function_of(BODY, "/c/d.py"))


@pytest.mark.parametrize(
    "other",
    [
        BODY.replace("x + y", "x - y"),
        BODY.replace("y=1", "y=2"),
        BODY.replace("y=1", "y=1.0"),
        BODY.replace("y=1", "y=True"),
        BODY.replace("z=2", "z=3"),
        BODY.replace("*, z=2", "z=2"),
        BODY.replace("* z", "* z * 1"),
        BODY.replace("x + y * z", "len(x)"),
        BODY.replace("return x", "return -x"),
        BODY.replace("x", "w"),
        BODY.replace("f(x, ", "f(x, /, "),
        "def f(x, y=1, *, z=2):\n    return (lambda: x + y * z)()\n",
        "def f(x, y=1, *, z=2):\n    try:\n        return x + y * z\n    except ValueError:\n        pass\n",
    ],
    ids=[
        "operator", "default", "default's type", "default bool", "keyword default", "keyword-only",
        "constant", "name", "sign", "parameter", "positional-only", "lambda", "exception handler",
    ],
)  # fmt: skip
def test_function_digest_changes_with_what_it_does(other: str) -> None:
    assert function_digest(function_of(other)) != function_digest(function_of(BODY))


def test_function_digest_sees_what_a_slice_says() -> None:
    one, other = (function_of(f"def f(x=slice({stop})):\n    return x\n") for stop in (2, 3))
    assert function_digest(one) != function_digest(other)


def test_function_digest_sees_a_constant_of_a_nested_function() -> None:
    text = "def f():\n    def g():\n        return {}\n    return g\n"
    assert function_digest(function_of(text.format(1))) != function_digest(function_of(text.format(2)))


@pytest.mark.parametrize(
    ("one", "other"),
    [("(1, 2)", "(1, 3)"), ("(1, 2)", "(1, 2.0)"), ("'ab'", "b'ab'"), ("0.0", "-0.0"), ("{1, 2}", "{1, 3}")],
)
def test_function_digest_tells_constants_apart(one: str, other: str) -> None:
    digests = {function_digest(function_of(f"def f(x):\n    return x in {text}\n")) for text in (one, other)}
    assert len(digests) == 2


@pytest.mark.parametrize(
    "default", ["len", "object()", "{'a': 1}", "[1]", "{1, 2}", "int", "lambda: 1", "...", "None"]
)
def test_function_digest_is_stable_for_any_default(default: str) -> None:
    text = f"def f(x={default}):\n    return x\n"
    assert function_digest(function_of(text)) == function_digest(function_of(text))


def test_function_digest_sees_the_body_of_a_default_function() -> None:
    text = "def f(x=lambda: {}):\n    return x\n"
    assert function_digest(function_of(text.format(1))) != function_digest(function_of(text.format(2)))


def test_function_digest_sees_a_default_dtype() -> None:
    def f(x: Any, dtype: torch.dtype = torch.float32) -> Any:
        return x

    assert isinstance(f, FunctionType)
    before = function_digest(f)
    f.__defaults__ = (torch.float16,)
    assert function_digest(f) != before


@given(names=st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=2))
def test_function_digest_does_not_depend_on_the_order_of_a_set(names: list[str]) -> None:
    texts = [
        f"def f(x):\n    return x in {{{', '.join(map(repr, order))}}}\n" for order in (names, names[::-1])
    ]
    assert function_digest(function_of(texts[0])) == function_digest(function_of(texts[1]))


def test_code_digest_leaves_defaults_out() -> None:
    one, other = function_of(BODY), function_of(BODY.replace("y=1", "y=2"))
    assert code_digest(one.__code__) == code_digest(other.__code__)


# Digests of classes.

CLASS = "class C(dict):\n    a = 1\n    def f(self): return 1\n"


@pytest.mark.parametrize(
    "other",
    [
        CLASS.replace("(dict)", "(list)"),
        CLASS + "    def g(self): return 1\n",
        CLASS.replace("def f", "def h"),
        CLASS.replace("    a = 1\n", ""),
        "class B(dict):\n    def g(self): return 2\n" + CLASS.replace("(dict)", "(B)"),
    ],
    ids=["base", "added", "renamed", "removed", "base of its own"],
)
def test_class_digest_changes_with_bases_and_names(other: str) -> None:
    assert class_digest(class_of(other)) != class_digest(class_of(CLASS))


@pytest.mark.parametrize(
    "same",
    [
        CLASS.replace("return 1", "return 2"),
        CLASS.replace("    a = 1\n", "    '''About C.'''\n    a = 1\n"),
        "# about C\n" + CLASS,
        CLASS.replace("a = 1", "a: int = 1"),
    ],
    ids=["untraced body", "docstring", "comment", "annotation"],
)
def test_class_digest_is_the_same_where_nothing_traced_changed(same: str) -> None:
    if sys.version_info >= (3, 14) and "a: int" in same:
        pytest.skip("annotations add a name of their own from 3.14 on")
    assert class_digest(class_of(same)) == class_digest(class_of(CLASS))


def test_class_digest_sees_bodies_that_stand_in_no_file() -> None:
    one, other = (class_of(text, "<cell>") for text in (CLASS, CLASS.replace("return 1", "return 2")))
    assert class_digest(one) != class_digest(other)


def test_class_digest_sees_a_method_added_to_a_base_of_the_users() -> None:
    text = "class B(torch.nn.Linear):\n    {}\nclass C(B): pass\n"
    one, other = class_of(text.format("pass")), class_of(text.format("def forward(self, x): return x"))
    assert class_digest(one) != class_digest(other)


def test_type_name_of_torch_has_no_digest() -> None:
    assert type_name(torch.nn.Linear) == "torch.nn.modules.linear:Linear"


def test_type_name_of_a_users_class_has_its_digest() -> None:
    assert type_name(Plain) == f"tests.support.small_models:Plain#{class_digest(Plain)}"


# Which modules the environment's versions pin.


@pytest.mark.parametrize(
    "name", ["torch", "torch.nn.modules.linear", "collections", "torch_npu.npu", "builtins"]
)
def test_module_of_torch_or_python_is_pinned(name: str) -> None:
    assert is_pinned_module(name)


@pytest.mark.parametrize("name", ["__main__", "transformers.models", "torchvision.ops", "tests.unit", None])
def test_module_of_anybody_else_is_not_pinned(name: str | None) -> None:
    assert not is_pinned_module(name)


# Finding the source of traced code again.

WRAPPED = """
import functools

def logged(g):
    @functools.wraps(g)
    def wrapper(x):
        return g(x)
    return wrapper

@logged
def f(x):
    return x
"""


def only(sources: tuple[TracedSource, ...]) -> TracedSource:
    (source,) = sources
    return source


def test_collect_names_module_and_function() -> None:
    source = only(collect([code_of(Plain.affine)]))
    assert (source.kind, source.module, source.name) == ("code", "tests.support.small_models", "Plain.affine")
    assert source.digest == function_digest(Plain.affine)  # type: ignore[arg-type]


def test_collect_notes_of_what_a_version_pins_that_it_stands_where_it_was_made() -> None:
    (source,) = collect([code_of(torch.nn.Linear.forward), code_of(collections.abc.Mapping.get)])
    assert (source.name, source.digest.partition(",")[0]) == ("Linear.forward", "as made")


def test_pinned_module_that_nobody_imported_is_as_made(monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = collect([code_of(torch.nn.Linear.forward)])
    monkeypatch.delitem(sys.modules, "torch.nn.modules.linear")
    assert present_digest(source) == source.digest
    assert "torch.nn.modules.linear" not in sys.modules


def test_collect_holds_each_source_once_and_sorted() -> None:
    codes = [code_of(Plain.scaled), code_of(Plain.affine), code_of(Plain.affine)]
    assert [source.name for source in collect(codes)] == ["Plain.affine", "Plain.scaled"]


@pytest.mark.parametrize(
    ("text", "reach"),
    [
        ("def outer():\n    def inner(x): return x\n    return inner\n", lambda m: m.outer()),
        ("def outer():\n    return lambda x: x\n", lambda m: m.outer()),
        ("class C:\n    @staticmethod\n    def f(x): return x\n", lambda m: m.C.f),
        ("class C:\n    @classmethod\n    def f(cls): return cls\n", lambda m: m.C.f.__func__),
        ("class C:\n    @property\n    def f(self): return 1\n", lambda m: m.C.f.fget),
        ("class C:\n    class D:\n        def f(self): return 1\n", lambda m: m.C.D.f),
        ("def outer():\n    class C:\n        def f(self): return 1\n    return C\n", lambda m: m.outer().f),
        (WRAPPED, lambda m: m.f.__wrapped__),
    ],
    ids=[
        "nested",
        "nested lambda",
        "static",
        "class method",
        "property",
        "inner class",
        "local class",
        "wrapped",
    ],
)
def test_collect_leads_to_the_code_by_name(module: MadeModule, text: str, reach: Any) -> None:
    source = only(collect([reach(module.write(text)).__code__]))
    assert (source.kind, source.module) == ("code", module.name)


@pytest.mark.parametrize(
    ("text", "reach"),
    [
        ("f = lambda x: x\n", lambda m: m.f),
        ("class C:\n    f = lambda self: 1\n", lambda m: m.C.f),
        ("def f(x): return 1\ng = f\ndef f(x): return 2\n", lambda m: m.g),
        ("def make():\n    def f(x): return x\n    return f\ng = make()\ndel make\n", lambda m: m.g),
    ],
    ids=["lambda", "class lambda", "shadowed", "maker is gone"],
)
def test_collect_falls_back_to_the_file_where_no_name_leads_to_the_code(
    module: MadeModule, text: str, reach: Any
) -> None:
    source = only(collect([reach(module.write(text)).__code__]))
    assert (source.kind, source.module, source.name) == ("file", module.name, "")


def test_collect_refuses_code_that_no_later_process_can_find() -> None:
    with pytest.raises(NotPortable, match=r"the source of f \(<typed in>\) cannot be found again") as raised:
        collect([function_of(BODY, "<typed in>").__code__])
    assert raised.value.what == "f"


def test_collect_does_not_take_a_users_file_for_a_module_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tabnanny.py"
    path.write_text(BODY)
    shadow = ModuleType("tabnanny")
    shadow.__file__ = str(path)
    exec(compile(BODY, str(path), "exec"), vars(shadow))  # noqa: S102 - a module in memory
    monkeypatch.setitem(sys.modules, "tabnanny", shadow)
    assert [source.module for source in collect([shadow.f.__code__])] == ["tabnanny"]


# Comparing with what the running process has.


def traced(function: Any) -> tuple[TracedSource, ...]:
    return collect([code_of(function)])


def test_nothing_changed_right_after_a_trace() -> None:
    assert list(changed(traced(Plain.affine))) == []


@pytest.mark.parametrize(
    "text", [BODY + "\n\ndef more(): pass\n", "# a comment\n" + BODY, "import os\n\n\n" + BODY]
)
def test_change_elsewhere_in_the_file_does_not_count(module: MadeModule, text: str) -> None:
    sources = traced(module.write(BODY).f)
    module.write(text)
    assert list(changed(sources)) == []


def test_change_of_the_body_is_named(module: MadeModule) -> None:
    sources = traced(module.write(BODY).f)
    module.write(BODY.replace("x + y", "x - y"))
    assert list(changed(sources)) == ["source of made_module:f changed"]


def test_change_of_a_nested_function_is_named(module: MadeModule) -> None:
    text = "def outer():\n    def inner(x):\n        return x + 1\n    return inner\n"
    sources = collect([module.write(text).outer().__code__])
    module.write(text.replace("x + 1", "x + 2"))
    assert list(changed(sources)) == ["source of made_module:outer.<locals>.inner changed"]


def test_change_of_one_of_two_lambdas_is_noticed(module: MadeModule) -> None:
    text = "def outer():\n    return (lambda x: x + 1), (lambda x: x + 2)\n"
    second = module.write(text).outer()[1]
    sources = collect([second.__code__])
    module.write(text.replace("x + 2", "x + 3"))
    assert list(changed(sources)) == ["source of made_module:outer.<locals>.<lambda> changed"]


def test_change_in_a_file_without_a_name_is_noticed(module: MadeModule) -> None:
    sources = collect([module.write("f = lambda x: x + 1\n").f.__code__])
    module.write("f = lambda x: x + 2\n")
    assert list(changed(sources)) == ["source of made_module changed"]


def test_comment_in_a_file_without_a_name_does_not_count(module: MadeModule) -> None:
    sources = collect([module.write("f = lambda x: x + 1\n").f.__code__])
    module.write("# why\n\nf = lambda x: x + 1  # that is why\n")
    assert list(changed(sources)) == []


def test_function_that_is_gone_is_named(module: MadeModule) -> None:
    sources = traced(module.write(BODY).f)
    module.write("def g(): pass\n")
    assert list(changed(sources)) == ["source of made_module:f is gone"]


def test_module_that_is_gone_is_named(module: MadeModule) -> None:
    sources = traced(module.write(BODY).f)
    module.path.unlink()
    del sys.modules[module.name]
    linecache.clearcache()
    assert list(changed(sources)) == ["source of made_module:f is gone"]


def test_module_that_was_not_imported_yet_is_imported(module: MadeModule) -> None:
    sources = traced(module.write(BODY).f)
    del sys.modules[module.name]
    assert list(changed(sources)) == []


def test_change_of_a_default_is_noticed(module: MadeModule) -> None:
    sources = traced(module.write(BODY).f)
    module.write(BODY.replace("z=2", "z=5"))
    assert list(changed(sources)) == ["source of made_module:f changed"]


def test_function_replaced_at_run_time_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = traced(Plain.affine)
    monkeypatch.setattr(small_models.Plain, "affine", lambda self, x: x)
    assert list(changed(sources)) == ["source of tests.support.small_models:Plain.affine changed"]
