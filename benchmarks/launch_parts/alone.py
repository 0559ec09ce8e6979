"""The same processes without warmrank's driver: a plain Ray program, with actors as a launch has them.

The same number of actors on a Ray started with the same options, under the same environment variables; they
import torch and build the same model. What they do besides depends on the way:

    build    nothing
    groups   they also meet: a process group of all ranks, on gloo, as every launch makes one
    fx       as groups; they call both functions through ``torch.compile``, with one cache directory of
             Inductor, whose FX-graph and AOTAutograd caches serve all that come after the first
    shared   as groups; they call both functions through ``cache_compile``, with one cache directory

Imports nothing of the orchestrator, so that the driver of a user's own program takes no longer than it must.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

WAYS = ("build", "groups", "fx", "shared")
_OBJECT_STORE_BYTES = 128 << 20  # as in `orchestrator.gang.ray_session`
_TIMEOUT_S = 600


class Rank:
    """One actor; torch is imported only after the environment is set."""

    def __init__(self, environ: dict[str, str]) -> None:
        os.environ.update(environ)

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def work(self, way: str, task: dict[str, Any]) -> dict[str, float]:
        """Do what the way says; CPU seconds of this process so far, and of what came after building."""
        import torch

        from benchmarks.launch_parts.model import build, cpu_s

        if way != "build":
            import torch.distributed as dist

            dist.init_process_group(
                "gloo", init_method=task["meeting"], rank=task["rank"], world_size=task["ranks"]
            )
        model = build(task["layers"], torch.device("cpu"))
        built_s = cpu_s(os.getpid())
        began = perf_counter()
        if way in ("fx", "shared"):
            _call_all(way, model)
        return {
            "cpu_s": cpu_s(os.getpid()),
            "after_build_cpu_s": cpu_s(os.getpid()) - built_s,
            "after_build_s": perf_counter() - began,
        }


def _call_all(way: str, model: Any) -> None:
    import torch

    from benchmarks.launch_parts.model import calls

    with torch.no_grad():
        for name, args in calls(torch.device("cpu")):
            function = (
                getattr(model, f"cached_{name}") if way == "shared" else torch.compile(getattr(model, name))
            )
            function(*args)


def run(work: Path, way: str, *, ranks: int, layers: int) -> dict[str, Any]:
    """Start Ray and the actors, let them work, and end Ray; what it took."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    import ray

    with tempfile.TemporaryDirectory(prefix="wrb-", dir="/tmp") as temp_dir:
        ray.init(
            "local",
            num_cpus=ranks,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            _temp_dir=f"{temp_dir}/r",
        )
        try:
            answers = _answers(work, way, ranks, layers)
        finally:
            ray.shutdown()
    return {
        "driver_cpu_s": process_time(),
        "ranks_cpu_s": sum(answer["cpu_s"] for answer in answers),
        "after_build_cpu_s": sum(answer["after_build_cpu_s"] for answer in answers),
        "after_build_s": max(answer["after_build_s"] for answer in answers),
    }


def _answers(work: Path, way: str, ranks: int, layers: int) -> list[dict[str, float]]:
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": 1}] * ranks, strategy="PACK")
    ray.get(group.ready(), timeout=_TIMEOUT_S)
    actors: list[Any] = [
        ray.remote(Rank)
        .options(
            num_cpus=1,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            max_restarts=0,
        )
        .remote(_environ(work, way))
        for index in range(ranks)
    ]
    ray.get([actor.pid.remote() for actor in actors], timeout=_TIMEOUT_S)
    task = {"layers": layers, "ranks": ranks, "meeting": f"tcp://127.0.0.1:{_free_port()}"}
    answers: list[dict[str, float]] = ray.get(
        [actor.work.remote(way, {**task, "rank": rank}) for rank, actor in enumerate(actors)],
        timeout=_TIMEOUT_S,
    )
    for actor in actors:
        ray.kill(actor)
    return answers


def _environ(work: Path, way: str) -> dict[str, str]:
    # As a launch sets them (`orchestrator.gang.ray_session.rank_environ`).
    environ = {"OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    if way == "fx":
        environ["TORCHINDUCTOR_CACHE_DIR"] = str(work / "inductor")
    if way == "shared":
        environ["TORCHAIR_CACHE_HOME"] = str(work / "shared")
    return environ


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    return port


def check_imports() -> None:
    """Raise where this program would pay for what a user's own would not import."""
    if heavy := {"torch", "pydantic"} & sys.modules.keys():
        raise RuntimeError(f"the driver of the plain program imported {', '.join(sorted(heavy))}")
