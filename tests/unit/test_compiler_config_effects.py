"""What options of `CompilerConfig` do on which device: obeyed, without effect and said so, or refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from tests.support import option_table
from tests.support.option_values import with_value
from tests.support.small_models import Plain
from warmrank.inference import cache_compile
from warmrank.worker.configs import compiler_config
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.section import MODES, Scope, options
from warmrank.worker.errors import BadConfig


@pytest.fixture(autouse=True)
def _nothing_said_yet() -> None:
    compiler_config._say_once.cache_clear()
    compiler_config._say_eager_once.cache_clear()


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
    with_value(dotted, value, "reduce-overhead").check(device_kind)
    assert caplog.messages == []


@pytest.mark.parametrize("device_kind", ["cpu", "cuda", "npu"])
@pytest.mark.parametrize(
    ("dotted", "value"),
    [
        ("debug.graph_dump.type", "pbtxt"),
        ("experimental_config.npu_fx_pass", True),
        ("experimental_config.aclgraph._super_kernel_optimize", True),
        ("experimental_config.pattern_fusion_pass", False),
        ("dump_config.enable_dump", True),
    ],
)
def test_option_of_ascend_says_once_that_it_has_no_effect(
    dotted: Any, value: Any, device_kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with_value(dotted, value, "reduce-overhead").check(device_kind)
    place = f"on device {device_kind} in mode reduce-overhead"
    assert caplog.messages == [f"config.{dotted} has no effect {place}: it belongs to engine torchair"]


def test_option_without_effect_speaks_again_on_another_device(caplog: pytest.LogCaptureFixture) -> None:
    config = with_value("experimental_config.npu_fx_pass", True, "reduce-overhead")
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
    with_value("experimental_config.keep_inference_input_mutations", False, "reduce-overhead").check("npu")
    assert "in-place changes of inputs always stay inside the graph" in caplog.text


@pytest.mark.parametrize(
    ("dotted", "value", "mode"),
    [
        ("debug.graph_dump.type", "pbtxt", "max-autotune"),
        ("debug.aclgraph.remove_cat_ops", False, "reduce-overhead"),
        ("debug.aclgraph.clone_input", False, "npugraph_ex"),
        ("debug.deadlock_check", True, "npugraph_ex"),
        ("experimental_config.npu_fx_pass", True, "reduce-overhead"),
        ("experimental_config.frozen_parameter", True, "max-autotune"),
        ("experimental_config.remove_noop_ops", False, "max-autotune"),
        ("ge_config.oo_level", "O1", "max-autotune"),
        ("npugraphex_config.capture_error_mode", "relaxed", "npugraph_ex"),
    ],
)
def test_option_that_engine_torchair_takes_is_silent(
    dotted: Any, value: Any, mode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with_value(dotted, value, mode).check("npu", engine="torchair")
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("dotted", "value", "mode", "why"),
    [
        ("debug.deadlock_check", True, "reduce-overhead", "it belongs to mode npugraph_ex"),
        (
            "debug.aclgraph.remove_cat_ops",
            False,
            "max-autotune",
            "it belongs to mode reduce-overhead and npugraph_ex",
        ),
        ("npugraphex_config.clone_input", False, "reduce-overhead", "it belongs to mode npugraph_ex"),
        (
            "experimental_config.aot_config_enable_joint_graph",
            True,
            "max-autotune",
            "a cached function has no backward",
        ),
    ],
)
def test_option_that_engine_torchair_cannot_use_says_why(
    dotted: Any, value: Any, mode: Any, why: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with_value(dotted, value, mode).check("npu", engine="torchair")
    assert caplog.messages == [f"config.{dotted} has no effect on device npu in mode {mode}: {why}"]


def test_engine_torchair_has_no_eager_graph_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    config = with_value("debug.data_dump.type", "npy", "reduce-overhead")
    config.check("npu", engine="torchair")
    assert caplog.messages == []
    config.check("npu", engine="graph")
    assert "make the graph run eagerly" in caplog.text


def test_defaults_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    for kind in ("cpu", "cuda", "npu"):
        for mode in MODES:
            for engine in ("", "graph", "aoti", "torchair"):
                with_value("mode", mode, mode).check(kind, engine=engine)
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
    with_value("debug.data_dump.type", "npy", "reduce-overhead").check("cpu")
    assert "make the graph run eagerly" in caplog.text


def test_a_summary_may_leave_the_graph_compiled(caplog: pytest.LogCaptureFixture) -> None:
    config = with_value("debug.fx_summary.type", "csv", "reduce-overhead")
    config.debug.fx_summary.skip_compile = False
    config.check("cpu")
    assert not config.runs_eagerly()
    assert caplog.messages == []


def test_a_cached_function_says_it_at_its_first_call(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = Plain()
    config = with_value("experimental_config.npu_fx_pass", True, "reduce-overhead")
    cached = cache_compile(model.affine, config=config, cache_dir=tmp_path)
    # The module may move to its device after this, so nothing can be said yet.
    assert caplog.messages == []
    caplog.set_level(logging.WARNING)
    with torch.no_grad():
        cached(torch.ones(2, 4))
        cached(torch.ones(3, 4))
    said = [message for message in caplog.messages if "npu_fx_pass" in message]
    assert len(said) == 1


def test_mode_of_engine_torchair_is_refused_on_another_device(tmp_path: Any) -> None:
    cached = cache_compile(
        Plain().affine, config=with_value("mode", "npugraph_ex", "npugraph_ex"), cache_dir=tmp_path
    )
    with pytest.raises(BadConfig, match="mode npugraph_ex is TorchAir's own"):
        cached(torch.ones(2, 4))


def test_the_page_holds_every_option_as_it_is_declared() -> None:
    stale = f"{option_table.PAGE.name} is stale: run python -m tests.support.option_table"
    assert option_table.written() == option_table.table().strip(), stale
