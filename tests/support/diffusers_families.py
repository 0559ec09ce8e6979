"""Blocks of diffusers, small and with random weights, for images and latents of several sizes."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable, Iterable
from typing import Any

import torch
from diffusers.models.attention import BasicTransformerBlock, JointTransformerBlock
from diffusers.models.resnet import ResnetBlock2D
from diffusers.models.unets.unet_2d_blocks import CrossAttnDownBlock2D, UpBlock2D
from torch import nn

from tests.support.families import Cached, Calls, furthest

SIZES = ((2, 8), (3, 12), (2, 8))
_LAYERS: dict[str, Any] = {"temb_channels": 16, "resnet_groups": 4, "num_layers": 1}


class Holder(nn.Module):
    """A block, and the call that is cached."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def run(self, *args: Any) -> Any:
        return self.block(*args)


def _image(batch: int, size: int) -> torch.Tensor:
    return torch.randn(batch, 8, size, size)


def _tokens(batch: int, size: int, width: int = 32) -> torch.Tensor:
    return torch.randn(batch, size, width)


def _time(batch: int) -> torch.Tensor:
    return torch.randn(batch, 16)


Made = tuple[nn.Module, Callable[[int, int], tuple[Any, ...]]]


def transformer() -> Made:
    block = BasicTransformerBlock(32, 4, 8, cross_attention_dim=24)
    return block, lambda b, n: (_tokens(b, n), None, _tokens(b, 5, 24))


def resnet() -> Made:
    block = ResnetBlock2D(in_channels=8, out_channels=12, temb_channels=16, groups=4)
    return block, lambda b, n: (_image(b, n), _time(b))


def joint() -> Made:
    block = JointTransformerBlock(32, 4, 8)
    return block, lambda b, n: (_tokens(b, n), _tokens(b, 5), _tokens(b, 1)[:, 0])


def down() -> Made:
    block = CrossAttnDownBlock2D(8, 16, num_attention_heads=2, cross_attention_dim=24, **_LAYERS)
    return block, lambda b, n: (_image(b, n), _time(b), _tokens(b, 5, 24))


def up() -> Made:
    block = UpBlock2D(8, 8, 16, **_LAYERS)
    return block, lambda b, n: (_image(b, n), (_image(b, n),), _time(b))


BLOCKS = {made.__name__: made for made in (transformer, resnet, joint, down, up)}


def load(names: Iterable[str]) -> None:
    """Nothing more: this module has imported all blocks."""


def calls(name: str, cached: Cached, *, whole: bool) -> Calls:
    """Build a block, and compare its calls with those of its cached function."""
    block, inputs = BLOCKS[name]()
    holder = Holder(block.eval())
    function = cached(holder.run)
    arguments = [inputs(*size) for size in SIZES]
    return [function], max(furthest(holder.run(*args), function(*args)) for args in arguments)
