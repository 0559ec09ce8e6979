"""One rank of an eager, tensor-parallel Llama: ``llama_rank.py STORE_FILE RANK WORLD_SIZE``."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

from warmrank.examples import llama
from warmrank.examples.llama_model import build_model
from warmrank.examples.llama_weights import LlamaSizes, full_weights


def main() -> None:
    store, rank, world_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    sizes = LlamaSizes(layers=2, dim=32, heads=4, kv_heads=2, hidden=48, max_seq=32)
    weights = full_weights(sizes)
    model = build_model(sizes, weights, group=dist.group.WORLD, cached=False)
    result = llama.check(model, weights, (5, 9), 4, dist.group.WORLD)
    sys.stdout.write(f"heads={model.layers[0].attention.heads} error={result.max_error}\n")
    sys.stdout.flush()
    dist.barrier()
    # A peer that leaves early can abort this process from one of gloo's threads, while it takes them down.
    os._exit(not result.ok)


if __name__ == "__main__":
    main()
