"""Compiled artifacts that tests write."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from warmrank.cache_store.cache_dir.local import add_variant
from warmrank.worker.runtime.artifact import Artifact, Frame, GraphFacts, PortableGuards, TracedSource
from warmrank.worker.runtime.asked import RANK
from warmrank.worker.runtime.files import to_bytes

COMPONENTS = {"engine": "graph 1", "torch": "2.13.0"}
GUARDS = PortableGuards(
    nodes=((-1, "local", "x"), (0, "attr", "size")),
    checks=((0, "not_none", None),),
    shapes=(("p1()[0] <= 8", (1,)),),
    ambient={"default dtype": "torch.float32"},
    sources=(TracedSource(kind="code", module="m", name="M.f", digest="0" * 32),),
    asked=((RANK, [], {}, 0),),
)
GRAPH = "def bind(groups, constants):\n    def graph(x):\n        return (x,)\n\n    return graph\n"


def make_artifact(**changed: Any) -> Artifact:
    """An artifact; ``changed`` replaces single attributes."""
    values: dict[str, Any] = {
        "name": "M.f(x)",
        "function": "0" * 32,
        "engine": "graph",
        "engine_version": "1",
        "components": dict(COMPONENTS),
        "guards": GUARDS,
        "frame": Frame(code=marshal.dumps(make_artifact.__code__, 2), names={"graph": "__compiled_fn"}),
        "facts": GraphFacts(input_classes=("user",), num_outputs=1, aliased_outputs=()),
        "roles": ("world",),
        "sections": {"graph.py": GRAPH.encode(), "constants": b"[]\n"},
    }
    return Artifact(**{**values, **changed})


def lay_artifact(function_dir: Path, components: Mapping[str, str] | None = None) -> Path:
    """Write an artifact that answers a request with the given components."""
    artifact = make_artifact(components=dict(components or COMPONENTS))
    return add_variant(function_dir, to_bytes(artifact))
