"""A plain script with two cached functions; it knows nothing of a launcher.

It runs alone, or unchanged on every rank of a launch (``script: examples/plain_script.py`` in a config),
where it finds torchrun's variables. Its model takes a dataclass and a list, as serving frameworks do; prompt
and decode are cached apart, because a cached function is traced once.
"""

from __future__ import annotations

import dataclasses
import logging
import os

import torch
import torch.distributed as dist

import warmrank as torchair
from warmrank import logger
from warmrank.configs.compiler_config import CompilerConfig

config = CompilerConfig()
config.mode = "reduce-overhead"
logger.setLevel(logging.INFO)


@dataclasses.dataclass
class InputMeta:
    """What one call is about."""

    data: torch.Tensor
    """Rows to compute on, (rows, 2)."""

    is_prompt: bool
    """The first call of a request, rather than one that goes on."""


class Model(torch.nn.Module):
    """Two linear layers over the input and the first entry of a key-value list."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = torch.nn.Linear(2, 1)
        self.linear2 = torch.nn.Linear(2, 1)
        for parameter in self.parameters():
            torch.nn.init.ones_(parameter)
        self.cached_prompt = torchair.inference.cache_compile(self.prompt, config=config)
        self.cached_decode = torchair.inference.cache_compile(self.decode, config=config)

    def forward(self, x: InputMeta, kv: list[torch.Tensor]) -> torch.Tensor:
        """(rows, 2) and a list of (rows, 2) -> (rows, 1)."""
        function = self.cached_prompt if x.is_prompt else self.cached_decode
        y: torch.Tensor = function(x, kv)
        return y

    def prompt(self, x: InputMeta, kv: list[torch.Tensor]) -> torch.Tensor:
        """The first call of a request."""
        return self._forward(x, kv)

    def decode(self, x: InputMeta, kv: list[torch.Tensor]) -> torch.Tensor:
        """Every later call."""
        return self._forward(x, kv)

    def _forward(self, x: InputMeta, kv: list[torch.Tensor]) -> torch.Tensor:
        y: torch.Tensor = self.linear1(x.data) + self.linear2(kv[0])
        return y


def main() -> None:
    """Call both functions, and compare them with the same computation run eagerly."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    model = Model()
    for is_prompt in (True, False):
        x = InputMeta(data=torch.rand(2, 2), is_prompt=is_prompt)
        kv = [torch.rand(2, 2)]
        expected = x.data.sum(-1, keepdim=True) + kv[0].sum(-1, keepdim=True) + 2
        torch.testing.assert_close(model(x, kv), expected)
    print("prompt and decode agree with eager")  # noqa: T201 - a script's output
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
