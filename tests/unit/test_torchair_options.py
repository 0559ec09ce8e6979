"""Our configuration on made-up objects of TorchAir's; tests/npu does the same with the real ones."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.made_torchair import Flat, Held, Loose, Nested, Plain
from tests.support.option_values import a_pass, declared, samples, with_value
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.section import options
from warmrank.worker.engines.torchair_options import (
    FLAT,
    INVERTED,
    OURS_ALONE,
    REFUSED,
    has,
    holds,
    put,
    their_options,
    translated,
)
from warmrank.worker.environment import environment
from warmrank.worker.errors import BadConfig, NoCounterpart


def in_mode(mode: Any) -> CompilerConfig:
    config = CompilerConfig()
    config.mode = mode
    return config


def problems(config: CompilerConfig, theirs: Any, **more: Any) -> tuple[str, ...]:
    with pytest.raises(NoCounterpart) as caught:
        translated(config, theirs, **more)
    found: tuple[str, ...] = caught.value.problems
    assert all(problem in str(caught.value) for problem in found)
    return found


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_defaults_set_the_mode_only(mode: Any) -> None:
    theirs = Nested()
    translation = translated(in_mode(mode), theirs)
    assert theirs.mode.value == mode
    assert theirs.debug.aclgraph.clone_input.value == "1"
    assert "mode" in translation.names
    assert set(translation.names) <= {"mode"}
    assert (translation.pool, translation.paths, translation.warnings) == (None, {}, {})


def test_a_nested_option_is_set_under_its_own_name() -> None:
    config, theirs = in_mode("reduce-overhead"), Nested()
    config.debug.aclgraph.clone_input = False
    config.debug.aclgraph.static_capture_size_limit = 3
    translation = translated(config, theirs)
    assert theirs.debug.aclgraph.clone_input.value == "0"
    assert theirs.debug.aclgraph.static_capture_size_limit.value == "3"
    assert translation.names == (
        "debug.aclgraph.clone_input",
        "debug.aclgraph.static_capture_size_limit",
        "mode",
    )


@pytest.mark.parametrize(
    ("ours", "value", "theirs", "meant"),
    [
        ("debug.aclgraph.clone_input", False, "clone_input", False),
        ("npugraphex_config.clone_input", False, "clone_input", False),
        ("debug.aclgraph.disable_mempool_reuse_in_same_fx", True, "reuse_graph_pool_in_same_fx", False),
        ("npugraphex_config.reuse_graph_pool_in_same_fx", False, "reuse_graph_pool_in_same_fx", False),
        ("debug.aclgraph.disable_reinplace_inplaceable_ops_pass", True, "inplace_pass", False),
        ("debug.aclgraph.static_capture_size_limit", 5, "capture_limit", "5"),
        ("debug.run_eagerly", True, "force_eager", True),
        ("post_grad_custom_pre_pass", a_pass, "post_grad_custom_pre_pass", a_pass),
        ("npugraphex_config.post_grad_custom_pre_pass", a_pass, "post_grad_custom_pre_pass", a_pass),
    ],
)
def test_a_flat_option_is_set_from_either_name(ours: Any, value: Any, theirs: Any, meant: Any) -> None:
    flat = Flat()
    translation = translated(with_value(ours, value, "npugraph_ex"), flat)
    assert getattr(flat, theirs).value == meant
    assert theirs in translation.names


def test_both_names_may_say_the_same() -> None:
    config, theirs = in_mode("npugraph_ex"), Flat()
    config.debug.aclgraph.disable_mempool_reuse_in_same_fx = True
    config.npugraphex_config.reuse_graph_pool_in_same_fx = False
    translated(config, theirs)
    assert theirs.reuse_graph_pool_in_same_fx.value is False


def test_both_names_must_not_contradict_each_other() -> None:
    config = in_mode("npugraph_ex")
    config.debug.aclgraph.static_capture_size_limit = 3
    config.npugraphex_config.capture_limit = 4
    (problem,) = problems(config, Flat())
    assert problem == (
        "config.debug.aclgraph.static_capture_size_limit = 3 and config.npugraphex_config.capture_limit = 4 "
        "contradict each other, for both are TorchAir's capture_limit; set one of them"
    )


def test_force_eager_means_run_eagerly_in_the_other_form() -> None:
    theirs = Nested()
    translated(with_value("npugraphex_config.force_eager", True, "reduce-overhead"), theirs)
    assert theirs.debug.run_eagerly.value == "1"


@pytest.mark.parametrize(
    ("ours", "mode", "make"),
    [
        ("aclgraph_config.use_custom_pool", "reduce-overhead", Nested),
        ("aclgraph_config.use_custom_pool", "npugraph_ex", Flat),
        ("npugraphex_config.use_graph_pool", "npugraph_ex", Flat),
    ],
)
def test_a_pool_is_handed_over_under_either_name(ours: Any, mode: Any, make: Any) -> None:
    theirs = make()
    translation = translated(with_value(ours, (0, 7), mode), theirs)
    assert translation.pool == (0, 7)
    held = theirs.use_graph_pool if mode == "npugraph_ex" else theirs.aclgraph_config.use_custom_pool
    assert held == (0, 7)


def test_a_shared_pool_is_not_reused_within_a_graph_either() -> None:
    theirs = Flat()
    translated(with_value("npugraphex_config.use_graph_pool", (0, 7), "npugraph_ex"), theirs)
    assert theirs.reuse_graph_pool_in_same_fx.value is False


def test_an_option_of_another_mode_stays_behind_with_the_reason() -> None:
    theirs = Nested()
    translation = translated(with_value("debug.aclgraph.clone_input", False, "max-autotune"), theirs)
    assert theirs.debug.aclgraph.clone_input.value == "1"
    assert translation.warnings == {
        "debug.aclgraph.clone_input": "it belongs to mode reduce-overhead and npugraph_ex"
    }


def test_all_options_without_counterpart_are_named_at_once() -> None:
    config = in_mode("reduce-overhead")
    config.debug.aclgraph.enable_output_clone = True
    config.experimental_config.frozen_parameter = True
    config.debug.graph_dump.type = "pbtxt"
    found = problems(config, Nested())
    assert len(found) == 3
    assert any("config.debug.aclgraph.enable_output_clone = True has no counterpart" in one for one in found)
    assert any(
        "config.experimental_config.frozen_parameter = True has no counterpart" in one for one in found
    )
    assert any("set config.debug.graph_dump.type = 'py'" in one for one in found)


def test_an_option_without_counterpart_names_the_nearest() -> None:
    (problem,) = problems(
        with_value("debug.aclgraph.clone_input", False, "npugraph_ex"),
        _without(Flat(clone_inputs=Plain(True)), "clone_input"),
    )
    assert "the nearest is clone_inputs" in problem


def _without(theirs: Any, name: str) -> Any:
    del theirs.__dict__[name]
    theirs._fixed_attrs.remove(name)
    return theirs


def test_a_section_that_takes_any_name_is_not_believed() -> None:
    theirs = Nested()
    del theirs.aclgraph_config.__dict__["use_custom_pool"]
    (problem,) = problems(with_value("aclgraph_config.use_custom_pool", (0, 7), "reduce-overhead"), theirs)
    assert "config.aclgraph_config.use_custom_pool = (0, 7) has no counterpart" in problem
    assert not hasattr(theirs.aclgraph_config, "use_custom_pool")


def test_a_value_that_the_installed_version_refuses_is_an_error() -> None:
    theirs = Nested(clone_input=Held(True, (True,)))
    (problem,) = problems(with_value("debug.aclgraph.clone_input", False, "reduce-overhead"), theirs)
    assert problem == (
        "config.debug.aclgraph.clone_input = False is refused by the installed TorchAir's "
        "debug.aclgraph.clone_input (False is not among (True,))"
    )


def test_a_value_that_is_taken_and_dropped_is_an_error() -> None:
    theirs = Nested(clone_input=Held(True, deaf=True))
    (problem,) = problems(with_value("debug.aclgraph.clone_input", False, "reduce-overhead"), theirs)
    assert "it keeps another value" in problem


def test_our_default_replaces_another_one_of_theirs() -> None:
    theirs = Nested(static_capture_size_limit=Held(32))
    translation = translated(in_mode("reduce-overhead"), theirs)
    assert theirs.debug.aclgraph.static_capture_size_limit.value == "64"
    assert "debug.aclgraph.static_capture_size_limit" in translation.names


def test_a_default_that_they_refuse_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    theirs = Nested(clone_input=Held(False, (False,)))
    translation = translated(in_mode("reduce-overhead"), theirs)
    assert "refuses our default True" in translation.warnings["debug.aclgraph.clone_input"]
    assert "config.debug.aclgraph.clone_input: the installed TorchAir refuses" in caplog.text


def test_a_default_without_counterpart_needs_none() -> None:
    theirs = _without(Flat(), "clone_input")
    assert "clone_input" not in translated(in_mode("npugraph_ex"), theirs).names


def test_what_torchair_keeps_nothing_of_is_refused_only_where_it_is_to_be_kept() -> None:
    config = with_value("debug.run_eagerly", True, "max-autotune")
    (problem,) = problems(config, Nested())
    assert 'engine="graph" does it' in problem
    theirs = Nested()
    translated(config, theirs, kept=False)
    assert theirs.debug.run_eagerly.value == "1"


def test_what_torchair_does_not_do_is_refused_even_where_nothing_is_kept() -> None:
    config = with_value("debug.graph_dump.type", "txt", "reduce-overhead")
    assert problems(config, Nested(), kept=False) == problems(config, Nested())


def test_paths_that_torchair_writes_into_its_code_are_told(tmp_path: Path) -> None:
    config = in_mode("reduce-overhead")
    config.dump_config.enable_dump = True
    config.dump_config.dump_path = str(tmp_path)
    assert translated(config, Nested()).paths == {"aclgraph.dumpPath": f"{tmp_path}/rank0"}


@pytest.mark.parametrize(
    ("mode", "theirs"),
    [("npugraph_ex", Nested()), ("reduce-overhead", Flat()), ("reduce-overhead", Loose())],
)
def test_the_wrong_kind_of_object_is_refused(mode: Any, theirs: Any) -> None:
    with pytest.raises(TypeError, match=rf"mode {mode} needs an object of \w+\.CompilerConfig"):
        translated(in_mode(mode), theirs)


def test_the_configuration_itself_is_not_changed() -> None:
    config = with_value("npugraphex_config.use_graph_pool", (0, 7), "npugraph_ex")
    before = config.canonical()
    translated(config, Flat())
    assert config.canonical() == before


def test_the_error_is_one_of_the_configuration_and_crosses_processes() -> None:
    config = with_value("npugraphex_config.force_recapture", True, "reduce-overhead")
    with pytest.raises(BadConfig) as caught:
        translated(config, Nested())
    revived = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - bytes made here
    assert revived.problems == caught.value.problems
    assert revived.mode == "reduce-overhead"


@pytest.mark.parametrize(
    ("held", "ours", "same"),
    [
        ("1", True, True),
        ("0", True, False),
        (False, False, True),
        (None, False, False),
        ("64", 64, True),
        (65, 65, True),
        (True, 1, False),
        ("py", "py", True),
        (None, None, True),
        ("None", None, False),
        ([1, 2], [1, 2], True),
        ((1, 2), [1, 2], False),
    ],
)
def test_what_they_hold_is_compared_in_their_terms(held: Any, ours: Any, same: Any) -> None:
    assert holds(Loose(option=held), "option", ours) is same


def test_a_directory_may_be_kept_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert holds(Loose(path=str(tmp_path.resolve() / "dumps")), "path", "dumps")


def test_options_are_found_in_sections_and_in_classes() -> None:
    class Declared:
        RULES = ("a",)
        limit: int = 3

        @staticmethod
        def helper() -> None:
            return None

    theirs = Loose(mode=Held("a"), part=Declared(), hook=a_pass)
    assert their_options(theirs) == {"mode": "a", "part.limit": 3, "hook": a_pass}
    assert has(theirs, "part.limit")
    assert not has(theirs, "part.deeper.limit")
    assert put(theirs, "part.limit", 4) == ""
    assert their_options(theirs)["part.limit"] == 4


def test_the_tables_speak_of_options_that_there_are() -> None:
    known = {name for name, _, _ in options(CompilerConfig())}
    flat = {
        name.removeprefix("npugraphex_config.") for name in known if name.startswith("npugraphex_config.")
    }
    assert set(FLAT) | set(OURS_ALONE) <= known
    assert set(FLAT.values()) | INVERTED <= flat
    assert {name for refusal in REFUSED for name in refusal.values} <= known | flat


@pytest.mark.parametrize("name", [name for name, _, _ in options(CompilerConfig()) if name != "mode"])
def test_every_value_that_is_handed_over_counts_in_the_request_key(name: str, tmp_path: Path) -> None:
    option = declared(name)
    for value in samples(option, tmp_path):
        assert option.canonical(value) != option.canonical(option.default)


def test_the_version_of_torchair_counts_in_the_request_key() -> None:
    # What a version's defaults are is implied by it.
    assert "torch_npu" in environment()


def test_translating_imports_neither_torch_nor_torchair() -> None:
    code = (
        "import sys; import warmrank.worker.engines.torchair_options; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'torchair', 'npugraph_ex', 'sympy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
