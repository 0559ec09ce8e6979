"""What TorchAir writes into its code for one process only is taken out, and bound again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.options import declared, samples
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.options import options
from warmrank.worker.engines.torchair_code import Own, Written, bound, portable, portable_signature, roles_in
from warmrank.worker.errors import NotPortable

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


def loaded(kept: str, here: Own) -> str:
    written = Written(vendor="torchair", version="", signature="", code=kept, parameters=())
    return bound(written, here)


def test_counters_and_pools_of_a_process_leave_no_trace() -> None:
    groups = {"tp": "12"}
    given = portable(code("(0, 5)", "graph_7"), own(groups=groups))
    assert given == portable(code("None", "graph_12"), own(groups=groups))


def test_group_is_named_by_its_role_in_operators_on_groups_only() -> None:
    found = portable(code(), own(groups={"tp": "12"}))
    assert "default(arg0_1, 'sum', 'warmrank group tp')" in found
    assert "write(other, '12')" in found
    assert roles_in(found) == {"tp"}


def test_loaded_code_has_this_process_s_group_and_pool_and_events_of_its_own() -> None:
    kept = portable(code("(0, 5)"), own(groups={"tp": "12"}))
    here = Own(groups={"tp": "3"}, pool=(0, 9))
    found = loaded(kept, here)
    for part in ("default(arg0_1, 'sum', '3')", "pool=(0, 9),", "'pool=(0, 3), graph_7'"):
        assert part in found
    assert found != loaded(kept, here)


def test_device_is_that_of_the_rank_that_loads() -> None:
    found = portable(code() + "place = 'npu:3'\n", own(device=("npu", 3)))
    assert "device(type='npu', index=0)" in found
    assert "npu:3" not in found
    here = loaded(found, Own(device=("npu", 5)))
    assert "device(type='npu', index=5)" in here
    assert "place = 'npu:5'" in here


@pytest.mark.parametrize(
    ("given", "device", "why"),
    [
        (code().replace("'sum'", "'<function f at 0x7f0011223344>'"), None, "address"),
        (code(), ("npu", 1), "makes tensors on npu:3, and its module lies on npu:1"),
        (code().replace("pool=", "user_stream_info={'a': 7}, pool="), None, "made outside of it"),
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
