"""Ray Serve: replicas of the example's Llama, each two tensor-parallel ranks in a placement group.

    pip install 'ray[serve]'
    python -m warmrank.examples.serve_llama cluster_configs/llama-cpu.yaml --replicas 2 --add 1

It prints the time to the first answer of the first replica (cold, if the store is empty), of the others that
start with it, of one that Serve adds under load, and of a deployment that starts again.

A replica first asks the store for what its ranks need (``warmrank preseed --here``); where nothing is, it
launches inside its own placement group, and replicas that start beside it wait. So the first replica of a
model compiles, and every other one, on any node, loads. Its ranks may not compile (``WARMRANK_NO_COMPILE``):
one that would have to fails, and says why.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import serve
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

import warmrank
from warmrank.orchestrator.config.models import EntrypointWorkload
from warmrank.orchestrator.config.reading import Config, load
from warmrank.orchestrator.gang.launcher import free_port


class ServingRank:
    """One rank of a replica: a process that holds its part of the model.

    Args:
        rank: number of this rank in its replica, from 0.
        master: ``host:port`` where the replica's ranks meet.
        config: the launch's config: ranks, sizes of the model, cache directory.
    """

    def __init__(self, rank: int, master: str, config: Config) -> None:
        host, port = master.rsplit(":", 1)
        os.environ.update(
            RANK=str(rank), WORLD_SIZE=str(config.ranks), MASTER_ADDR=host, MASTER_PORT=port,
            TORCHAIR_CACHE_HOME=str(config.cache_dir), WARMRANK_NO_COMPILE="1",
        )  # fmt: skip
        import torch.distributed as dist

        from warmrank.examples import llama, llama_model, llama_weights

        dist.init_process_group("gloo")
        self._group = dist.new_group()
        # The launch calls the group that splits the model so; an artifact binds to the group of that role.
        warmrank.declare_groups({"tp": self._group})
        given = config.workload.arguments if isinstance(config.workload, EntrypointWorkload) else {}
        arguments: dict[str, Any] = dict(given)
        self._prompt_len = arguments.pop("prompt_len", 32)
        sizes = llama.sizes_from(arguments)
        self._model = llama_model.build_model(sizes, llama_weights.full_weights(sizes), group=self._group)

    def generate(self, num_tokens: int) -> list[list[int]]:
        """Tokens that follow the example's prompts, (batch, num_tokens)."""
        from warmrank.examples import llama

        prompt = llama.prompts(self._model.sizes.batch, self._prompt_len)
        tokens, _ = llama.generate(self._model, prompt, num_tokens, self._group)
        new: list[list[int]] = tokens[:, self._prompt_len :].tolist()
        return new


class Replica:
    """Bring this node's cache up to date, then start the ranks that answer.

    Args:
        config: config of the launch, with absolute paths.

    Raises:
        RuntimeError: the launch failed; its output is the message.
    """

    def __init__(self, config: Config) -> None:
        started = time.monotonic()
        group = get_current_placement_group()
        assert group is not None, "Serve starts this replica in a placement group"  # noqa: S101
        self._compiled, self._way = _warm(config, group.id.hex())
        self._warm_s = time.monotonic() - started
        address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        master = f"{address}:{free_port(address)}"
        actor: Any = ray.remote(ServingRank)
        self._ranks = []
        for rank in range(config.ranks):
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            started_rank = actor.options(num_cpus=1, scheduling_strategy=place).remote(rank, master, config)
            self._ranks.append(started_rank)

    def __call__(self, num_tokens: int) -> dict[str, Any]:
        """Continue the example's prompts by `num_tokens` bytes; with what it took to get warm."""
        answers = ray.get([rank.generate.remote(num_tokens) for rank in self._ranks])
        return {
            "tokens": answers[0],
            "replica": serve.get_replica_context().replica_id.unique_id,
            "way": self._way,
            "compiled": self._compiled,
            "warm_s": self._warm_s,
        }


class FirstLaunch:
    """The launch of a model: one for the whole cluster, in an actor that its replicas share by name."""

    def __init__(self) -> None:
        self._done = False

    def run(self, config: Config, group_id: str) -> int | None:
        """Launch in a placement group; artifacts that were compiled, or None if another replica's launch did.

        Raises:
            RuntimeError: the launch failed; its output is the message.
        """
        if self._done:
            return None
        inside = {"placement_group": group_id, "address": ray.get_runtime_context().gcs_address}
        settings = [word for key, value in inside.items() for word in ("--set", f"ray.{key}={value}")]
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory, "report.json")
            launched = _warmrank(config, "launch", *settings, "--json", str(report))
            if launched.returncode:
                raise RuntimeError(launched.stdout + launched.stderr)
            compiled: int = json.loads(report.read_text(encoding="utf-8"))["totals"]["num_compiled"]
        self._done = True
        return compiled


def _warm(config: Config, group_id: str) -> tuple[int, str]:
    """Artifacts that were compiled, and how this replica's node became warm: "preseed" or "launch"."""
    if _warmrank(config, "preseed", "--here").returncode == 0:
        return 0, "preseed"
    actor: Any = ray.remote(FirstLaunch)
    name = f"first launch of {config.name}"
    first = actor.options(name=name, get_if_exists=True, lifetime="detached", num_cpus=0).remote()
    compiled: int | None = ray.get(first.run.remote(config, group_id))
    if compiled is not None:
        return compiled, "launch"
    found = _warmrank(config, "preseed", "--here")
    if found.returncode:
        raise RuntimeError(found.stdout + found.stderr)
    return 0, "preseed"


def _warmrank(config: Config, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a command of warmrank with this config."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "launch.yaml")
        path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
        return subprocess.run(  # noqa: S603 - this package's own command
            [sys.executable, "-m", "warmrank", command, str(path), *options],
            check=False, capture_output=True, text=True,
        )  # fmt: skip


def application(config: Config, *, replicas: int, most: int) -> serve.Application:
    """The deployment: `replicas` replicas, up to `most` under load, each with one CPU for each rank."""
    deployment: Any = serve.deployment(
        Replica,
        name="llama",
        autoscaling_config={
            "min_replicas": replicas,
            "max_replicas": most,
            "target_ongoing_requests": 1,
            "upscale_delay_s": 1,
            "look_back_period_s": 2,
            "metrics_interval_s": 1,
        },
        ray_actor_options={"num_cpus": 0},
        placement_group_bundles=[{"CPU": 1}] * config.ranks,
        placement_group_strategy="STRICT_PACK",
    )
    bound: serve.Application = deployment.bind(config)
    return bound


def first_answers(
    handle: Any, known: set[str], *, num_new: int, num_tokens: int, at_once: int = 1
) -> Iterator[dict[str, Any]]:
    """The first answer of each of `num_new` replicas that are not `known` yet.

    Args:
        handle: the deployment's handle.
        known: ids of replicas; the new ones are added.
        num_new: replicas to wait for.
        num_tokens: bytes that each request asks for.
        at_once: requests at a time.
    """
    while num_new:
        for response in [handle.remote(num_tokens) for _ in range(at_once)]:
            answer = response.result()
            if answer["replica"] not in known and num_new:
                known.add(answer["replica"])
                num_new -= 1
                yield answer


def main() -> None:
    """Deploy, scale up, deploy again; print the time to the first answer of each replica."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--replicas", type=int, default=2, help="replicas of the first deployment")
    parser.add_argument("--add", type=int, default=1, help="replicas that are added later")
    parser.add_argument("--num-tokens", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the answers there, too")
    asked = parser.parse_args()
    # Relative paths of the config are this process's; `load` makes them absolute for the replicas.
    config = load(asked.config, tuple(asked.overrides))
    known: set[str] = set()
    answers: list[dict[str, Any]] = []
    joined = config.ray.address or os.environ.get("RAY_ADDRESS")
    ray.init(address=joined, num_cpus=None if joined else config.ray.num_cpus, log_to_driver=False)

    def answer(moment: str, handle: Any, num_new: int, at_once: int = 1) -> None:
        found = first_answers(handle, known, num_new=num_new, num_tokens=asked.num_tokens, at_once=at_once)
        answers.extend(
            {"moment": moment, "first_answer_s": time.monotonic() - started, **each} for each in found
        )

    most = asked.replicas + asked.add
    started = time.monotonic()
    handle = serve.run(application(config, replicas=asked.replicas, most=most), route_prefix=None)
    answer("start", handle, asked.replicas)
    started = time.monotonic()
    answer("added", handle, asked.add, at_once=4 * most)
    serve.delete("default")
    started = time.monotonic()
    handle = serve.run(application(config, replicas=1, most=1), route_prefix=None)
    answer("start again", handle, 1)
    serve.shutdown()  # type: ignore[no-untyped-call]
    print("replica        first answer   of it, to get warm   compiled   through")  # noqa: T201 - a script's output
    for each in answers:
        print(  # noqa: T201
            f"{each['moment']:<14} {each['first_answer_s']:10.1f} s {each['warm_s']:18.1f} s "
            f"{each['compiled']:10}   {each['way']}"
        )
    if asked.json:
        asked.json.write_text(json.dumps(answers, indent=1), encoding="utf-8")
    if len({json.dumps(each["tokens"]) for each in answers}) != 1:
        raise SystemExit("replicas disagree: " + json.dumps(answers))


if __name__ == "__main__":
    main()
