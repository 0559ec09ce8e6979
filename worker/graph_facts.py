"""What the runtime must know of a graph: which inputs it writes to, and which it returns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from warmrank.worker.gears.model import GearFacts
from warmrank.worker.values import Value

# Input classes of the seeds: parameters and buffers; mutated inputs; user inputs; and numbers.
STATE, MUTATED, USER, NUMBER = "state", "mutated", "user", "number"
_MEMBER = r"\._(?:modules|parameters|buffers)\['([^']*)'\]"
_ROOT = r"^[LG]\['([^']*)'\]"
# They count from the beginning of the storage, and reach beyond the tensor's own elements.
_ABSOLUTE = frozenset(f"aten::as_strided{kind}" for kind in ("", "_", "_copy", "_scatter"))
DROPOUTS = frozenset(f"aten.{kind}dropout.default" for kind in ("", "feature_", "alpha_", "feature_alpha_"))


class GraphFacts(Value):
    """Facts about one graph.

    Attributes:
        input_classes: one of ``state``, ``mutated``, ``user``, ``number`` per input.
        num_outputs: number of outputs.
        aliased_outputs: positions of outputs that share memory with an input.
        data_dependent: the first operator whose result's size depends on values (``aten.nonzero``), or which
            runs one graph or another: such a graph cannot be captured. Empty if there is none.
        random: the first operator that draws random numbers; empty if there is none.
        input_names: where each input comes from, for people: ``self.layers.0.weight``.
        module_inputs: positions of the inputs that are tensors of the module, not of the call.
        anchored_inputs: positions of the inputs that `as_strided` looks at, by their place in the storage.
        gears: of its inputs, if they were given any.
    """

    input_classes: tuple[str, ...]
    num_outputs: int
    aliased_outputs: tuple[int, ...]
    data_dependent: str = ""
    random: str = ""
    input_names: tuple[str, ...] = ()
    module_inputs: tuple[int, ...] = ()
    anchored_inputs: tuple[int, ...] = ()
    gears: GearFacts | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in an artifact's header."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GraphFacts:
        """From an artifact's header."""
        return cls(
            input_classes=tuple(data["input_classes"]),
            num_outputs=data["num_outputs"],
            aliased_outputs=tuple(data["aliased_outputs"]),
            data_dependent=data["data_dependent"],
            random=data["random"],
            input_names=tuple(data["input_names"]),
            module_inputs=tuple(data["module_inputs"]),
            anchored_inputs=tuple(data["anchored_inputs"]),
            gears=GearFacts.from_json(data["gears"]) if data["gears"] else None,
        )


def readable(source: str) -> str:
    """Dynamo's expression for an input as a reader would write it."""
    return re.sub(_ROOT, r"\1", re.sub(_MEMBER, r".\1", source))
