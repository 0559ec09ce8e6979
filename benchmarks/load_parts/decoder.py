"""The decode step that every way runs, and what it is run on; equal in every process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PROMPT = 8
TRACERS = ("torch._dynamo", "torch._inductor", "sympy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A model with its weights, and the arguments of one decode step.

    Attributes:
        model: the example's Llama, with no cached function on it.
        arguments: token and position.
        num_parameters: parameters of the model.
    """

    model: Any
    arguments: tuple[Any, ...]
    num_parameters: int

    @property
    def eager(self) -> Callable[..., Any]:
        """The step as it stands."""
        step: Callable[..., Any] = self.model.decode
        return step


def build(layers: int) -> Decoder:
    """The decoder with its weights.

    Raises:
        RuntimeError: building it imported a tracer, which would then be missing from a way's time.
    """
    import torch

    before = set(sys.modules)
    from warmrank.examples.llama import positions, prompts
    from warmrank.examples.llama_model import build_model
    from warmrank.examples.llama_weights import LlamaSizes, full_weights

    sizes = LlamaSizes(layers=layers)
    model = build_model(sizes, full_weights(sizes), group=None, device=torch.device("cpu"))
    del model.cached_prefill, model.cached_decode  # each way makes its own, and aot_compile pickles the model
    token = prompts(sizes.batch, 1)
    if imported := [name for name in TRACERS if name in sys.modules.keys() - before]:
        msg = f"building the model imported {', '.join(imported)}; its seconds would count for no way"
        raise RuntimeError(msg)
    return Decoder(
        model=model, arguments=(token, positions(PROMPT, token)), num_parameters=len(list(model.parameters()))
    )
