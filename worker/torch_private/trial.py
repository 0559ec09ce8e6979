"""A trial: one small method traced, and the facts that its trace shows.

Takes up to a second, so it is only for `warmrank doctor` and for a torch that the tests did not run on.
"""

from __future__ import annotations

import functools

import torch

from warmrank.worker.torch_private.tracing import Trace, trace


class _Trial(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, device="cpu"), requires_grad=False)
        self.calls = 0
        self.scale = 3
        self.known: dict[str, int] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = 1
        try:
            factor = self.known["factor"]
        except KeyError:
            factor = getattr(self, "factor", self.scale)
        return x * self.weight * factor if x.shape[0] > 2 else x


@functools.cache
def _traced() -> tuple[Trace, bool]:
    """The trace, and whether the method ran."""
    trial = _Trial()
    x = torch.ones(6, 4, device="cpu")[2:]
    with torch.no_grad():
        found, _ = trace(trial.forward, (x,), {}, dynamic=True, decompositions={}, build=lambda _: None)
    return found, trial.calls == 1


def _guards(*kinds: str) -> str:
    """The conditions of the trace's guards, and their sources."""
    return " and ".join(
        f"{guard.source} {' and '.join(guard.conditions)}"
        for guard in _traced()[0].guards
        if guard.kind in kinds
    )


def _operators() -> list[str]:
    nodes = _traced()[0].lowered.graph.graph.nodes
    return [str(node.target) for node in nodes if node.op == "call_function"]


PROBES = {
    "a method is traced without being run": lambda: not _traced()[1],
    "parameters are inputs of the graph": lambda: any(
        "weight" in item.source for item in _traced()[0].lowered.inputs
    ),
    "the graph holds the operators": lambda: _operators() == ["aten.mul.Tensor", "aten.mul.Tensor"],
    "a condition on a size is a guard": lambda: "size()[0]" in _guards("SHAPE_ENV"),
    "sizes that are equal by chance stay apart": lambda: "size()[0] == " not in _guards("SHAPE_ENV"),
    "a view puts no conditions on its base": lambda: "_base" not in _guards("SHAPE_ENV"),
    "a number is guarded by its value": lambda: "scale" in _guards("EQUALS_MATCH", "CONSTANT_MATCH"),
    "a key that is absent is guarded": lambda: "factor" in _guards("DICT_NOT_CONTAINS", "DICT_CONTAINS"),
    "an attribute that is absent is noted": lambda: any(
        fact.kind == "no_attr" and fact.detail == "factor" for fact in _traced()[0].evaluated.facts
    ),
    "a write to an attribute is noted": lambda: any(
        write.attribute == "calls" for write in _traced()[0].writes
    ),
}
