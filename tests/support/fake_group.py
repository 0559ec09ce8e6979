"""A process group of any size in one process: nothing is sent, so only tracing and asking can be tested."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from warmrank.worker import groups


@contextlib.contextmanager
def fake_world(*, rank: int, world_size: int) -> Iterator[dist.ProcessGroup]:
    """This process as one rank of a world that is not there; yields the world's group."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    world = dist.group.WORLD
    assert world is not None
    try:
        yield world
    finally:
        groups.register({})
        dist.destroy_process_group()
