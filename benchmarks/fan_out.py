"""How long does it take to bring a launch to all nodes, from the store and from node to node?

Real Ray nodes in network namespaces of this machine, so root is needed, each with a link of its own; the
store is an S3 server on a node more, behind a link of its own too. All links are limited by the kernel
(``tc`` tbf), and nodes are seeded by ``warmrank preseed``, each time into an empty directory:

    never    every node reads everything from the store; once, for the last shape
    always   fan-out: one node reads everything, and shares it
    before   fan-out of another checkout, named by ``--before``

once with many blobs of all sizes, and once with a single large one, which one node alone has to read. Each
way is timed without its start: from its wall seconds those of the same command are taken off that finds
everything there. The limit is that of physics: every node has to receive all bytes over its link, and the
store to send them once. ``most sent`` tells whether one node does all the work, in times of all bytes.

Run: ``python benchmarks/fan_out.py [--nodes N] [--mbytes M] [--link MBIT] [--store MBIT] [--before DIR]
[--runs N] [--quick] [--json FILE]``. The defaults take about ten minutes; ``--quick`` three.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.running import arguments, machine, write  # noqa: E402 - also where nothing is installed
from tests.support.netns import Node, why_not  # noqa: E402 - likewise
from tests.support.netns_cluster import Cluster, CountingStore, ray_nodes  # noqa: E402 - likewise
from tests.support.s3_server import ENVIRONMENT  # noqa: E402 - likewise

STORE_INDEX = 200
LIMIT_S = 600.0
SHAPES = {"many": 24, "one": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A cluster and its store.

    Attributes:
        cluster: the Ray nodes.
        switch: where the links' counters are.
        store: the S3 server.
        store_node: the node that it runs on.
        options: those of the command line.
    """

    cluster: Cluster
    switch: Node
    store: CountingStore
    store_node: Node
    options: argparse.Namespace


def main() -> None:
    """Run all ways in turn and print the comparison."""
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--mbytes", type=int, default=64, help="of blobs in all")
    parser.add_argument("--link", type=int, default=40, help="Mbit/s of each node")
    parser.add_argument("--store", type=int, default=40, help="Mbit/s of the store")
    parser.add_argument("--shapes", default="many,one")
    parser.add_argument(
        "--before", type=Path, help="a checkout of an earlier version, whose fan-out runs too"
    )
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="three nodes, 12 MB, one run")
    parser.add_argument("--fill", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        fill(Path(options.fill[0]), json.loads(options.fill[1]))
        return
    if reason := why_not():
        print(f"cannot run here: {reason}")
        return
    if options.quick:
        options.nodes, options.mbytes, options.runs = 3, 12, 1
    figures: dict[str, Any] = {"place": machine(), "options": {k: str(v) for k, v in vars(options).items()}}
    figures["limit_s"] = options.mbytes * 8 / min(options.link, options.store)
    figures["runs"] = run_all(options)
    print(table(figures), flush=True)
    write(options, figures)


def run_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every way of every shape; one cluster for each version of the code."""
    runs: list[dict[str, Any]] = []
    with bench(options, ROOT) as here:
        for shape in options.shapes.split(","):
            config = stored(here, shape)
            runs += (measure(here, config, shape, "always", number) for number in range(options.runs))
        runs.append(measure(here, config, shape, "never", 0))  # all read all, in whatever pieces
    if options.before:
        with bench(options, options.before.resolve()) as before:
            for shape in options.shapes.split(","):
                config = stored(before, shape)
                runs += (measure(before, config, shape, "before", number) for number in range(options.runs))
    return runs


@contextlib.contextmanager
def bench(options: argparse.Namespace, code: Path) -> Iterator[Bench]:
    """A cluster that runs the code of a checkout, and a store, without limits yet."""
    environ = {**ENVIRONMENT, "PYTHONPATH": f"{code / 'src'}:{code}"}
    with ray_nodes(options.nodes, num_cpus=1, environ=environ) as cluster:
        node = cluster.net.add("store", STORE_INDEX)
        store = CountingStore(node, cluster.net.base / "requests.log", {**cluster.environ})
        yield Bench(cluster=cluster, switch=cluster.net.switch, store=store, store_node=node, options=options)


def stored(here: Bench, shape: str) -> Path:
    """The config of a launch that the store has, made on the store's node."""
    config = here.cluster.config(shape, ranks=1, parallel={"tp": 1, "dp": 1}, store=here.store.config(shape))
    sizes = sizes_of(SHAPES[shape], here.options.mbytes * 10**6)
    script = here.store_node.popen(
        *(sys.executable, str(Path(__file__).resolve()), "--fill", str(config), json.dumps(sizes)),
        output=here.cluster.net.base / f"fill-{shape}.log",
        environ=here.cluster.environ,
        cwd=here.cluster.shared,
    )
    if script.wait(LIMIT_S):
        sys.exit((here.cluster.net.base / f"fill-{shape}.err").read_text())
    return config


def sizes_of(count: int, size_bytes: int) -> list[int]:
    """Sizes of blobs, the largest eight times the smallest."""
    weights = [8 ** (number / max(1, count - 1)) for number in range(count)]
    return [int(size_bytes * weight / sum(weights)) for weight in weights]


def fill(config_file: Path, sizes: list[int]) -> None:
    """Publish a launch of one rank whose artifacts have these sizes."""
    from tests.support.stored import CREATED, make_partition, make_record
    from warmrank.orchestrator.config.models import identity, launch_key
    from warmrank.orchestrator.config.reading import load
    from warmrank.orchestrator.seed.seeding import check_store
    from warmrank.orchestrator.stores import open_store
    from warmrank.worker.keys.request import environment

    config = load(config_file)
    work = Path.cwd() / f"work-{config.name}"
    store, here = open_store(check_store(config)), environment()
    functions = {f"Model.f{n}": random.Random(n).randbytes(size) for n, size in enumerate(sizes)}  # noqa: S311 - the same each time
    manifest = make_partition(work, world_size=1, environment=here, functions=functions)
    ref = store.publish_partition(launch_key(config), manifest, work).ref
    record = make_record((ref,), launch_key=launch_key(config), environment=here, created=CREATED)
    store.commit_launch(record.model_copy(update={"identity": identity(config)}))


def measure(here: Bench, config: Path, shape: str, way: str, number: int) -> dict[str, Any]:
    """Seed all nodes in one way; seconds without the start, and what went over the links."""
    fan_out = "never" if way == "never" else "always"
    directory = here.cluster.net.disk / f"{shape}-{way}-{number}"
    words = (str(config), "--set", f"cache_dir={directory}", "--fan-out", fan_out)
    nodes = [node for name, node in here.cluster.net.nodes.items() if name != "store"]
    with contextlib.ExitStack() as limits:
        for node in nodes:
            limits.enter_context(here.cluster.net.throttled(node, f"{here.options.link}mbit"))
        limits.enter_context(here.cluster.net.throttled(here.store_node, f"{here.options.store}mbit"))
        before = sent(here)
        wall_s, seeds = preseed(here.cluster, *words)
        after = sent(here)
        start_s, _ = preseed(here.cluster, *words)
    moved = {link: after[link] - before[link] for link in before}
    num_bytes = here.options.mbytes * 10**6
    run = {
        "shape": shape,
        "way": way,
        "seconds": wall_s - start_s,
        "wall_s": wall_s,
        "node_s": sorted(round(seed["seconds"], 1) for seed in seeds),
        "store_sent": moved[here.store_node.link] / num_bytes,
        "most_sent": max(moved[node.link] for node in nodes) / num_bytes,
        "from_store": sum(seed["bytes_from_store"] for seed in seeds) / num_bytes,
        "num_spilled": spilled(nodes),
        "reasons": sorted({seed["reason"] for seed in seeds}),
    }
    print(run, flush=True)
    return run


def preseed(cluster: Cluster, *words: str) -> tuple[float, list[dict[str, Any]]]:
    """Wall seconds of a preseed, and what became of the nodes, all of which are seeded."""
    ended = cluster.warmrank("preseed", *words, "--json", timeout_s=LIMIT_S)
    if ended.exit_code:
        sys.exit(ended.said)
    return ended.seconds, json.loads(ended.output)


def sent(here: Bench) -> dict[str, int]:
    """Bytes that each node has sent so far, by its link at the switch."""
    links = json.loads(here.switch.run("ip", "-s", "-j", "link", "show").stdout)
    return {link["ifname"]: link["stats64"]["rx"]["bytes"] for link in links}


def spilled(nodes: list[Node]) -> int:
    """How often a node's object store was too small, so that Ray wrote of it to the disk."""
    logs = (log for node in nodes for log in node.disk.glob("r/session_*/logs/raylet.out"))
    return sum(log.read_text(errors="replace").count("Spilled ") for log in logs)


def table(figures: dict[str, Any]) -> str:
    """The comparison, as text."""
    lines = ["shape  way      seconds  / limit  store sent  most sent  from store"]
    for shape, way in dict.fromkeys((run["shape"], run["way"]) for run in figures["runs"]):
        runs = [run for run in figures["runs"] if (run["shape"], run["way"]) == (shape, way)]

        def median(name: str, runs: list[dict[str, Any]] = runs) -> float:
            return float(statistics.median(run[name] for run in runs))

        lines.append(
            f"{shape:6} {way:8} {median('seconds'):7.1f} {median('seconds') / figures['limit_s']:8.2f}"
            f" {median('store_sent'):11.2f} {median('most_sent'):10.2f} {median('from_store'):11.2f}"
        )
    lines.append(f"limit: {figures['limit_s']:.1f} s; the last three columns in times of all bytes")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
