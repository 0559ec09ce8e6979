"""einops, which goes over sets of names: compiled in one process, loaded in one that hashes otherwise."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.processes import printed_by
from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig

einops = pytest.importorskip("einops", reason="einops comes with pip install 'warmrank[test]'")


class Rearranges(nn.Module):
    """Splits and merges axes in all of the package's ways."""

    def __init__(self) -> None:
        super().__init__()
        from einops.layers.torch import Rearrange

        self.split = Rearrange("b (h d) -> b h d", h=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = einops.rearrange(x, "b (h d) -> h b d", h=4)
        mean = einops.reduce(heads, "h b d -> b d", "mean")
        packed, shapes = einops.pack([mean, einops.repeat(mean, "b d -> b (d k)", k=3)], "b *")
        products = einops.einsum(mean, mean, "b d, c d -> b c")
        return self.split(x).sum(1), products, *einops.unpack(packed, shapes, "b *")


@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="einops marks itself allow_in_graph there, which is refused"
)
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_einops_is_loaded_by_a_process_that_hashes_otherwise(mode: str, tmp_path: Path) -> None:
    for seed, environment, outcome in (("1", {}, "compiled"), ("2", {"WARMRANK_NO_COMPILE": "1"}, "loaded")):
        printed = printed_by(
            "tests.unit.test_einops", str(tmp_path), mode, PYTHONHASHSEED=seed, **environment
        )
        assert printed == f"{outcome}\n"


def _main(directory: str, mode: str) -> None:
    config = CompilerConfig()
    config.mode = mode
    module = Rearranges()
    cached = cache_compile(
        module.forward, cache_dir=directory, config=config, ge_cache=mode == "max-autotune"
    )
    for rows in (3, 5, 3):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(cached(x), module(x))
    assert cached.last_result is not None
    sys.stdout.write(f"{cached.last_result.outcome}\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
