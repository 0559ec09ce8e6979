"""The guards of one artifact, as data.

Layout (JSON)::

    {"nodes":   [[parent, step, argument], ...],        see paths.py
     "checks":  [[node, kind, expected], ...],          see check.py
     "shapes":  [["p3()[0] == p7()[0]", [3, 7]], ...],  conditions on sizes over node values
     "ambient": {"default dtype": "torch.float32", ...},  see ambient.py
     "sources": [[kind, module, name, digest], ...],    see sources.py
     "asked":   [[function, arguments, named arguments, result], ...],  see asked.py
     "volatile": [node, ...],                            nodes that the frame itself writes to
     "runtime_state": {"kv_cache_blocks": "512"}}        see worker/runtime_state.py; left out if empty
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

from warmrank.worker.guards.asked import Call
from warmrank.worker.guards.paths import Node
from warmrank.worker.keys.sources import TracedSource
from warmrank.worker.values import Value

Check = tuple[int, str, Any]


class PortableGuards(Value):
    """Conditions under which an artifact may be used; the layout stands in the module's docstring."""

    nodes: tuple[Node, ...]
    checks: tuple[Check, ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    ambient: dict[str, str]
    sources: tuple[TracedSource, ...]
    asked: tuple[Call, ...]
    volatile: tuple[int, ...] = ()
    runtime_state: dict[str, str] = field(default_factory=dict)

    def of_tensors(self) -> PortableGuards:
        """Those on tensors and sizes alone, which code that was compiled for them relies on."""
        checks = tuple(check for check in self.checks if check[1] == "tensor")
        return replace(self, checks=checks, ambient={}, sources=(), asked=(), runtime_state={})

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "nodes": [list(node) for node in self.nodes],
            "checks": [list(check) for check in self.checks],
            "shapes": [[expression, list(used)] for expression, used in self.shapes],
            "ambient": self.ambient,
            "sources": [[item.kind, item.module, item.name, item.digest] for item in self.sources],
            "asked": [list(call) for call in self.asked],
            "volatile": list(self.volatile),
            **({"runtime_state": self.runtime_state} if self.runtime_state else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PortableGuards:
        """The guards that `to_json` gave."""
        return cls(
            nodes=tuple((node[0], node[1], node[2]) for node in data["nodes"]),
            checks=tuple((check[0], check[1], check[2]) for check in data["checks"]),
            shapes=tuple((expression, tuple(used)) for expression, used in data["shapes"]),
            ambient=data["ambient"],
            sources=tuple(
                TracedSource(kind=kind, module=module, name=name, digest=digest)
                for kind, module, name, digest in data["sources"]
            ),
            asked=tuple((call[0], call[1], call[2], call[3]) for call in data["asked"]),
            volatile=tuple(data["volatile"]),
            runtime_state=data.get("runtime_state", {}),
        )
