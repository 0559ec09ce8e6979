"""The model that all ways of a launch build and warm: the example's Llama, whole on every rank.

Data parallel only, so all ranks are equal and no call waits for another rank.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warmrank.worker.rank.workload import RankContext, Workload

PROMPT_LEN = 32


def build(layers: int, device: Any) -> Any:
    """The model with its weights."""
    from warmrank.examples.llama_model import build_model
    from warmrank.examples.llama_weights import LlamaSizes, full_weights

    sizes = LlamaSizes(layers=layers)
    return build_model(sizes, full_weights(sizes), group=None, device=device)


def calls(device: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The first calls of its functions, by name."""
    from warmrank.examples.llama import positions, prompts
    from warmrank.examples.llama_weights import LlamaSizes

    prompt = prompts(LlamaSizes().batch, PROMPT_LEN).to(device)
    token = prompt[:, -1:].clone()
    return (("prefill", (prompt, positions(0, prompt))), ("decode", (token, positions(PROMPT_LEN, token))))


def workload(context: RankContext, *, layers: int) -> Workload:
    """The entrypoint of the launches that are measured; without a check, as the other ways have none."""
    from warmrank.worker.rank.workload import Call, Workload

    model = build(layers, context.device)
    return Workload(
        model=model,
        calls=tuple(
            Call(function=getattr(model, f"cached_{name}"), args=args) for name, args in calls(context.device)
        ),
    )


_TICKS_A_S = os.sysconf("SC_CLK_TCK")
_FIRST_FIELD = 11  # of those after the name: utime, stime, cutime, cstime


def cpu_s(pid: int) -> float:
    """User and system seconds of a process, all its threads, and its children that have ended.

    Raises:
        OSError: there is no such process any more.
    """
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[_FIRST_FIELD : _FIRST_FIELD + 4])) / _TICKS_A_S
