"""The class of a value as a trace sees it: that of a fake tensor is the one of the tensor that it stands for.

Only an offline build has fake tensors in its models. Looked at by name, because a warm load must not import
the module that fake tensors come from.
"""

from __future__ import annotations

from typing import Any

import torch


def plain_type(value: Any) -> type[Any]:
    """``type(value)``; of a fake tensor ``Parameter`` or ``Tensor``, as the real one's would be."""
    kind = type(value)
    if kind.__name__ != "FakeTensor":
        return kind
    return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else torch.Tensor
