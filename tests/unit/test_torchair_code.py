"""What TorchAir writes into its code for one process only is taken out, and bound again."""

import pytest

from worker.engines.torchair_code import bound, portable, roles_in
from worker.errors import NotPortable

CODE = """
def forward(*args, node_info=[], is_capturing: bool = False):
    arg0_1, arg1_1, = args
    text = "pool=(0, 3), graph_7"
    all_reduce = torch.ops._c10d_functional.all_reduce.default(arg0_1, 'sum', '12');  arg0_1 = None
    other = torch.ops.aten.add.Tensor(all_reduce, 12)
    named = torch.ops.npu.write(other, '12')
    return (other,)

aclgraph_cache_info = AclGraphCacheInfo(
    pool={pool},
    fx_graph_name="{name}",
    tagged_event_names=['{name}_start', '{name}0', 'äöü {name}'],
)
acl_graph.load(aclgraph_cache_info)
"""


def code(pool: str = "None", name: str = "graph_7") -> str:
    return CODE.replace("{pool}", pool).replace("{name}", name)


def test_counters_and_pools_of_a_process_leave_no_trace() -> None:
    roles = {"12": "tp"}
    assert portable(code("(0, 5)", "graph_7"), roles) == portable(code("None", "graph_7"), roles)
    one, two = portable(code(name="graph_3"), {}), portable(code(name="graph_41"), {})
    assert one.replace("graph_30", "").replace("graph_3", "") == two.replace("graph_410", "").replace(
        "graph_41", ""
    )


def test_names_that_only_begin_alike_stay() -> None:
    found = portable(code(name="graph_7"), {})
    assert "'graph_0_start'" in found
    assert "'graph_70'" in found
    assert "'äöü graph_7'" in found


def test_text_in_strings_is_not_mistaken_for_code() -> None:
    assert '"pool=(0, 3), graph_7"' in portable(code("(0, 5)"), {})


def test_group_is_named_by_its_role_in_operators_on_groups_only() -> None:
    found = portable(code(), {"12": "tp"})
    assert "default(arg0_1, 'sum', 'warmrank group tp')" in found
    assert "write(other, '12')" in found
    assert roles_in(found) == {"tp"}


def test_bound_code_has_this_process_s_group_and_pool() -> None:
    found = bound(portable(code("(0, 5)"), {"12": "tp"}), {"tp": "3"}, (0, 9))
    assert "default(arg0_1, 'sum', '3')" in found
    assert "pool=(0, 9)," in found
    assert '"pool=(0, 3), graph_7"' in found


def test_two_loads_have_events_of_their_own() -> None:
    kept = portable(code(), {})
    assert bound(kept, {}, None) != bound(kept, {}, None)


def test_address_of_an_object_is_refused() -> None:
    with pytest.raises(NotPortable, match="address"):
        portable(code().replace("'sum'", "'<function f at 0x7f0011223344>'"), {})
