"""Makes a shape warm: its first call, which captures nothing, on copies of the inputs."""

from __future__ import annotations

from typing import Any

import torch

from warmrank.worker.capture.runner import GraphRunner
from warmrank.worker.devices.memory import duplicate


def warm(run: GraphRunner, *inputs: Any) -> GraphRunner:
    """The runner, whose next call with inputs of these shapes captures; the inputs stay as they are."""
    before = run.statistics
    run(*(duplicate(value) if isinstance(value, torch.Tensor) else value for value in inputs))
    after = run.statistics
    assert (after.captures, after.warm_up_runs) == (before.captures, before.warm_up_runs + 1)
    return run
