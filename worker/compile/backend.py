"""The backend of `get_npu_backend` for ``torch.compile``: same engine and capture, kept in memory only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from warmrank.worker import data_dump
from warmrank.worker.compile.analysis import analyse
from warmrank.worker.compile.compiler import prepared
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.configs.torchair import with_options
from warmrank.worker.devices import backend_for
from warmrank.worker.engines import engine_for
from warmrank.worker.errors import BackwardNotSupported
from warmrank.worker.gears.compiling import TracedGears, record
from warmrank.worker.gears.model import carried
from warmrank.worker.gears.rules import GearedRunner
from warmrank.worker.groups import by_role
from warmrank.worker.runtime.runner import CaptureOptions, runner_for
from warmrank.worker.settings import kind_of
from warmrank.worker.torch_private import facts as torch_facts
from warmrank.worker.torch_private.lowering import lower
from warmrank.worker.torch_private.symbols import make_floats_constants, make_static

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from warmrank.worker.runtime.artifact import GraphFacts
    from warmrank.worker.torch_private.lowering import LoweredGraph

_log = logging.getLogger("torchair")


def compile_graph(
    graph_module: GraphModule,
    example_inputs: list[Any],
    *,
    compiler_config: CompilerConfig,
    custom_decompositions: Mapping[Any, Callable[..., Any]],
    options: Mapping[str, Any] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """Compile one of ``torch.compile``'s graphs; see its parameters ``backend`` and ``options``.

    Raises:
        BackwardNotSupported: an input that is no parameter requires gradients while they are recorded.
        RandomOp: an operator draws random numbers.
        GearError: the gears of the inputs cannot be merged.
        NotYet: the configuration asks for what is not built yet.
    """
    compiler_config = with_options(compiler_config, options)
    torch_facts.require("compile")  # no trial: this may run inside of a trace
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    kind = kind_of(tensors[0].device.type if tensors else "cpu")
    engine = engine_for(compiler_config, wanted="auto", device_kind=kind)
    compiler_config.check(kind, engine=engine.name)
    geared = any(map(carried, tensors))
    if engine.captures_itself:
        from warmrank.worker.engines.torchair import compiled_by_backend

        if geared:
            make_static(graph_module, example_inputs)
            lowered = lower(graph_module, custom_decompositions)  # before TorchAir changes the graph
        run = compiled_by_backend(
            graph_module, example_inputs, config=compiler_config, decompositions=custom_decompositions
        )
        if not geared:
            return run
        facts = analyse(lowered, "self", random_on=kind)
        return _of_gears(run, lowered, facts, example_inputs, compiler_config)
    make_floats_constants(graph_module)
    wanted = [value for value in tensors if value.requires_grad]
    if wanted and _records_gradients(graph_module):
        if not all(isinstance(value, torch.nn.Parameter) for value in wanted):
            msg = "an input of the graph requires gradients; call the compiled model under torch.no_grad()"
            raise BackwardNotSupported(msg)
        _log.warning("the compiled model has no backward: results do not require gradients, as parameters do")
    if geared:
        make_static(graph_module, example_inputs)
    lowered = prepared(lower(graph_module, custom_decompositions), compiler_config)
    # Without a method there is no module to tell parameters by, but Dynamo lifts them under L['self'].
    facts = analyse(lowered, "self")
    names = {role: name for role, (name, _) in by_role().items()}
    engine.check(kind)
    built = engine.compile(lowered, facts)
    with data_dump.into(compiler_config, "graph"):
        graph = engine.load(built.sections, {}, names)
    capture = CaptureOptions.of(compiler_config)
    runner = runner_for(engine, graph, facts, backend_for(kind), capture)
    return _of_gears(runner, lowered, facts, example_inputs, compiler_config) if geared else runner


def _of_gears(
    run: Callable[..., tuple[Any, ...]],
    lowered: LoweredGraph,
    facts: GraphFacts,
    example_inputs: list[Any],
    config: CompilerConfig,
) -> Callable[..., tuple[Any, ...]]:
    """A graph that runs for sizes that are gears; as it is if it depends on no geared size."""
    # Dynamo's own guards see to the rest, so the geared inputs have no node.
    traced = [
        TracedGears(source=item.source, node=-1, gears=found)
        for item, value in zip(lowered.inputs, example_inputs, strict=True)
        if (found := carried(value))
    ]
    gears = record(lowered, facts, traced, config.inference_config.dynamic_gears_merge_policy)
    return run if gears is None else GearedRunner(run, gears, on_miss="error")


def _records_gradients(graph_module: GraphModule) -> bool:
    """True if gradients are recorded: not where the graph itself begins by switching them off."""
    for node in graph_module.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            continue
        name = getattr(node.target, "__name__", "")
        if name == "_enter_inference_mode" or (name == "_set_grad_enabled" and node.args == (False,)):
            return False
        break
    return torch.is_grad_enabled()
