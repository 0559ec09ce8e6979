"""Every option of our `CompilerConfig` on the real TorchAir's, as docs/compiler-config.md says.

A new torch_npu that adds, drops or renames an option, or changes a default, fails here.
"""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import options as table
from tests.support.small_models import Plain
from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.options import MODES, options
from warmrank.worker.configs.torchair import FLAT, INVERTED, is_option
from warmrank.worker.engines.torchair_vendor import translated
from warmrank.worker.errors import NoCounterpart, NotPortable

_NAMES = [name for name, _, _ in options(CompilerConfig()) if name != "mode"]
_NOT_OURS = {"debug.fx_summary._path": "nothing documents it; the summary goes to the working directory"}
LEFT = "left as it was"
_ONLY_FLAT = {
    "capture_error_mode", "deadlock_check", "disable_static_kernel_compile_cache", "force_recapture",
    "record_statistics_debug_info", "unsafe_skip_npugraph_capture_validation",
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _imported(emulated_npu: None) -> None:
    # Importing them warns of what torch itself deprecates.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("torchair", "npugraph_ex"):
            importlib.import_module(name)


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # TorchAir makes the directory of a dump as soon as its options are asked for.
    monkeypatch.chdir(tmp_path)


def theirs_for(mode: str) -> Any:
    """A new object of the real package."""
    return importlib.import_module("npugraph_ex" if mode == "npugraph_ex" else "torchair").CompilerConfig()


def their_options(theirs: Any, prefix: str = "") -> dict[str, Any]:
    """Every option of an object of TorchAir's, by dotted name, as TorchAir reads it."""
    found: dict[str, Any] = {}
    of_class = {
        name: value
        for kind in reversed(type(theirs).__mro__[:-1])
        for name, value in vars(kind).items()
        if not (name.startswith("__") or name.isupper() or callable(value))
        and not isinstance(value, property | staticmethod | classmethod)
    }
    for name, value in {**of_class, **vars(theirs)}.items():
        public = name.removeprefix("_")
        seen = public if isinstance(getattr(type(theirs), public, None), property) else name
        if name == "_fixed_attrs":
            continue
        if hasattr(value, "__dict__") and not is_option(value) and not callable(value):
            found |= their_options(value, f"{prefix}{seen}.")
        else:
            found[f"{prefix}{seen}"] = value.value if is_option(value) else value
    return found


def read(theirs: Any, name: str) -> Any:
    """What TorchAir's own code reads: the option's value, or the attribute itself."""
    for part in name.split("."):
        theirs = getattr(theirs, part)
    return theirs.value if hasattr(theirs, "value") else theirs


def their_name(name: str, mode: str) -> str:
    """What TorchAir calls an option of ours."""
    if mode == "npugraph_ex":
        return FLAT.get(name, name.removeprefix("npugraphex_config."))
    return "debug.run_eagerly" if name == "npugraphex_config.force_eager" else name


def in_their_terms(name: str, value: Any, mode: str) -> Any:
    """The value as TorchAir's code is to read it."""
    if isinstance(value, bool):
        inverted = mode == "npugraph_ex" and their_name(name, mode) in INVERTED
        value = value != (inverted and not name.startswith("npugraphex_config."))
        plain = name.startswith("export.") and not name.startswith("export.experimental.")
        return value if mode == "npugraph_ex" or plain else str(int(value))
    return str(value) if isinstance(value, int) else value


def found(name: str, value: Any, mode: str) -> str:
    """What comes of one option in one mode; what is set is read back, what is not set is as it was."""
    config, theirs = table.with_value(name, value, mode), theirs_for(mode)
    before = their_options(theirs)
    problems: tuple[str, ...] = ()
    try:
        translated(config, theirs)
    except NoCounterpart as error:
        problems = error.problems
    if problems:
        assert len(problems) == 1
        assert f"config.{name} = {value!r}" in problems[0]
        return table.ERROR
    if {**their_options(theirs), "mode": ""} == {**before, "mode": ""}:
        return LEFT
    assert read(theirs, their_name(name, mode)) == in_their_terms(name, value, mode)
    return table.SET


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", _NAMES)
def test_every_value_is_set_or_said_as_the_table_has_it(name: str, mode: str, tmp_path: Path) -> None:
    for value in table.samples(table.declared(name), tmp_path):
        expected = table.outcome(name, value, mode)
        expected = expected if expected in (table.SET, table.ERROR) else LEFT
        assert found(name, value, mode) == expected, f"config.{name} = {value!r} in {mode}"


@pytest.mark.parametrize("mode", MODES)
def test_our_defaults_differ_from_theirs_in_the_mode_only(mode: str) -> None:
    theirs = theirs_for(mode)
    before = their_options(theirs)
    translated(table.with_value("mode", mode, mode), theirs)
    changed = {name for name, value in their_options(theirs).items() if value != before[name]}
    assert changed <= {"mode"}
    assert read(theirs, "mode") == mode


def test_every_option_of_the_nested_form_is_known() -> None:
    known = {name for name, _, _ in options(CompilerConfig())}
    there = set(their_options(theirs_for("max-autotune")))
    assert there - known == set(_NOT_OURS)
    assert known - there == {f"npugraphex_config.{name}" for name in _ONLY_FLAT}


def test_every_option_of_the_flat_form_is_known() -> None:
    known = {
        name.removeprefix("npugraphex_config.") for name in _NAMES if name.startswith("npugraphex_config.")
    }
    assert set(their_options(theirs_for("npugraph_ex"))) == known | {"mode"}


def test_names_and_opposites_are_those_of_the_real_package() -> None:
    real = importlib.import_module("torchair.configs.npugraphex_config")._NpuGraphExConfig
    mapped = {nested: flat for flat, nested in real.OPTIONS_TO_CONFIG_MAP.items() if flat != nested}
    assert {**mapped, "debug.deadlock_check": "deadlock_check"} == FLAT
    assert set(real.OPTIONS_TO_CONFIG_TRANSFORMATIONS) == INVERTED


@pytest.mark.parametrize("mode", ["reduce-overhead", "npugraph_ex"])
def test_a_shared_pool_is_handed_over(mode: str) -> None:
    theirs = theirs_for(mode)
    translation = translated(table.with_value("aclgraph_config.use_custom_pool", (0, 7), mode), theirs)
    assert translation.pool == (0, 7)
    assert read(theirs, their_name("aclgraph_config.use_custom_pool", mode)) == (0, 7)


@pytest.mark.parametrize(
    ("name", "mode", "key"),
    [
        ("dump_config.enable_dump", "max-autotune", "ge.exec.dumpPath"),
        ("dump_config.enable_dump", "reduce-overhead", "aclgraph.dumpPath"),
        ("npugraphex_config.dump_tensor_data", "npugraph_ex", "data_dump_path"),
    ],
)
def test_the_path_of_a_dump_is_told(name: str, mode: str, key: str, tmp_path: Path) -> None:
    config = table.with_value(name, True, mode)
    config.dump_config.dump_path = str(tmp_path)
    translation = translated(config, theirs_for(mode))
    assert translation.paths == {key: f"{tmp_path}/worldsize1_global_rank0"}


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({"debug.run_eagerly": True}, "reduce-overhead"),
        ({"dump_config.enable_dump": True}, "reduce-overhead"),
        ({"debug.data_dump.type": "npy"}, "reduce-overhead"),
        ({"dump_config.enable_dump": True, "dump_config.data_dump_stage": "original"}, "reduce-overhead"),
        ({"debug.run_eagerly": True}, "npugraph_ex"),
        ({"dump_config.enable_dump": True}, "npugraph_ex"),
        ({"dump_config.enable_dump": True, "dump_config.data_dump_stage": "original"}, "npugraph_ex"),
        ({"dump_config.enable_dump": True, "debug.run_eagerly": True}, "npugraph_ex"),
    ],
)
def test_torchair_keeps_nothing_where_we_refuse_and_something_where_not(changes, mode, tmp_path):
    config = CompilerConfig()
    for name, value in {"mode": mode, **changes}.items():
        table.assign(config, name, value)
    theirs = theirs_for(mode)
    paths = translated(config, theirs, kept=False).paths
    package = importlib.import_module(
        "npugraph_ex.inference" if mode == "npugraph_ex" else "torchair.inference"
    )
    torch.compiler.reset()
    cached = package.cache_compile(
        Plain().affine, config=theirs, cache_dir=str(tmp_path / "kept"), dynamic=False
    )
    with torch.no_grad():
        cached(torch.ones(2, 4))
    files = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    try:
        translated(config, theirs_for(mode))
    except NoCounterpart:
        assert files == []
    else:
        (file,) = files
        assert all(path.encode() in file.read_bytes() for path in paths.values())


PACKAGES = {"reduce-overhead": "torchair", "npugraph_ex": "npugraph_ex"}
ROW = torch.empty(2, 4)


class Model(nn.Module):
    def sums(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + y)


class Scaled:
    """Functions of patterns that are methods."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def replacement(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * self.factor


def sum_relu(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y)


def relu_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + torch.relu(y)  # something else, so that it shows


def relu(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


def by_type(x: torch.Tensor) -> torch.Tensor:
    return x.float().relu() if x.dtype == torch.float16 else x.relu()


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.relu(x * factor)


def scaled_sigmoid(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.sigmoid(x * factor)


@pytest.fixture(params=list(PACKAGES))
def config(request: pytest.FixtureRequest) -> CompilerConfig:
    made = CompilerConfig()
    made.mode = request.param
    return made


@pytest.fixture
def register(config: CompilerConfig, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers these patterns, and no others: each a tuple of arguments, a dict of options at its end."""
    from warmrank.worker.engines.torchair_vendor import vendor_for

    vendor_for(config.mode)
    manager = importlib.import_module(f"{PACKAGES[config.mode]}.patterns.pattern_pass_manager")

    def registered(*patterns: tuple[Any, ...]) -> None:
        theirs = manager._pattern_manager()  # by this very object others apply it
        monkeypatch.setattr(theirs, "pass_dict", type(theirs.pass_dict)("registered"))
        for pattern in patterns:
            options = pattern[3] if len(pattern) > 3 else {}
            manager.register_replacement(*pattern[:3], **options)

    return registered


def components(config: CompilerConfig, directory: Path) -> dict[str, str]:
    return cache_compile(Model().sums, config=config, cache_dir=directory).request().components


LONG, SHORT = (sum_relu, relu_sum, (ROW, ROW.clone())), (relu, sigmoid, (ROW,))


# In this mode alone: a process that compiled with npugraph_ex cannot compile with torchair afterwards.
@pytest.mark.parametrize("config", ["npugraph_ex"], indirect=True)
def test_other_order_of_patterns_is_compiled_anew(register, config, tmp_path):
    x, y = torch.tensor([[-2.0, 1, 2, 3]]), torch.tensor([[3.0, -4, 1, 1]])
    found = []
    for patterns in ((LONG, SHORT), (SHORT, LONG), (LONG, SHORT)):
        register(*patterns)
        function = cache_compile(Model().sums, config=config, cache_dir=tmp_path)
        value = function(x, y).clone()
        assert function.last_result is not None
        found.append((function.last_result.outcome, torch.equal(value, relu_sum(x, y))))
    assert found == [("compiled", True), ("compiled", False), ("loaded", True)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((by_type, sigmoid, (ROW.half(),)), (by_type, sigmoid, (ROW,))),
        (SHORT, (relu, sigmoid, (ROW.clone().requires_grad_(),))),
        (
            (scaled, scaled_sigmoid, (ROW, 2.5), {"scalar_workaround": {"factor": 2.5}}),
            (scaled, scaled_sigmoid, (ROW, 3.5), {"scalar_workaround": {"factor": 3.5}}),
        ),
        ((relu, Scaled(2.0).replacement, (ROW,)), (relu, Scaled(3.0).replacement, (ROW,))),
    ],
    ids=["types of the example", "gradients of the example", "scalar_workaround", "method of another object"],
)
def test_pattern_that_is_registered_otherwise_is_another_key(one, other, register, config, tmp_path):
    keys = []
    for pattern in (one, other, one):
        register(pattern)
        keys.append(components(config, tmp_path)["patterns"])
    assert keys[0] == keys[2] != keys[1]


def test_function_that_traces_a_pattern_and_the_form_of_it_are_in_the_key(register, config, tmp_path):
    from torch._inductor.pattern_matcher import CallFunction, KeywordArg, fwd_only

    operators = torch.ops.aten
    forms: list[dict[str, Any]] = [
        {},
        {"trace_fn": functools.partial(fwd_only, run_functional_passes=False)},
        *(
            {"search_fn_pattern": CallFunction([first, second], KeywordArg("x"))}
            for first, second in (
                (operators.relu.default, operators.abs.default),
                (operators.relu.default, operators.neg.default),
            )
        ),
    ]
    keys = []
    for form in forms:
        register((*SHORT, form))
        keys.append(components(config, tmp_path)["patterns"])
    assert len(set(keys)) == len(forms)


def test_pattern_of_another_make_is_refused(register, config, tmp_path, monkeypatch):
    register()
    manager = sys.modules[f"{PACKAGES[config.mode]}.patterns.pattern_pass_manager"]
    entry = SimpleNamespace(extra_check=lambda match: None)
    strange = SimpleNamespace(pass_dict=SimpleNamespace(patterns={("call_function", "x"): [entry]}))
    monkeypatch.setattr(manager, "_global_pattern_pass_manager", strange)
    with pytest.raises(NotPortable, match=r"registered with .* in a way that is not known"):
        components(config, tmp_path)


def test_vendors_pattern_counts_where_it_has_its_turn_before_a_users(register, config, tmp_path):
    vendors = FunctionType(sigmoid.__code__, {"__name__": "torchair.patterns", "torch": torch})
    passed_off = functools.wraps(vendors)(FunctionType(sigmoid.__code__, globals()))
    keys = []
    for patterns in ((), (LONG,), (LONG, (relu, vendors, (ROW,))), ((relu, vendors, (ROW,)), LONG)):
        register(*patterns)
        keys.append(components(config, tmp_path).get("patterns"))
    register((relu, vendors, (ROW,)))
    assert "patterns" not in components(config, tmp_path)
    register((relu, passed_off, (ROW,)))
    assert "patterns" in components(config, tmp_path)
    assert keys[0] is None
    assert keys[1] == keys[2] != keys[3]


@pytest.fixture
def operator() -> Iterator[Any]:
    library = torch.library.Library("registered", "DEF")
    library.define("mine(Tensor x) -> Tensor")
    yield torch.ops.registered.mine.default
    library._destroy()


@pytest.mark.parametrize("place", ["operator", "registry"])
def test_converter_is_in_the_key_of_mode_max_autotune(place, operator, tmp_path, monkeypatch):
    import torchair

    registry = importlib.import_module("torchair._ge_concrete_graph.fx2ge_converter")

    made = CompilerConfig()
    made.mode = "max-autotune"

    def with_converter(name: str) -> str:
        def convert(x: Any, meta_outputs: Any = None) -> Any:
            return torchair.ge.custom_op(name, inputs={"x": x}, outputs=["y"])

        torchair.register_fx_node_ge_converter(operator)(convert)
        if place == "registry":
            monkeypatch.setitem(registry._CONVERTERS, operator, vars(operator).pop("_ge_converter"))
        return components(made, tmp_path)["converters"]

    assert "converters" not in components(made, tmp_path)
    found = [with_converter(name) for name in ("Relu", "Sigmoid", "Relu")]
    assert found[0] == found[2] != found[1]
    made.mode = "reduce-overhead"
    assert "converters" not in components(made, tmp_path)


def test_converter_that_replaces_the_vendors_and_passes_for_it_is_in_the_key(tmp_path, monkeypatch):
    import torchair

    config = CompilerConfig()
    config.mode = "max-autotune"
    add: Any = torch.ops.aten.add.Tensor
    before = components(config, tmp_path)
    vendors = add._ge_converter
    monkeypatch.setattr(add, "_ge_converter", vendors)

    @functools.wraps(vendors)
    def convert(*args: Any, meta_outputs: Any = None, **kwargs: Any) -> Any:
        return vendors(*args, meta_outputs=meta_outputs, **kwargs)

    torchair.register_fx_node_ge_converter(add)(convert)
    assert "converters" not in before
    assert components(config, tmp_path)["converters"].startswith("1, ")
