"""What is asked for: environment, options, source that was traced."""

from __future__ import annotations

import getpass
import importlib.metadata
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.ascend_machine import ascend_places, lay_out_cann, lay_out_driver, lay_out_npus
from tests.support.checkout import python
from tests.support.made_artifacts import MadeModule
from warmrank.worker.keys import request as fingerprint
from warmrank.worker.keys.code import class_digest, function_digest, is_pinned_module
from warmrank.worker.keys.sources import collect
from warmrank.worker.runtime.artifact import TracedSource

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
    module = sys.modules["made_classes"] = ModuleType("made_classes")
    vars(module).update(__file__="made.py", torch=torch)
    exec(compile(text, file_name, "exec"), vars(module))  # noqa: S102 - a module in memory
    made = module.C
    assert isinstance(made, type)
    return made


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeModule:
    monkeypatch.syspath_prepend(tmp_path)
    return MadeModule(tmp_path)


SAME = [
    "\n\n\n" + BODY,
    "# about f\n" + BODY,
    BODY.replace("x + y", "x  +  y"),
    BODY.replace("    return", "    # why\n    return"),
    BODY.replace("x,", "x: int,"),
]
OTHER = [
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
]


@pytest.mark.parametrize("text", [*SAME, *OTHER])
def test_function_digest_changes_with_what_a_function_does_and_with_nothing_else(text: str) -> None:
    assert (function_digest(function_of(text)) == function_digest(function_of(BODY))) == (text in SAME)


def test_addresses_in_generated_code_are_not_told_apart() -> None:
    """Such as beartype's, whose wrappers name objects by them."""

    def made(first: int, second: int, expected: type) -> Any:
        scope: dict[str, Any] = {"a": int, "b": expected}
        text = f"def f(x, *, check_{first}=a, check_{second}=b): return check_{first}(x), check_{second}(x)"
        exec(text, scope)  # noqa: S102 - as its makers do
        return function_digest(scope["f"])

    assert made(140628009507392, 94838816629600, str) == made(94838816629600, 140628009507392, str)
    assert made(140628009507392, 94838816629600, str) != made(140628009507392, 94838816629600, bytes)


@pytest.mark.parametrize(
    ("one", "other"),
    [("(1, 2)", "(1, 3)"), ("(1, 2)", "(1, 2.0)"), ("'ab'", "b'ab'"), ("0.0", "-0.0"), ("{1, 2}", "{1, 3}")],
)
def test_function_digest_tells_constants_apart(one: str, other: str) -> None:
    digests = {function_digest(function_of(f"def f(x):\n    return x in {text}\n")) for text in (one, other)}
    assert len(digests) == 2


@given(names=st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=2))
def test_function_digest_does_not_depend_on_the_order_of_a_set(names: list[str]) -> None:
    texts = [
        f"def f(x):\n    return x in {{{', '.join(map(repr, order))}}}\n" for order in (names, names[::-1])
    ]
    assert function_digest(function_of(texts[0])) == function_digest(function_of(texts[1]))


CLASS = "class C(dict):\n    a = 1\n    def f(self): return 1\n"


SAME_CLASS = [
    CLASS.replace("return 1", "return 2"),  # an untraced body
    CLASS.replace("    a = 1\n", "    '''About C.'''\n    a = 1\n"),
    "# about C\n" + CLASS,
    *([CLASS.replace("a = 1", "a: int = 1")] if sys.version_info < (3, 14) else []),  # a name more
]
OTHER_CLASS = [
    CLASS.replace("(dict)", "(list)"),
    CLASS + "    def g(self): return 1\n",
    CLASS.replace("def f", "def h"),
    CLASS.replace("    a = 1\n", ""),
    "class B(dict):\n    def g(self): return 2\n" + CLASS.replace("(dict)", "(B)"),
]


@pytest.mark.parametrize("text", [*SAME_CLASS, *OTHER_CLASS])
def test_class_digest_changes_with_bases_and_names_and_with_nothing_else(text: str) -> None:
    assert (class_digest(class_of(text)) == class_digest(class_of(CLASS))) == (text in SAME_CLASS)


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
)
def test_collect_falls_back_to_the_file_where_no_name_leads_to_the_code(module, text, reach):
    source = only(collect([reach(module.write(text)).__code__]))
    assert (source.kind, source.module, source.name) == ("file", module.name, "")


def test_collect_does_not_take_a_users_file_for_a_module_of_python(tmp_path, monkeypatch):
    path = tmp_path / "tabnanny.py"
    path.write_text(BODY)
    shadow = ModuleType("tabnanny")
    shadow.__file__ = str(path)
    exec(compile(BODY, str(path), "exec"), vars(shadow))  # noqa: S102 - a module in memory
    monkeypatch.setitem(sys.modules, "tabnanny", shadow)
    assert [source.module for source in collect([shadow.f.__code__])] == ["tabnanny"]


def test_modules_of_torch_and_python_alone_are_pinned() -> None:
    pinned = ["torch", "torch.nn.modules.linear", "collections", "torch_npu.npu", "builtins"]
    others = ["__main__", "transformers.models", "torchvision.ops", "tests.unit", None]
    assert [is_pinned_module(name) for name in (*pinned, *others)] == [True] * 5 + [False] * 5


Read = Callable[[], dict[str, str]]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without accelerators; tests lay its files below the path."""
    ascend = ascend_places(tmp_path)
    monkeypatch.setattr("warmrank.worker.settings.ascend_places", lambda: ascend)
    monkeypatch.setattr(fingerprint, "_NVIDIA", tmp_path / "nvidia")
    monkeypatch.setattr(fingerprint, "_NVIDIA_DEVICE", tmp_path / "nvidiactl")
    monkeypatch.setattr("warmrank.worker.keys.request._CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("warmrank.worker.nvidia.architectures", tuple)
    return tmp_path


@pytest.fixture
def read() -> Read:
    """The fingerprint, computed anew."""
    return fingerprint._components.__wrapped__


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_environment_imports_neither_torch_nor_a_tracer() -> None:
    code = (
        "import json, sys\n"
        "from warmrank.worker.keys.request import environment\n"
        "found = environment()\n"
        "print(json.dumps([found['torch'], sorted(sys.modules)]))\n"
    )
    torch_component, modules = json.loads(python("-c", code))
    assert torch_component.startswith(importlib.metadata.version("torch"))
    assert not {"torch", "sympy", "ray", "numpy", "torch_npu"} & set(modules)


def test_environment_has_nothing_of_the_host_or_the_user(tmp_path: Path) -> None:
    text = json.dumps(fingerprint.environment())
    for private in (socket.gethostname(), str(Path.home()), str(os.getpid()), str(Path.cwd()), sys.prefix):
        assert private not in text
    assert getpass.getuser() not in text.split()


def test_ascend_is_part_of_the_fingerprint(machine: Path, read: Read) -> None:
    lay_out_cann(machine / "cann", "9.0.0")
    lay_out_driver(machine, "25.5.0")
    lay_out_npus(machine, "910B2", 2)
    found = read()
    assert [found[name] for name in ("cann", "driver", "accelerator")] == [
        "9.0.0 V100R001C25SPC001B212",
        "ascend 25.5.0",
        "Ascend910B2",
    ]


def test_cpu_with_another_instruction_set_differs(machine: Path, read: Read) -> None:
    write(machine / "cpuinfo", "flags\t\t: avx avx2\n")
    first = read()
    write(machine / "cpuinfo", "flags\t\t: avx avx2 avx512f\n")
    assert read() != first


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda: Optional[str] = '12.6'\n", "12.6 cudnn nvidia-cudnn-cu12 9.5"),
        ("cuda = '13.0'\n", "13.0 cudnn nvidia-cudnn-cu13 9.5"),
        ("cuda: Optional[str] = None\n", "none"),
        ("__version__ = '1'\n", "none"),
    ],
)
def test_cuda_of_torch_is_read_without_importing_it(read, tmp_path, monkeypatch, text, expected):
    write(tmp_path / "version.py", text)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"{name} 9.5")
    assert read()["cuda"] == expected
