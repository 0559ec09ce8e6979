"""Every option of our `CompilerConfig` on the real TorchAir's, as docs/compiler-config.md says.

A new torch_npu that adds, drops or renames an option, or changes a default, fails here.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import options as table
from tests.support.small_models import Plain
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.options import MODES, options
from warmrank.worker.configs.torchair_sections import FLAT, INVERTED, is_option
from warmrank.worker.engines.torchair_options import translated
from warmrank.worker.errors import NoCounterpart

pytestmark = pytest.mark.torchair

_NAMES = [name for name, _, _ in options(CompilerConfig()) if name != "mode"]
_NOT_OURS = {"debug.fx_summary._path": "nothing documents it; the summary goes to the working directory"}
LEFT = "left as it was"
_ONLY_FLAT = {
    "capture_error_mode",
    "deadlock_check",
    "disable_static_kernel_compile_cache",
    "force_recapture",
    "record_statistics_debug_info",
    "unsafe_skip_npugraph_capture_validation",
}


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


@pytest.mark.parametrize(
    ("name", "value", "mode", "key", "text"),
    [
        ("debug.aclgraph.clone_input", False, "reduce-overhead", "clone_input", "0"),
        ("debug.aclgraph.static_capture_size_limit", 7, "reduce-overhead", "static_capture_size_limit", "7"),
        ("debug.run_eagerly", True, "reduce-overhead", "run_eagerly", "1"),
        ("experimental_config.frozen_parameter", True, "max-autotune", "frozen_parameter", "1"),
        ("experimental_config.topology_sorting_strategy", "BFS", "max-autotune", "ge.topoSortingMode", "0"),
        ("ge_config.aicore_num", 24, "max-autotune", "ge.aicoreNum", "24"),
        ("ge_config.oo_constant_folding", False, "max-autotune", "ge.oo.constantFolding", "false"),
        ("npugraphex_config.clone_input", False, "npugraph_ex", "clone_input", False),
        ("debug.aclgraph.clone_input", False, "npugraph_ex", "clone_input", False),
        ("npugraphex_config.capture_limit", 7, "npugraph_ex", "capture_limit", "7"),
        ("npugraphex_config.force_recapture", True, "npugraph_ex", "force_recapture", True),
        ("npugraphex_config.capture_error_mode", "relaxed", "npugraph_ex", "capture_error_mode", "relaxed"),
    ],
)
def test_values_reach_the_compiler_in_its_own_form(name, value, mode, key, text):
    theirs = theirs_for(mode)
    translated(table.with_value(name, value, mode), theirs)
    local_options, global_options = theirs.as_dict()
    assert {**local_options, **global_options}[key] == text


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


def test_passes_are_handed_over_as_they_are() -> None:
    for mode in MODES:
        theirs = theirs_for(mode)
        translated(table.with_value("post_grad_custom_post_pass", table.a_pass, mode), theirs)
        assert theirs.post_grad_custom_post_pass.value is table.a_pass


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
