"""The facts about torch's private modules that `worker.torch_private` relies on, a test for each."""

from __future__ import annotations

import dis
import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.support.fake_group import fake_world
from tests.support.small_models import Cached, Plain, Unfit
from tests.support.tracing import traced
from worker.errors import GraphBreak, NotPortable
from worker.torch_private.lowering import LoweredGraph, lower
from worker.torch_private.operators import aliased_arguments, memory_of, mutated_arguments, operator_path
from worker.torch_private.process_groups import group_name, known_groups
from worker.torch_private.tracing import Trace, TracedGuard, trace

ROWS = torch.ones(2, 4)
aten = torch.ops.aten


@pytest.fixture(scope="module")
def store() -> Trace:
    """A method with a parameter, a buffer that it writes to, and a dynamic input."""
    return traced(Cached().store, ROWS)


@pytest.fixture(scope="module")
def affine() -> Trace:
    return traced(Plain().affine, ROWS, dynamic=False)


def targets(lowered: LoweredGraph) -> list[str]:
    return [str(node.target) for node in lowered.graph.graph.nodes if node.op == "call_function"]


def guards(trace_: Trace, kind: str) -> list[TracedGuard]:
    return [guard for guard in trace_.guards if guard.kind == kind]


class Effects(nn.Module):
    """Records that its body really ran."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(4))
        self.cache: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.add_(1.0)
        return x + self.cache


class Attributes(nn.Module):
    """Reads what Dynamo guards by value, by identity and by absence."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 0.5
        self.sizes = [2, 3]
        self.parts = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor, flag: bool = True) -> Any:
        y = self.parts[0](x) * self.factor * self.sizes[0]
        return y if flag else -y


class Switches(nn.Module):
    """Turns gradients on while it is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.set_grad_enabled(True)
        return x * 2


class Doubles(nn.Module):
    """Takes any size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Writes(nn.Module):
    """Writes to Python objects that were there before the call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, log: list[torch.Tensor]) -> torch.Tensor:
        self.calls += 1
        log.append(x)
        fresh = [x]
        fresh.append(x * 2)
        return fresh[1]


def unseen(x: torch.Tensor) -> torch.Tensor:
    return x + 1


torch._dynamo.allow_in_graph(unseen)


# Fact: fullgraph_capture traces a bound method to one graph with all parameters lifted, without running it.


def test_capture_lifts_parameters_and_buffers_to_inputs(store: Trace) -> None:
    sources = [item.source for item in store.lowered.inputs if item.is_tensor]
    assert [source.replace('"', "'") for source in sources] == [
        "L['self']._buffers['cache']",
        "L['x']",
        "L['self']._modules['linear']._parameters['weight']",
        "L['self']._modules['linear']._parameters['bias']",
    ]


def test_capture_leaves_no_parameter_inside_the_graph(store: Trace) -> None:
    assert list(store.lowered.graph.parameters()) == []
    assert [node for node in store.lowered.graph.graph.nodes if node.op == "get_attr"] == []


def test_capture_does_not_run_the_method() -> None:
    model = Effects()
    traced(model.forward, torch.ones(4))
    assert torch.equal(model.cache, torch.zeros(4))


def test_capture_takes_no_memory_for_intermediate_values() -> None:
    class Huge(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.expand(1 << 30, 1 << 30) + 1).sum()

    assert "aten.add.Tensor" in targets(traced(Huge().forward, torch.ones(1, 1)).lowered)


def test_capture_needs_a_metrics_context() -> None:
    from torch._dynamo import convert_frame

    with pytest.raises(RuntimeError, match="outside of a MetricsContext"):
        convert_frame.fullgraph_capture(Plain().affine, (ROWS,), {})


def test_capture_brings_its_own_metrics_context() -> None:
    assert targets(traced(Plain().affine, ROWS).lowered) == ["aten.linear.default", "aten.mul.Tensor"]


def test_capture_names_the_graph_that_the_frame_calls(store: Trace) -> None:
    assert store.graph_name in store.frame.co_names


def test_capture_gives_all_global_names_of_the_frame(store: Trace) -> None:
    loaded = {item.argval for item in dis.get_instructions(store.frame) if item.opname == "LOAD_GLOBAL"}
    assert store.graph_name in loaded
    assert loaded <= store.external_names


def test_capture_gives_every_traced_code_once(store: Trace) -> None:
    names = [code.co_qualname for code in store.codes]
    assert {"Cached.store", "Linear.forward"} <= set(names)
    assert len(names) == len(set(names))


def test_capture_of_a_method_with_free_variables_gives_their_cells() -> None:
    factor = torch.full((4,), 3.0)

    class Closed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * factor

    cells = traced(Closed().forward, ROWS).closure
    assert cells is not None
    assert [cell.cell_contents is factor for cell in cells] == [True]


def test_capture_keeps_the_callers_grad_mode() -> None:
    with torch.no_grad():
        trace(Switches().forward, (ROWS,), {}, dynamic=True, decompositions={}, build=str)
        assert not torch.is_grad_enabled()


def test_capture_measures_its_two_parts(store: Trace) -> None:
    assert store.trace_s > 0
    assert store.lower_s > 0


def test_capture_of_a_branch_on_data_gives_dynamos_reason_and_the_line() -> None:
    with pytest.raises(GraphBreak) as raised:
        traced(Unfit().breaks, ROWS)
    message = str(raised.value)
    assert "Unfit.breaks does not form one whole graph" in message
    assert "Data-dependent branching" in message
    assert "if x.sum() > 0:" in message
    assert 'small_models.py", line' in message
    assert raised.value.function == "Unfit.breaks"


def test_capture_without_a_tensor_operation_says_so() -> None:
    with pytest.raises(GraphBreak, match=r"Unfit.counts holds no tensor operation"):
        traced(Unfit().counts, ROWS)


# Fact: placeholders carry their example value and their source, in the order in which the frame passes them.


def test_placeholders_are_the_inputs_in_order(store: Trace) -> None:
    placeholders = [node for node in store.lowered.graph.graph.nodes if node.op == "placeholder"]
    assert len(placeholders) == len(store.lowered.inputs)
    is_tensor = [isinstance(node.meta["val"], torch.Tensor) for node in placeholders]
    assert is_tensor == [item.is_tensor for item in store.lowered.inputs]


def test_placeholders_of_dynamic_sizes_are_numbers(store: Trace) -> None:
    numbers = [item.source for item in store.lowered.inputs if not item.is_tensor]
    assert numbers == ["L['x'].size()[0]"]


def test_placeholders_all_have_a_source(store: Trace) -> None:
    assert all(item.source for item in store.lowered.inputs)


def test_placeholders_of_static_sizes_are_tensors_only(affine: Trace) -> None:
    assert all(item.is_tensor for item in affine.lowered.inputs)


# Fact: every guard is built before the filter sees it, with its value and its readable conditions.


@pytest.fixture(scope="module")
def attributes() -> Trace:
    return traced(Attributes().forward, ROWS, flag=True)


@pytest.mark.parametrize(
    ("source", "value"),
    [("L['self'].factor", 0.5), ("L['self'].sizes[0]", 2), ("L['flag']", True)],
)
def test_guard_on_a_constant_has_its_value(attributes: Trace, source: str, value: object) -> None:
    values = [guard.value for guard in attributes.guards if guard.source == source and guard.has_value]
    assert value in values


def test_guard_on_a_tensor_has_the_tensor() -> None:
    x = torch.ones(2, 4)
    found = [guard for guard in guards(traced(Plain().affine, x), "TENSOR_MATCH") if guard.source == "L['x']"]
    assert [tuple(guard.value.shape) for guard in found] == [(2, 4)]


def test_guard_on_sizes_has_readable_conditions(store: Trace) -> None:
    (shapes,) = guards(store, "SHAPE_ENV")
    assert any("L['x'].size()[0] <= 8" in condition for condition in shapes.conditions)


def test_guard_on_absence_names_the_attribute(attributes: Trace) -> None:
    absent = guards(attributes, "NOT_PRESENT_IN_GENERIC_DICT")
    assert {"forward"} <= {guard.details["attr"] for guard in absent}


def test_guard_on_the_same_object_names_the_other() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

    x = torch.ones(4)
    (same,) = guards(traced(Twice().forward, x, x), "DUPLICATE_INPUT")
    assert {same.source, same.same_as} == {"L['x']", "L['y']"}


def test_guard_on_the_hooks_of_a_layer_is_there(attributes: Trace) -> None:
    hooks = {guard.source.rpartition(".")[2] for guard in guards(attributes, "EMPTY_NN_MODULE_HOOKS_DICT")}
    assert {"_forward_hooks", "_forward_pre_hooks"} <= hooks


# Fact: input_source_to_sizes_strides has the traced sizes, a dynamic dimension as a SymInt.


def sizes_of_x(trace_: Trace) -> tuple[Any, Any]:
    (guard,) = [guard for guard in guards(trace_, "TENSOR_MATCH") if guard.source == "L['x']"]
    return guard.sizes, guard.strides


def test_sizes_of_a_static_trace_are_numbers(affine: Trace) -> None:
    assert sizes_of_x(affine) == ((2, 4), (4, 1))


def test_sizes_of_a_dynamic_trace_are_open() -> None:
    assert sizes_of_x(traced(Doubles().forward, ROWS)) == ((None, None), (None, 1))


def test_size_that_a_parameter_fixes_is_a_number(store: Trace) -> None:
    assert sizes_of_x(store) == ((None, 4), (4, 1))


def test_size_that_the_method_asked_for_is_fixed() -> None:
    class Halves(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 2, 2) if x.shape[1] == 4 else x

    assert sizes_of_x(traced(Halves().forward, ROWS)) == ((None, 4), (4, 1))


def test_size_that_a_decomposition_asked_for_is_fixed() -> None:
    def by_rows(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x + x if x.shape[0] == 2 else x - x

    trace_ = traced(Plain().affine, ROWS, decompositions={aten.mul.Tensor: by_rows})
    assert sizes_of_x(trace_)[0] == (2, 4)


@pytest.mark.parametrize("dim", [0, 1], ids=["first", "second"])
def test_sizes_of_one_are_never_dynamic(dim: int) -> None:
    x = torch.ones(1, 4) if dim == 0 else torch.ones(4, 1)
    assert sizes_of_x(traced(Doubles().forward, x))[0][dim] == 1


# Fact: codegen_update_mutated sees which Python objects the frame will write to.


def test_writes_are_those_to_objects_of_before_the_call() -> None:
    trace_ = traced(Writes().forward, ROWS, [])
    assert {(write.source, write.attribute) for write in trace_.writes} == {
        ("L['self']", "calls"),
        ("L['log']", ""),
    }


def test_writes_of_a_method_that_only_computes_are_none(affine: Trace) -> None:
    assert affine.writes == ()


def test_writes_are_noted_for_one_trace_only() -> None:
    from torch._dynamo.side_effects import SideEffects

    before = SideEffects.codegen_update_mutated
    traced(Writes().forward, ROWS, [])
    assert SideEffects.codegen_update_mutated is before


# Fact: what Dynamo was told not to look into stands in its graph as a Python function.


def test_function_that_dynamo_does_not_look_into_is_refused_by_name() -> None:
    class Blind(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return unseen(x) * 2

    with pytest.raises(NotPortable, match=r"unseen is marked allow_in_graph"):
        traced(Blind().forward, ROWS)


# Fact: make_fx keeps operators in place, views as they are, and where each operator comes from.


def test_operators_in_place_stay_in_place(store: Trace) -> None:
    assert "aten.copy_.default" in targets(store.lowered)


def test_views_stay_views(store: Trace) -> None:
    assert "aten.slice.Tensor" in targets(store.lowered)


def test_every_operator_keeps_its_line(store: Trace) -> None:
    calls = [node for node in store.lowered.graph.graph.nodes if node.op == "call_function"]
    assert all("small_models.py" in (node.stack_trace or "") for node in calls)


def test_composite_operators_stay_whole(affine: Trace) -> None:
    assert targets(affine.lowered) == ["aten.linear.default", "aten.mul.Tensor"]


def test_casts_of_autocast_are_operators_of_the_graph() -> None:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = targets(
            trace(Plain().affine, (ROWS,), {}, dynamic=False, decompositions={}, build=str)[0].lowered
        )
    assert "aten._to_copy.default" in found


def test_casts_of_autocast_within_the_method_are_operators_of_the_graph() -> None:
    class Casts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return nn.functional.linear(x, x)

    assert "aten._to_copy.default" in targets(traced(Casts().forward, ROWS).lowered)


def test_switches_of_gradients_leave_no_operator() -> None:
    class Quiet(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                return x * 2

    with torch.enable_grad():
        lowered = trace(Quiet().forward, (ROWS,), {}, dynamic=True, decompositions={}, build=str)[0].lowered
    assert targets(lowered) == ["aten.mul.Tensor"]


def test_decomposition_replaces_its_operator() -> None:
    def twice(x: torch.Tensor, factor: float) -> torch.Tensor:
        return x + x

    found = targets(traced(Plain().affine, ROWS, decompositions={aten.mul.Tensor: twice}).lowered)
    assert found == ["aten.linear.default", "aten.add.Tensor"]


def test_operator_without_effect_or_use_is_dropped() -> None:
    class Wasteful(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.exp()
            return x + 1

    assert targets(traced(Wasteful().forward, ROWS).lowered) == ["aten.add.Tensor"]


def test_lower_works_inside_torch_compile() -> None:
    seen: list[LoweredGraph] = []

    def backend(graph_module: Any, _: Any) -> Any:
        seen.append(lower(graph_module, {}))
        return graph_module

    with torch.no_grad():
        torch.compile(Plain().affine, backend=backend)(ROWS)
    assert "L['x']" in [item.source for item in seen[0].inputs]
    torch._dynamo.reset()


# Fact: specialize_float keeps a float from restarting the capture; it is guarded by value instead.


def test_float_of_the_module_is_guarded_by_value_in_a_dynamic_trace(attributes: Trace) -> None:
    assert 0.5 in [guard.value for guard in guards(attributes, "CONSTANT_MATCH")] + [
        guard.value for guard in guards(attributes, "EQUALS_MATCH")
    ]


# Fact: an operator's schema says what it writes to and what its result may share memory with.


@pytest.mark.parametrize(
    ("target", "positions"),
    [
        (aten.add.Tensor, ()),
        (aten.add_.Tensor, (0,)),
        (aten.copy_.default, (0,)),
        (aten.slice.Tensor, ()),
        (aten.index_put_.default, (0,)),
        (aten._foreach_add_.List, (0,)),
        (aten.add.out, (3,)),
    ],
    ids=str,
)
def test_schema_says_what_is_written(target: Any, positions: tuple[int, ...]) -> None:
    assert mutated_arguments(target) == positions


@pytest.mark.parametrize(
    ("target", "positions"),
    [(aten.add.Tensor, ()), (aten.view.default, (0,)), (aten.slice.Tensor, (0,)), (aten.add_.Tensor, (0,))],
    ids=str,
)
def test_schema_says_what_is_shared(target: Any, positions: tuple[int, ...]) -> None:
    assert aliased_arguments(target) == positions


# Fact: fake tensors share memory as the real ones do, and a storage's _cdata tells.


def memory(trace_: Trace, name: str) -> set[int]:
    (node,) = [node for node in trace_.lowered.graph.graph.nodes if node.name == name]
    return set(memory_of(node.meta["val"]))


def test_memory_of_a_view_is_that_of_its_base(store: Trace) -> None:
    assert memory(store, "slice_1") == memory(store, "arg0_1")


def test_memory_of_a_composite_operator_without_a_copy_is_that_of_its_input() -> None:
    class Turned(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return torch.einsum("ij->ji", x) + torch.broadcast_tensors(x, y)[1].T

    trace_ = traced(Turned().forward, torch.ones(2, 4), torch.ones(2, 4), dynamic=False)
    assert memory(trace_, "einsum") == memory(trace_, "arg0_1")
    assert memory(trace_, "broadcast_tensors") == memory(trace_, "arg0_1") | memory(trace_, "arg1_1")


def test_memory_of_a_computed_value_is_its_own(store: Trace) -> None:
    assert memory(store, "linear").isdisjoint(memory(store, "arg0_1") | memory(store, "arg2_1"))


@pytest.mark.parametrize("value", [None, 3, torch.ones(2).to_sparse()], ids=["none", "number", "sparse"])
def test_memory_of_what_has_no_strided_memory_is_none(value: Any) -> None:
    assert list(memory_of(value)) == []


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (aten.add.Tensor, "torch.ops.aten.add.Tensor"),
        (aten.relu.default, "torch.ops.aten.relu.default"),
        (aten.add_.Tensor, "torch.ops.aten.add_.Tensor"),
    ],
    ids=str,
)
def test_operator_has_a_path_that_leads_back_to_it(target: Any, path: str) -> None:
    assert operator_path(target) == path
    assert eval(path) is target  # noqa: S307 - a path of torch.ops


@pytest.mark.parametrize(
    "target", [torch.add, aten.add, torch.ops.higher_order.cond], ids=["builtin", "packet", "higher order"]
)
def test_operator_without_an_overload_has_no_path(target: Any) -> None:
    with pytest.raises(NotPortable, match="which has no portable name"):
        operator_path(target)


# Fact: pg_names is a mapping of group to name in the order of creation.


def test_known_groups_are_in_the_order_of_their_creation() -> None:
    with fake_world(rank=0, world_size=4) as world:
        made = [dist.new_group([0, 1]), dist.new_group([0, 2])]
        assert list(known_groups()) == [group_name(group) for group in (world, *made)]


def test_known_groups_without_torch_distributed_are_none() -> None:
    assert known_groups() == {}


def test_name_of_a_group_is_what_the_graph_holds() -> None:
    class Sums(nn.Module):
        def __init__(self, group: Any) -> None:
            super().__init__()
            self.group = group

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            dist.all_reduce(y, group=self.group)
            return y

    with fake_world(rank=0, world_size=2):
        group = dist.new_group([0, 1])
        graph = traced(Sums(group).forward, ROWS).lowered.graph.graph
        arguments = itertools.chain.from_iterable(node.args for node in graph.nodes)
        assert group_name(group) in [item for item in arguments if isinstance(item, str)]


# Fact: sizes that happen to be equal are different symbols; a view puts no conditions on its base.


def shape_conditions(model: nn.Module, x: torch.Tensor) -> str:
    guards = traced(model.forward, x).guards
    return " and ".join(text for guard in guards if guard.kind == "SHAPE_ENV" for text in guard.conditions)


def test_sizes_that_happen_to_be_equal_are_not_bound_to_each_other() -> None:
    assert "x'].size()[0] == " not in shape_conditions(nn.ReLU(), torch.ones(4, 4).clone())


def test_view_puts_no_condition_on_its_base() -> None:
    assert "_base" not in shape_conditions(nn.ReLU(), torch.ones(9, 7)[2:6, :4])


def test_function_that_asks_for_a_base_is_refused_by_its_argument() -> None:
    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x._base is None else x * 3

    with pytest.raises(NotPortable, match=r"asks L\['x'\] for _base"):
        traced(Asks().forward, torch.ones(4, 4)[1:])
