"""Parts of ``nn.TransformerEncoder`` and its kin that ask for data, as a graph computes them.

They are traced in place of torch's own, which look at masks in Python or, under ``torch.compile``, leave out
what changes results: an eager encoder that is given padding returns zeros there. A load looks their sources
up, so nothing of Dynamo is imported here. ``tests/unit/test_like_eager.py`` compares with eager.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import CodeType
from typing import Any, Final

import torch
from torch.nn.modules import transformer

_forward: Final = transformer.TransformerEncoder.forward


def encoder_forward(
    encoder: Any,
    src: torch.Tensor,
    mask: torch.Tensor | None = None,
    src_key_padding_mask: torch.Tensor | None = None,
    is_causal: bool | None = None,
) -> torch.Tensor:
    """``TransformerEncoder.forward``: where all padding comes last in its row, padded positions are zeros.

    Eager lets its layers compute nested tensors of what is not padded, and fills up with zeros.
    """
    if (
        src_key_padding_mask is None
        or mask is not None
        or src.dim() != 3
        or encoder.layers[0].training
        or not getattr(encoder, "use_nested_tensor", False)
        or not torch.backends.mha.get_fastpath_enabled()
        or torch.is_autocast_enabled()
    ):
        return _forward(encoder, src, mask, src_key_padding_mask, is_causal)
    padded = src_key_padding_mask.bool()
    filled = padded & (padded[:, 1:] | ~padded[:, :-1]).all()
    if not getattr(encoder, "mask_check", True):  # then as if it came last
        lengths = padded.logical_not().sum(1, keepdim=True)
        src_key_padding_mask = filled = torch.arange(src.size(1), device=src.device) >= lengths
    elif (
        src_key_padding_mask.is_floating_point()
    ):  # what is added elsewhere; where it comes last, all but zeros
        src_key_padding_mask = src_key_padding_mask.masked_fill(filled, float("-inf"))
    output = src
    for layer in encoder.layers:
        output = layer(output, is_causal=False, src_key_padding_mask=src_key_padding_mask)
    output = torch.where(filled[:, :, None], 0.0, output)
    return output if encoder.norm is None else encoder.norm(output)


def leaves_padding(code: CodeType, symbolic_locals: Mapping[str, Any]) -> bool:
    """True where torch's own method leaves padding: it is the traced function, which nothing stands for."""
    return code is _forward.__code__ and symbolic_locals["mask"].is_constant_none()


def is_said_to_be_causal(
    mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """True if the caller says so: what eager finds out by comparing masks chooses no more than a kernel."""
    del mask, size
    return is_causal is True


TRACED_INSTEAD: Mapping[object, Any] = {
    _forward: encoder_forward,
    transformer._detect_is_causal_mask: is_said_to_be_causal,
}
