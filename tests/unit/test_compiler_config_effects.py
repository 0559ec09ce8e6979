"""What options of `CompilerConfig` do on which device: obeyed, without effect and said so, or refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from tests.support import option_table
from tests.support.small_models import Plain
from worker.configs import compiler_config
from worker.configs.compiler_config import CompilerConfig
from worker.configs.effects import MODES, Scope
from worker.configs.section import options
from worker.errors import NotYet
from worker.inference import cache_compile


@pytest.fixture(autouse=True)
def _nothing_said_yet() -> None:
    compiler_config._say_once.cache_clear()
    compiler_config._say_eager_once.cache_clear()


def with_value(dotted: Any, value: Any, mode: Any = "reduce-overhead") -> CompilerConfig:
    config = CompilerConfig()
    config.mode = mode
    *parts, last = dotted.split(".")
    section: Any = config
    for part in parts:
        section = getattr(section, part)
    setattr(section, last, value)
    return config


@pytest.mark.parametrize("device_kind", ["cpu", "cuda", "npu"])
@pytest.mark.parametrize(
    ("dotted", "value"),
    [
        ("debug.run_eagerly", True),
        ("debug.aclgraph.clone_input", False),
        ("debug.aclgraph.enable_output_clone", True),
        ("debug.aclgraph.static_capture_size_limit", 2),
        ("debug.aclgraph.disable_mempool_reuse_in_same_fx", True),
        ("debug.graph_dump.type", "py"),
        ("aclgraph_config.use_custom_pool", (0, 1)),
        ("inference_config.dynamic_gears_merge_policy", "product"),
        ("experimental_config.frozen_parameter", True),
        ("npugraphex_config.force_recapture", True),
        ("npugraphex_config.force_eager", True),
        ("post_grad_custom_pre_pass", print),
    ],
)
def test_option_that_takes_effect_is_silent(
    dotted: Any, value: Any, device_kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with_value(dotted, value).check(device_kind)
    assert caplog.messages == []


@pytest.mark.parametrize("device_kind", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("dotted", "value"),
    [
        ("debug.deadlock_check", True),
        ("debug.graph_dump.type", "pbtxt"),
        ("experimental_config.npu_fx_pass", True),
        ("experimental_config.aclgraph._super_kernel_optimize", True),
        ("dump_config.enable_dump", True),
    ],
)
def test_option_of_ascend_says_once_that_it_has_no_effect(
    dotted: Any, value: Any, device_kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with_value(dotted, value).check(device_kind)
    place = f"on device {device_kind} in mode reduce-overhead"
    assert caplog.messages == [f"config.{dotted} has no effect {place}: it speaks to the Ascend toolchain"]


def test_option_without_effect_speaks_again_on_another_device(caplog: pytest.LogCaptureFixture) -> None:
    config = with_value("experimental_config.npu_fx_pass", True)
    config.check("cpu")
    config.check("cuda")
    assert [message.split()[6] for message in caplog.messages] == ["cpu", "cuda"]


@pytest.mark.parametrize(
    ("dotted", "value", "mode", "belongs"),
    [
        ("ge_config.oo_level", "O1", "reduce-overhead", "max-autotune"),
        ("debug.aclgraph.clone_input", False, "max-autotune", "reduce-overhead"),
        ("npugraphex_config.clone_input", False, "reduce-overhead", "npugraph_ex"),
        ("npugraphex_config.force_recapture", True, "max-autotune", "reduce-overhead and npugraph_ex"),
    ],
)
@pytest.mark.parametrize("device_kind", ["cpu", "npu"])
def test_option_of_another_mode_says_so(
    dotted: Any, value: Any, mode: Any, belongs: Any, device_kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with_value(dotted, value, mode).check(device_kind)
    assert caplog.messages == [
        f"config.{dotted} has no effect on device {device_kind} in mode {mode}: it belongs to mode {belongs}"
    ]


def test_option_that_changes_nothing_anywhere_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with_value("experimental_config.keep_inference_input_mutations", False).check("npu")
    assert "in-place changes of inputs always stay inside the graph" in caplog.text


def test_options_of_ascend_are_refused_on_npu_all_at_once() -> None:
    config = with_value("debug.deadlock_check", True)
    config.experimental_config.npu_fx_pass = True
    with pytest.raises(NotYet) as caught:
        config.check("npu")
    assert caught.value.feature == (
        "config.debug.deadlock_check = True, config.experimental_config.npu_fx_pass = True on npu"
    )
    assert "config.debug.deadlock_check = False" in caught.value.instead


def test_defaults_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("cpu", "cuda", "npu"):
        for mode in MODES:
            with_value("mode", mode).check(kind)
    assert caplog.messages == []


@pytest.mark.parametrize("option", [option for _, option, _ in options(CompilerConfig())])
def test_every_option_that_does_nothing_somewhere_says_why(option: Any) -> None:
    assert option.effect.modes
    assert set(option.effect.modes) <= set(MODES)
    assert bool(option.effect.why) == (option.effect.scope is not Scope.HERE)


@pytest.mark.parametrize(
    ("dotted", "value", "eager"),
    [
        ("debug.run_eagerly", True, True),
        ("npugraphex_config.force_eager", True, True),
        ("debug.data_dump.type", "npy", True),
        ("debug.fx_summary.type", "csv", True),
        ("debug.fx_summary.skip_compile", False, False),
        ("debug.graph_dump.type", "py", False),
    ],
)
def test_what_makes_a_graph_run_eagerly(dotted: Any, value: Any, eager: Any) -> None:
    config = with_value(dotted, value, "max-autotune")
    assert config.runs_eagerly() is eager
    assert config.engine_mode() == ("reduce-overhead" if eager else "max-autotune")


def test_a_dump_warns_that_the_graph_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    with_value("debug.data_dump.type", "npy").check("cpu")
    assert "make the graph run eagerly" in caplog.text


def test_a_summary_may_leave_the_graph_compiled(caplog: pytest.LogCaptureFixture) -> None:
    config = with_value("debug.fx_summary.type", "csv")
    config.debug.fx_summary.skip_compile = False
    config.check("cpu")
    assert not config.runs_eagerly()
    assert caplog.messages == []


def test_a_cached_function_says_it_at_its_first_call(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = Plain()
    config = with_value("experimental_config.npu_fx_pass", True)
    cached = cache_compile(model.affine, config=config, cache_dir=tmp_path)
    # The module may move to its device after this, so nothing can be said yet.
    assert caplog.messages == []
    caplog.set_level(logging.WARNING)
    with torch.no_grad():
        cached(torch.ones(2, 4))
        cached(torch.ones(3, 4))
    said = [message for message in caplog.messages if "npu_fx_pass" in message]
    assert len(said) == 1


def test_mode_of_engine_torchair_is_refused_when_it_is_asked_for(tmp_path: Any) -> None:
    with pytest.raises(NotYet, match="engine torchair"):
        cache_compile(Plain().affine, config=with_value("mode", "npugraph_ex"), cache_dir=tmp_path)


def test_the_page_holds_every_option_as_it_is_declared() -> None:
    stale = f"{option_table.PAGE.name} is stale: run python -m tests.support.option_table"
    assert option_table.written() == option_table.table().strip(), stale
