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


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Whether operators take a tensor as they take any other: not so those of a class with rules of its own.

    Subclasses of Parameter with attributes and methods of their own (vLLM's weights) are plain.
    """
    kind = type(tensor)
    if kind in (torch.Tensor, torch.nn.Buffer) or hasattr(tensor, "fake_mode"):
        return True
    return (
        isinstance(tensor, torch.nn.Parameter)
        and kind.__torch_function__ is torch.nn.Parameter.__torch_function__
        and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    )
