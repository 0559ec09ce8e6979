"""`CompilerConfig`: names, checks, copies, comparison and canonical form."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmrank.inference import get_backend
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.options import (
    Choice,
    Directory,
    ExistingDirectory,
    ExistingFile,
    Flag,
    Function,
    IntList,
    IntRange,
    NamedChoice,
    Number,
    PlainMapping,
    PoolHandle,
    Text,
)
from warmrank.worker.configs.section import options
from warmrank.worker.errors import BadConfig, UnknownOption


def double(graph: Any) -> Any:
    return graph


def other(graph: Any) -> None:
    return None


def assign(config: Any, dotted: Any, value: Any) -> None:
    *parts, last = dotted.split(".")
    for part in parts:
        config = getattr(config, part)
    setattr(config, last, value)


ALLOWED = [
    ("mode", "max-autotune"),
    ("mode", "npugraph_ex"),
    ("debug.run_eagerly", True),
    ("debug.deadlock_check", True),
    ("debug.graph_dump.type", "pbtxt"),
    ("debug.graph_dump.path", "dumps"),
    ("debug.data_dump.type", "npy"),
    ("debug.data_dump.filter", double),
    ("debug.fx_summary.type", "csv"),
    ("debug.fx_summary.skip_compile", False),
    ("debug.aclgraph.clone_input", False),
    ("debug.aclgraph.enable_output_clone", True),
    ("debug.aclgraph.static_capture_size_limit", 1),
    ("debug.aclgraph.disable_mempool_reuse_in_same_fx", True),
    ("debug.aclgraph.disable_reinplace_inplaceable_ops_pass", True),
    ("debug.aclgraph.disable_reinplace_input_mutated_ops_pass", True),
    ("debug.aclgraph.remove_cat_ops", False),
    ("aclgraph_config.use_custom_pool", (0, 3)),
    ("inference_config.dynamic_gears_merge_policy", "product"),
    ("experimental_config.frozen_parameter", True),
    ("experimental_config.keep_inference_input_mutations", False),
    ("experimental_config.static_model_ops_lower_limit", -1),
    ("experimental_config.topology_sorting_strategy", "StableRDFS"),
    ("experimental_config.aclgraph._aclnn_static_shape_kernel", True),
    ("experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range", [1, 2]),
    ("experimental_config.aclgraph._super_kernel_optimize_options", {"a": "b"}),
    ("export.export_mode", True),
    ("export.export_name", "graph"),
    ("export.experimental.enable_lite_export", True),
    ("dump_config.enable_dump", True),
    ("dump_config.dump_mode", "input"),
    ("dump_config.dump_step", "0|1|2-5|6"),
    ("dump_config.dump_layer", "Mul_1 Add1"),
    ("ge_config.oo_level", "O1"),
    ("ge_config.oo_constant_folding", False),
    ("ge_config.aicore_num", 24),
    ("ge_config.export_compile_stat", "0"),
    ("aoe_config.aoe_mode", "2"),
    ("npugraphex_config.capture_limit", 8),
    ("npugraphex_config.force_eager", True),
    ("npugraphex_config.force_recapture", True),
    ("npugraphex_config.capture_error_mode", "relaxed"),
    ("npugraphex_config.disable_static_kernel_compile_cache", True),
    ("npugraphex_config.unsafe_skip_npugraph_capture_validation", True),
    ("npugraphex_config.record_statistics_debug_info", True),
    ("npugraphex_config.deadlock_check", True),
    ("npugraphex_config._vllm_aclnn_static_kernel_sym_range", (1, 2)),
    ("post_grad_custom_pre_pass", double),
    ("post_grad_custom_post_pass", double),
]

REFUSED = [
    ("mode", "reduce_overhead", "'max-autotune', 'reduce-overhead', 'npugraph_ex'"),
    ("mode", None, "'reduce-overhead'"),
    ("debug.run_eagerly", 1, "True, False"),
    ("debug.run_eagerly", "True", "True, False"),
    ("debug.graph_dump.type", "svg", "'txt', 'pbtxt', 'py'"),
    ("debug.graph_dump.path", 3, "the path of a directory, as a str"),
    ("debug.graph_dump.path", "", "the path of a directory, as a str"),
    ("debug.data_dump.filter", "Add", "a callable"),
    ("npugraphex_config.capture_error_mode", "strict", "'global', 'thread_local', 'relaxed'"),
    ("debug.aclgraph.clone_input", None, "True, False"),
    ("debug.aclgraph.static_capture_size_limit", 0, "an int from 1 to"),
    ("debug.aclgraph.static_capture_size_limit", True, "an int from 1 to"),
    ("debug.aclgraph.static_capture_size_limit", 2**63, "an int from 1 to"),
    ("aclgraph_config.use_custom_pool", [0, 3], "graph_pool_handle()"),
    ("inference_config.dynamic_gears_merge_policy", "sum", "'zip', 'product'"),
    ("experimental_config.static_model_ops_lower_limit", -2, "an int from -1 to"),
    ("experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range", [1, True], "ints"),
    ("experimental_config.aclgraph._super_kernel_optimize_options", {1: 2}, "str keys"),
    ("experimental_config.aclgraph._super_kernel_optimize_options", {"a": double}, "a dict"),
    ("dump_config.dump_step", "1-", "0|1|2-5|6"),
    ("dump_config.dump_path", "no/such/directory", "existing directory"),
    ("dump_config.dump_config_path", "pyproject.toml", "existing .json file"),
    ("fusion_config.fusion_switch_file", "no/such/file", "existing file"),
    ("ge_config.aicore_num", 1.5, "an int or a str"),
    ("ge_config.oo_constant_folding", 0, "True, False"),
    ("post_grad_custom_pre_pass", "double", "a callable"),
]


@pytest.mark.parametrize(("dotted", "value"), ALLOWED)
def test_allowed_value_is_kept_as_given(dotted: Any, value: Any) -> None:
    config = CompilerConfig()
    assign(config, dotted, value)
    kept = {name: present for name, _, present in options(config)}[dotted]
    assert kept == value
    assert type(kept) is type(value)


@pytest.mark.parametrize(("dotted", "value"), ALLOWED)
def test_allowed_value_changes_the_configuration_and_its_canonical_form(dotted: Any, value: Any) -> None:
    config = CompilerConfig()
    assign(config, dotted, value)
    assert config != CompilerConfig()
    assert config.canonical() != CompilerConfig().canonical()


@pytest.mark.parametrize(("dotted", "value", "allowed"), REFUSED)
def test_wrong_value_is_refused_with_the_allowed_ones(dotted: Any, value: Any, allowed: Any) -> None:
    config = CompilerConfig()
    with pytest.raises(BadConfig) as caught:
        assign(config, dotted, value)
    assert f"config.{dotted} = " in str(caught.value)
    assert allowed in str(caught.value)
    assert config == CompilerConfig()


def test_every_default_may_be_assigned() -> None:
    config = CompilerConfig()
    for name, option, _ in options(CompilerConfig()):
        assign(config, name, option.default)
    assert config == CompilerConfig()


def test_default_mode_is_the_one_that_works() -> None:
    assert CompilerConfig().mode == "reduce-overhead"


def test_unknown_name_is_refused_with_the_nearest() -> None:
    config = CompilerConfig()
    with pytest.raises(UnknownOption, match=r"did you mean config\.debug\.aclgraph\.clone_input\?") as caught:
        config.debug.aclgraph.clone_inputs = False
    assert caught.value.nearest == "debug.aclgraph.clone_input"


def test_unknown_name_is_found_in_a_deeper_section() -> None:
    config = CompilerConfig()
    with pytest.raises(UnknownOption, match=r"did you mean config\.debug\.aclgraph\.enable_output_clone\?"):
        config.enable_output_clone = True


def test_unknown_name_cannot_be_read() -> None:
    with pytest.raises(UnknownOption, match=r"did you mean config\.mode\?"):
        _ = CompilerConfig().modes
    assert not hasattr(CompilerConfig(), "modes")


def test_section_cannot_be_replaced_by_a_value() -> None:
    with pytest.raises(BadConfig, match=r"config\.debug holds options \(graph_dump, "):
        assign(CompilerConfig(), "debug", True)


def test_section_can_be_taken_from_another_configuration() -> None:
    source, target = CompilerConfig(), CompilerConfig()
    source.debug.aclgraph.clone_input = False
    target.debug = source.debug
    source.debug.aclgraph.clone_input = True
    assert target.debug.aclgraph.clone_input is False


def through_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - bytes made here


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, through_pickle])
def test_copy_is_equal_and_independent(copied: Any) -> None:
    config = CompilerConfig()
    config.debug.aclgraph.clone_input = False
    config.post_grad_custom_pre_pass = double
    twin = copied(config)
    assert twin == config
    twin.debug.aclgraph.static_capture_size_limit = 3
    assert config.debug.aclgraph.static_capture_size_limit == 64


def test_configurations_share_nothing() -> None:
    one, two = CompilerConfig(), CompilerConfig()
    one.debug.run_eagerly = True
    assert two.debug.run_eagerly is False


def test_caller_cannot_change_a_mapping_afterwards() -> None:
    config = CompilerConfig()
    given: dict[str, Any] = {"a": 1}
    config.npugraphex_config.super_kernel_optimize_options = given
    given["b"] = object
    assert config.npugraphex_config.super_kernel_optimize_options == {"a": 1}


def test_configuration_is_not_equal_to_anything_else() -> None:
    assert CompilerConfig() != CompilerConfig().debug
    assert CompilerConfig() != "reduce-overhead"


def test_configuration_is_not_hashable_because_it_can_change() -> None:
    with pytest.raises(TypeError):
        hash(CompilerConfig())


def test_repr_shows_what_differs_from_the_default() -> None:
    config = CompilerConfig()
    config.debug.run_eagerly = True
    assert repr(config) == "CompilerConfig(debug.run_eagerly=True)"


def test_canonical_form_names_every_option_in_sorted_order() -> None:
    canonical = CompilerConfig().canonical()
    assert list(canonical) == sorted(canonical)
    assert len(canonical) == len(list(options(CompilerConfig())))
    assert canonical["mode"] == '"reduce-overhead"'
    assert canonical["debug.aclgraph.clone_input"] == "true"
    assert canonical["debug.aclgraph.static_capture_size_limit"] == "64"


def test_canonical_form_ignores_the_order_of_dict_literals() -> None:
    one, two = CompilerConfig(), CompilerConfig()
    one.experimental_config.aclgraph._super_kernel_optimize_options = {"a": 1, "b": {"c": 1, "d": 2}}
    two.experimental_config.aclgraph._super_kernel_optimize_options = {"b": {"d": 2, "c": 1}, "a": 1}
    assert one.canonical() == two.canonical()


def test_canonical_form_tells_a_text_from_nothing() -> None:
    config = CompilerConfig()
    config.export.export_name = "null"
    assert config.canonical()["export.export_name"] != CompilerConfig().canonical()["export.export_name"]


def test_canonical_form_does_not_hold_the_handle_of_a_pool() -> None:
    one, two = CompilerConfig(), CompilerConfig()
    one.aclgraph_config.use_custom_pool = (0, 1)
    two.aclgraph_config.use_custom_pool = (0, 2)
    assert one.canonical() == two.canonical()


def test_canonical_form_tells_functions_apart() -> None:
    one, two = CompilerConfig(), CompilerConfig()
    one.post_grad_custom_pre_pass = double
    two.post_grad_custom_pre_pass = other
    assert one.canonical() != two.canonical()


def test_canonical_form_of_a_function_without_source_holds_no_address() -> None:
    config = CompilerConfig()
    config.post_grad_custom_pre_pass = len
    named = config.canonical()["post_grad_custom_pre_pass"]
    assert named.startswith('"builtins:len#')
    assert "0x" not in named


def test_canonical_form_does_not_hold_where_dumps_go(tmp_path: Path) -> None:
    one, two = CompilerConfig(), CompilerConfig()
    one.debug.graph_dump.path, two.debug.graph_dump.path = "here", "there"
    one.dump_config.dump_path = str(tmp_path)
    two.dump_config.dump_path = str(tmp_path.parent)
    assert one.canonical() == two.canonical() != CompilerConfig().canonical()


def test_canonical_form_follows_the_content_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "switches.cfg"
    file.write_text("a: on")
    config = CompilerConfig()
    config.fusion_config.fusion_switch_file = str(file)
    before = config.canonical()
    file.write_text("a: off")
    assert config.canonical() != before


def test_errors_survive_pickling() -> None:
    with pytest.raises(UnknownOption) as caught:
        CompilerConfig().mod = 1
    revived = through_pickle(caught.value)
    assert str(revived) == str(caught.value)
    assert revived.nearest == "mode"


def test_import_of_the_configuration_does_not_import_torch() -> None:
    code = (
        "import sys; from warmrank.worker.configs import npugraphex, options, section; "
        "from warmrank.worker.configs.compiler_config import CompilerConfig; CompilerConfig(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def values(option: Any) -> st.SearchStrategy[Any]:
    """Allowed values of an option, and its default."""
    found = {
        Choice: lambda: st.sampled_from(option.choices),
        NamedChoice: lambda: st.sampled_from(option.choices),
        Flag: st.booleans,
        IntRange: lambda: st.integers(option.minimum, option.maximum),
        IntList: lambda: st.lists(st.integers(), max_size=3),
        Text: lambda: st.from_regex(option.form, fullmatch=True) if option.form else st.text(),
        Number: lambda: st.integers() | st.text(),
        PlainMapping: lambda: st.dictionaries(st.text(), st.integers() | st.none(), max_size=3),
        PoolHandle: lambda: st.tuples(st.integers(), st.integers()),
        Function: lambda: st.sampled_from([double, other]),
        Directory: lambda: st.text("abc/", min_size=1),
        ExistingDirectory: lambda: st.just("/"),
        ExistingFile: lambda: st.just(option.default),
    }[type(option)]
    return found() | st.just(option.default)


@given(st.data())
def test_every_configuration_survives_copies_and_keeps_its_canonical_form(data: st.DataObject) -> None:
    config = CompilerConfig()
    declared = list(options(config))
    for name, option, _ in data.draw(st.lists(st.sampled_from(declared), max_size=5)):
        assign(config, name, data.draw(values(option)))
    for twin in (copy.copy(config), copy.deepcopy(config), through_pickle(config)):
        assert twin == config
        assert twin.canonical() == config.canonical()
    assert all(isinstance(text, str) for text in config.canonical().values())


@given(st.data())
def test_a_value_of_another_kind_never_changes_a_configuration(data: st.DataObject) -> None:
    config = CompilerConfig()
    name, option, _ = data.draw(st.sampled_from(list(options(config))))
    wrong = data.draw(st.sampled_from([object(), 1.5, b"bytes", {1, 2}]))
    with pytest.raises(BadConfig):
        assign(config, name, wrong)
    assert config == CompilerConfig()
    assert option.allowed()


def test_options_are_no_arguments() -> None:
    make: Any = CompilerConfig
    with pytest.raises(TypeError, match=r"options are attributes: make it, then set config\.mode"):
        make(mode="max-autotune")
    with pytest.raises(TypeError, match="CompilerConfig\\(\\) takes no arguments"):
        make("max-autotune")


def test_options_are_not_deleted() -> None:
    config = CompilerConfig()
    with pytest.raises(
        BadConfig, match=r"config.mode cannot be deleted, only set; its default is 'reduce-overhead'"
    ):
        del config.mode
    with pytest.raises(BadConfig, match=r"config.debug cannot be deleted"):
        del config.debug
    with pytest.raises(UnknownOption, match=r"did you mean config.mode"):
        del config.mod


def test_get_npu_backend_names_the_nearest_parameter() -> None:
    with pytest.raises(
        BadConfig, match="get_npu_backend has no parameter 'compilerconfig'; did you mean 'compiler_config'"
    ):
        get_backend(compilerconfig=CompilerConfig())
