"""What Dynamo does to a package before it traces anything of it; a load must find the state that this leaves.

Facts relied upon: Dynamo keeps such preparations in ``trace_rules._lazy_module_init``, and prepares einops
alone, by a call of ``rearrange``, which then knows torch's tensors.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any, Final

import torch

FACTS = {"torch._dynamo.trace_rules": "_lazy_module_init"}
_EINOPS: Final = "einops"


def prepare() -> None:
    """Prepare packages that this process has imported, each once."""
    if _EINOPS in sys.modules:
        _prepare_einops(sys.modules[_EINOPS])


@functools.cache
def _prepare_einops(einops: Any) -> None:
    with torch._C.DisableTorchFunction():
        einops.rearrange(torch.empty(1), "i -> i")


def _prepared() -> set[str]:
    importlib.import_module("torch._dynamo.decorators")
    return set(importlib.import_module("torch._dynamo.trace_rules")._lazy_module_init)


PROBES = {"Dynamo prepares einops alone": lambda: _prepared() <= {_EINOPS}}
