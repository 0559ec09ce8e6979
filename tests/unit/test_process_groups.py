"""Names of process groups, as a graph holds them."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.support.launching import rank_spec
from warmrank.worker.errors import PortInUse
from warmrank.worker.rank import start


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, timedelta]:
    """Time-outs that torch is asked for, by what is made; nothing is made."""
    found: dict[str, timedelta] = {}

    def world(backend: str, *, timeout: timedelta, **_: Any) -> None:
        found["world"] = timeout

    def group(ranks: list[int], *, timeout: timedelta, use_local_synchronization: bool) -> str:
        assert use_local_synchronization, "all ranks of the world would meet for each group"
        found[str(ranks)] = timeout
        return "a group"

    monkeypatch.setattr(dist, "init_process_group", world)
    monkeypatch.setattr(dist, "new_group", group)
    monkeypatch.setattr(start, "_world", lambda: "the world")
    for name in ("HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT"):
        monkeypatch.setenv(name, "")
    return found


SPEC = rank_spec(Path("cache"), groups={"world": ((0,),), "tp": ((0,),)}, timeout_s=200.0)


def test_rank_makes_its_own_groups_only_and_roles_in_one_order(asked: dict[str, timedelta]) -> None:
    spec = rank_spec(
        Path("cache"),
        rank=2,
        world_size=4,
        groups={"world": ((0, 1, 2, 3),), "tp": ((0, 1), (2, 3)), "dp": ((0, 2), (1, 3))},
    )
    assert list(start.start_groups(spec, "gloo")) == ["world", "dp", "tp"]
    assert list(asked) == ["world", "[0, 2]", "[2, 3]"]


def test_hccl_times_out_by_the_launch_and_torch_s_watchdog_after_it(asked: dict[str, timedelta]) -> None:
    start.start_groups(SPEC, "hccl")
    assert (os.environ["HCCL_CONNECT_TIMEOUT"], os.environ["HCCL_EXEC_TIMEOUT"]) == ("200", "200")
    assert asked == {"world": timedelta(seconds=260), "[0]": timedelta(seconds=260)}


def test_port_that_another_process_has_taken_is_told_as_such(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spec = rank_spec(tmp_path, master_addr="127.0.0.1", master_port=taken.getsockname()[1])
        with pytest.raises(PortInUse, match="another process's now"):
            start.start_groups(spec, "gloo")
