"""`CompilerConfig`: names, checks, copies, canonical form, and the effect of options."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import options as option_table
from tests.support.options import declared, samples, with_value
from warmrank.worker.configs import compiler_config
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.options import Choice, Function, NamedChoice, options
from warmrank.worker.configs.sections import (
    Directory,
    ExistingDirectory,
    ExistingFile,
    Flag,
    IntList,
    IntRange,
    Number,
    PlainMapping,
    PoolHandle,
    Text,
)
from warmrank.worker.engines.torchair_code import Own, bound, portable, portable_signature, roles_in
from warmrank.worker.errors import BadConfig, NotPortable, UnknownOption


def double(graph: Any) -> Any:
    return graph


def other(graph: Any) -> None:
    return None


def assign(config: Any, dotted: Any, value: Any) -> None:
    *parts, last = dotted.split(".")
    for part in parts:
        config = getattr(config, part)
    setattr(config, last, value)


REFUSED = [
    ("mode", "reduce_overhead", "'max-autotune', 'reduce-overhead', 'npugraph_ex'"),
    ("mode", None, "'reduce-overhead'"),
    ("debug.run_eagerly", 2, "True, False"),
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
    ("ge_config.oo_constant_folding", 2, "True, False"),
    ("post_grad_custom_pre_pass", "double", "a callable"),
]


def test_flags_take_zero_and_one_as_torchair_does() -> None:
    config, same = CompilerConfig(), CompilerConfig()
    config.debug.run_eagerly, config.debug.aclgraph.clone_input = 1, 0  # type: ignore[assignment]
    same.debug.run_eagerly, same.debug.aclgraph.clone_input = True, False
    assert config.debug.run_eagerly is True
    assert config.canonical() == same.canonical()


@pytest.mark.parametrize(("dotted", "value", "allowed"), REFUSED)
def test_wrong_value_is_refused_with_the_allowed_ones(dotted: Any, value: Any, allowed: Any) -> None:
    config = CompilerConfig()
    with pytest.raises(BadConfig) as caught:
        assign(config, dotted, value)
    assert f"config.{dotted} = " in str(caught.value)
    assert allowed in str(caught.value)
    assert config == CompilerConfig()


def test_unknown_name_is_refused_with_the_nearest() -> None:
    config = CompilerConfig()
    with pytest.raises(UnknownOption, match=r"did you mean config\.debug\.aclgraph\.clone_input\?") as caught:
        config.debug.aclgraph.clone_inputs = False
    assert caught.value.nearest == "debug.aclgraph.clone_input"


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


@settings(max_examples=25)
@given(st.data())
def test_every_configuration_survives_copies_and_keeps_its_canonical_form(data: st.DataObject) -> None:
    config = CompilerConfig()
    declared = list(options(config))
    for name, option, _ in data.draw(st.lists(st.sampled_from(declared), max_size=5)):
        assign(config, name, data.draw(values(option)))
    through_pickle = pickle.loads(pickle.dumps(config))  # noqa: S301 - bytes made here
    for twin in (copy.copy(config), copy.deepcopy(config), through_pickle):
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
    assert option.words


@pytest.fixture(autouse=True)
def _nothing_said_yet() -> None:
    compiler_config._warn_once.cache_clear()


SUPER_KERNEL = "experimental_config.aclgraph._super_kernel_optimize_options"


@pytest.mark.parametrize(
    ("dotted", "one", "other", "same"),
    [
        (SUPER_KERNEL, {"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"d": 2, "c": 1}, "a": 1}, True),
        ("aclgraph_config.use_custom_pool", (0, 1), (0, 2), True),
        ("debug.graph_dump.path", "here", "there", True),
        ("dump_config.dump_path", "/", "/usr", True),
        ("export.export_name", "null", None, False),
        ("aclgraph_config.use_custom_pool", (0, 1), None, False),
        ("post_grad_custom_pre_pass", double, other, False),
    ],
)
def test_canonical_form_holds_what_changes_a_compile(dotted, one, other, same):
    forms = [with_value(dotted, value, "reduce-overhead").canonical() for value in (one, other)]
    assert (forms[0] == forms[1]) is same


TORCHAIR_ONLY = "it belongs to engine torchair"


@pytest.mark.parametrize("kind", ["cpu", "npu"])
@pytest.mark.parametrize(
    "case",
    [
        ("reduce-overhead", "", "debug.run_eagerly", True, ""),
        ("reduce-overhead", "", "debug.aclgraph.clone_input", False, ""),
        ("reduce-overhead", "", "debug.graph_dump.type", "py", ""),
        ("reduce-overhead", "", "npugraphex_config.force_recapture", True, ""),
        ("reduce-overhead", "", "post_grad_custom_pre_pass", print, ""),
        ("reduce-overhead", "", "debug.graph_dump.type", "pbtxt", TORCHAIR_ONLY),
        ("reduce-overhead", "", "experimental_config.npu_fx_pass", True, TORCHAIR_ONLY),
        ("reduce-overhead", "", "dump_config.enable_dump", True, TORCHAIR_ONLY),
        ("reduce-overhead", "", "ge_config.oo_level", "O1", "it belongs to mode max-autotune"),
        ("max-autotune", "", "debug.aclgraph.clone_input", False, "it belongs to mode reduce-overhead"),
        ("reduce-overhead", "", "npugraphex_config.clone_input", False, "it belongs to mode npugraph_ex"),
        ("max-autotune", "torchair", "debug.graph_dump.type", "pbtxt", ""),
        ("reduce-overhead", "torchair", "debug.aclgraph.remove_cat_ops", False, ""),
        ("npugraph_ex", "torchair", "debug.deadlock_check", True, ""),
        ("max-autotune", "torchair", "experimental_config.frozen_parameter", True, ""),
        ("reduce-overhead", "torchair", "debug.data_dump.type", "npy", ""),
        ("reduce-overhead", "torchair", "debug.deadlock_check", True, "it belongs to mode npugraph_ex"),
        (
            "max-autotune", "torchair", "experimental_config.aot_config_enable_joint_graph", True,
            "a cached function has no backward",
        ),
    ],
)  # fmt: skip
def test_option_without_effect_says_so_once(case, kind, caplog):
    mode, engine, dotted, value, why = case
    for _ in range(2):
        with_value(dotted, value, mode).check(kind, engine=engine)
    text = f"config.{dotted} = {value!r} has no effect on device {kind} in mode {mode}: {why}"
    assert caplog.messages == ([text] if why else [])


def test_the_page_holds_every_option_as_it_is_declared() -> None:
    stale = f"{option_table.PAGE.name} is stale: run python -m tests.support.options"
    assert option_table.written() == option_table.table().strip(), stale


PRIVATE = "/private/warmrank-torchair-x"
CODE = """
def forward(*args, node_info=[], is_capturing: bool = False):
    arg0_1, arg1_1, = args
    text = "pool=(0, 3), graph_7"
    all_reduce = torch.ops._c10d_functional.all_reduce.default(arg0_1, 'sum', '12');  arg0_1 = None
    other = torch.ops.aten.add.Tensor(all_reduce, 12)
    named = torch.ops.npu.write(other, '12')
    other = 'äöü graph_7', 'graph_7_mine'
    event = torch.npu.wait('shared', '{name}_start', device = device(type='npu', index=3))
    return (other,)

aclgraph_cache_info = AclGraphCacheInfo(
    pool={pool},
    fx_graph_name="{name}",
    tagged_event_names=['{name}_start', '{name}0', 'graph_99_other', 'shared'],
)
compile_configs["static_kernel_compile.compile_cache_dir"] = "/private/warmrank-torchair-x/M_dynamic/f"
acl_graph.load(aclgraph_cache_info)
"""


def code(pool: str = "None", name: str = "graph_7") -> str:
    return CODE.replace("{pool}", pool).replace("{name}", name)


def own(**parts: Any) -> Own:
    return Own(directory=PRIVATE, **parts)


OF_TP = own(groups={"tp": "12"})


def test_counters_and_pools_of_a_process_leave_no_trace() -> None:
    assert portable(code("(0, 5)", "graph_7"), OF_TP) == portable(code("None", "graph_12"), OF_TP)


def test_group_is_named_by_its_role_in_operators_on_groups_only() -> None:
    found = portable(code(), OF_TP)
    assert "default(arg0_1, 'sum', 'warmrank group tp')" in found
    assert "write(other, '12')" in found
    assert roles_in(found) == {"tp"}


def test_loaded_code_has_this_process_s_group_and_pool_and_events_of_its_own() -> None:
    kept = portable(code("(0, 5)"), OF_TP)
    here = Own(groups={"tp": "3"}, pool=(0, 9))
    found = bound(kept, here)
    for part in ("default(arg0_1, 'sum', '3')", "pool=(0, 9),", "'pool=(0, 3), graph_7'"):
        assert part in found
    assert found != bound(kept, here)


def test_device_is_that_of_the_rank_that_loads() -> None:
    found = portable(code() + "place = 'npu:3'\n", own(device=("npu", 3)))
    assert "device(type='npu', index=0)" in found
    assert "npu:3" not in found
    here = bound(found, Own(device=("npu", 5)))
    assert "device(type='npu', index=5)" in here
    assert "place = 'npu:5'" in here


@pytest.mark.parametrize(
    ("given", "device", "why"),
    [
        (code().replace("'sum'", "'<function f at 0x7f0011223344>'"), ("", 0), "address"),
        (code(), ("npu", 1), "makes tensors on npu:3, and its module lies on npu:1"),
        (code().replace("pool=", "user_stream_info={'a': 7}, pool="), ("", 0), "made outside of it"),
    ],
    ids=["address", "another device", "stream"],
)
def test_what_no_later_process_could_use_is_refused(given: str, device: Any, why: str) -> None:
    with pytest.raises(NotPortable, match=why):
        portable(given, own(device=device))


@pytest.mark.parametrize("labels", ["{'one', 'two', 'graph_7_x'}", "{'two', 'graph_7_x', 'one'}"])
def test_sets_stand_in_one_order(labels: str) -> None:
    found = portable(code().replace("pool=", f"user_stream_label={labels}, pool="), own())
    assert "user_stream_label={'graph_7_x', 'one', 'two'}" in found


def test_signature_has_neither_files_nor_options() -> None:
    title = "-" * 40
    text = (
        f"{title}graph module{title}\n    # File: /home/me/model.py:3 in f\n    x = arg0 + 1\n"
        f"{title}compile options{title}\nuse_graph_pool=(0, 5)\n"
    )
    assert portable_signature(text, Own()) == f"{title}graph module{title}\n    x = arg0 + 1"


@pytest.mark.parametrize("name", [name for name, _, _ in options(CompilerConfig()) if name != "mode"])
def test_every_value_that_is_handed_over_counts_in_the_request_key(name: str, tmp_path: Path) -> None:
    option = declared(name)
    for value in samples(option, tmp_path):
        assert option.canonical(value) != option.canonical(option.default)
