"""Our configuration on objects of TorchAir that lack or refuse something; tests/npu has the real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.options import Flat, Held, Loose, Nested, declared, samples, with_value
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.options import options
from warmrank.worker.engines.torchair_options import (
    translated,
)
from warmrank.worker.errors import NoCounterpart


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


def test_both_names_must_not_contradict_each_other() -> None:
    config = in_mode("npugraph_ex")
    config.debug.aclgraph.static_capture_size_limit = 3
    config.npugraphex_config.capture_limit = 4
    (problem,) = problems(config, Flat())
    assert problem == (
        "config.debug.aclgraph.static_capture_size_limit = 3 and config.npugraphex_config.capture_limit = 4 "
        "contradict each other, for both are TorchAir's capture_limit; set one of them"
    )


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


def test_a_value_that_the_installed_version_refuses_is_an_error() -> None:
    theirs = Nested(clone_input=Held(True, (True,)))
    (problem,) = problems(with_value("debug.aclgraph.clone_input", False, "reduce-overhead"), theirs)
    assert problem == (
        "config.debug.aclgraph.clone_input = False is refused by the installed TorchAir's "
        "debug.aclgraph.clone_input (False is not among (True,))"
    )


def test_a_default_that_they_refuse_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    theirs = Nested(clone_input=Held(False, (False,)))
    translation = translated(in_mode("reduce-overhead"), theirs)
    assert "refuses our default True" in translation.warnings["debug.aclgraph.clone_input"]
    assert "config.debug.aclgraph.clone_input: the installed TorchAir refuses" in caplog.text


def test_what_torchair_keeps_nothing_of_is_refused_only_where_it_is_to_be_kept() -> None:
    config = with_value("debug.run_eagerly", True, "max-autotune")
    (problem,) = problems(config, Nested())
    assert 'engine="graph" does it' in problem
    theirs = Nested()
    translated(config, theirs, kept=False)
    assert theirs.debug.run_eagerly.value == "1"


@pytest.mark.parametrize(
    ("mode", "theirs"),
    [("npugraph_ex", Nested()), ("reduce-overhead", Flat()), ("reduce-overhead", Loose())],
)
def test_the_wrong_kind_of_object_is_refused(mode: Any, theirs: Any) -> None:
    with pytest.raises(TypeError, match=rf"mode {mode} needs an object of \w+\.CompilerConfig"):
        translated(in_mode(mode), theirs)


@pytest.mark.parametrize("name", [name for name, _, _ in options(CompilerConfig()) if name != "mode"])
def test_every_value_that_is_handed_over_counts_in_the_request_key(name: str, tmp_path: Path) -> None:
    option = declared(name)
    for value in samples(option, tmp_path):
        assert option.canonical(value) != option.canonical(option.default)


def test_a_section_that_takes_any_name_is_not_believed() -> None:
    theirs = Nested()
    del theirs.aclgraph_config.__dict__["use_custom_pool"]
    (problem,) = problems(with_value("aclgraph_config.use_custom_pool", (0, 7), "reduce-overhead"), theirs)
    assert "config.aclgraph_config.use_custom_pool = (0, 7) has no counterpart" in problem
    assert not hasattr(theirs.aclgraph_config, "use_custom_pool")


def test_our_default_replaces_another_one_of_theirs() -> None:
    theirs = Nested(static_capture_size_limit=Held(32))
    translation = translated(in_mode("reduce-overhead"), theirs)
    assert theirs.debug.aclgraph.static_capture_size_limit.value == "64"
    assert "debug.aclgraph.static_capture_size_limit" in translation.names
