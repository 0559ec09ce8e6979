"""What `get_npu_backend` gives ``torch.compile``: the same engine and capture, kept in memory only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from worker.capture import CaptureOptions, GraphRunner
from worker.configs.compiler_config import CompilerConfig
from worker.devices import backend_for
from worker.engines import engine_for
from worker.errors import BackwardNotSupported
from worker.graph_facts import analyse
from worker.groups import role_of
from worker.torch_private.lowering import lower

if TYPE_CHECKING:
    from torch.fx import GraphModule


def compile_graph(
    graph_module: GraphModule,
    example_inputs: list[Any],
    *,
    compiler_config: CompilerConfig,
    custom_decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., tuple[Any, ...]]:
    """Compile one of ``torch.compile``'s graphs; see ``torch.compile``'s parameter ``backend``.

    Raises:
        BackwardNotSupported: an input requires gradients while they are recorded.
        RandomOp: an operator draws random numbers.
        NotYet: the configuration asks for what is not built yet.
    """
    compiler_config.check_supported()
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    if _records_gradients(graph_module) and any(value.requires_grad for value in tensors):
        msg = "an input of the graph requires gradients; call the compiled model under torch.no_grad()"
        raise BackwardNotSupported(msg)
    lowered = lower(graph_module, custom_decompositions)
    # Without a method there is no module to tell parameters by, but Dynamo lifts them under L['self'].
    facts = analyse(lowered, "self")
    engine = engine_for(compiler_config.mode)
    names = {role_of(name): name for name in _known_names()}
    built = engine.compile(lowered, facts, keep_compiled=False)
    graph = engine.load(built.sections, {}, names)
    options = CaptureOptions.of(compiler_config)
    kind = tensors[0].device.type if tensors else "cpu"
    return GraphRunner(graph, facts, backend_for(kind), options)


def _records_gradients(graph_module: GraphModule) -> bool:
    """Whether gradients are recorded: not where the graph itself begins by switching them off."""
    for node in graph_module.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            continue
        name = getattr(node.target, "__name__", "")
        if name == "_enter_inference_mode" or (name == "_set_grad_enabled" and node.args == (False,)):
            return False
        break
    return torch.is_grad_enabled()


def _known_names() -> list[str]:
    from worker.torch_private.process_groups import known_groups

    return list(known_groups())
