"""How long does an offline build of a large cluster take, against the compiles that it cannot do without?

The example's Llama in pipeline stages (`examples/llama_stage.py`), split over tensor-parallel ranks: 1,024
ranks, tensor parallel 8, pipeline 4, so four classes of ranks, on one machine, into an empty store in a
directory. Beside it each stage is compiled by one rank alone, in a fresh process that has imported the tracer
already, with real tensors, as a launch's leader would; their sum is what one process would compile.

Goal: the build takes no longer than these compiles together and 10 ms for each rank. Ratios are what counts;
absolute seconds are this machine's. Classes compile side by side, so more processors take less.

Run: ``python benchmarks/build.py [--ranks N] [--tp T] [--pp P] [--layers L] [--json FILE]``; the defaults
take less than a minute on four cores.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.running import arguments, child, machine, write  # noqa: E402 - also where nothing is installed

MS_PER_RANK = 10.0


def main() -> None:
    """Build, compile each stage alone, and print the comparison."""
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--tp", type=int, default=8, help="tensor-parallel size")
    parser.add_argument("--pp", type=int, default=4, help="pipeline-parallel size: the number of classes")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--child", type=int, metavar="RANK", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        if options.child is not None:
            print(json.dumps(compile_alone(options, options.child, work)))
            return
        figures = {
            "place": machine(
                "torch", **{name: getattr(options, name) for name in ("jobs", "ranks", "tp", "pp", "layers")}
            ),
            "alone_s": [alone(options, stage * options.tp) for stage in range(options.pp)],
            **built(options, work),
        }
    figures |= verdict(options, figures)
    report(figures)
    write(options, figures)


def config_of(options: argparse.Namespace, work: str) -> Any:
    """The launch that is built for."""
    from warmrank.orchestrator.config.reading import parse

    return parse(
        {
            "workload": {
                "entrypoint": "warmrank.examples.llama_stage:workload",
                "arguments": {
                    "layers": options.layers,
                    "dim": options.dim,
                    "heads": 2 * options.tp,
                    "kv_heads": options.tp,
                    "hidden": 16 * options.tp,
                },
            },
            "ranks": options.ranks,
            "parallel": {
                "tp": options.tp,
                "pp": options.pp,
                "dp": options.ranks // (options.tp * options.pp),
            },
            "cache_dir": f"{work}/cache",
            "store": {"path": f"{work}/store", "trust": {"policy": "off"}},
        }
    )


def built(options: argparse.Namespace, work: str) -> dict[str, Any]:
    """Figures of the build."""
    from warmrank.orchestrator.build.driver import BuildOptions, build
    from warmrank.orchestrator.build.plan import target_here

    started = perf_counter()
    found = build(config_of(options, work), BuildOptions(target=target_here(), num_jobs=options.jobs))
    return {
        "total_s": perf_counter() - started,
        "stages_s": {stage.stage: stage.seconds for stage in found.stages},
        "num_classes": found.totals.num_classes,
        "num_compiled": found.totals.num_compiled,
        "num_partitions": found.totals.num_partitions_new,
        "rank_ms": found.totals.rank_ms,
    }


def alone(options: argparse.Namespace, rank: int) -> float:
    """Seconds in which one rank compiles its stage, in a process of its own."""
    names = ("ranks", "tp", "pp", "layers", "dim")
    sizes = [text for name in names for text in (f"--{name}", str(getattr(options, name)))]
    return float(child(__file__, "--child", rank, *sizes, what=f"rank {rank}"))


def compile_alone(options: argparse.Namespace, rank: int, work: str) -> float:
    """Seconds of the compile of one rank's functions in this process."""
    from warmrank.orchestrator.build.ranks import offline_placement
    from warmrank.orchestrator.gang.rank_host import init_of
    from warmrank.worker.keys.request import environment
    from warmrank.worker.rank.offline import OfflineRank
    from warmrank.worker.settings import Target
    from warmrank.worker.torch_private.fake_ranks import import_tracer

    import_tracer()
    machines = Target(device_kind="cpu", environment=environment())
    config = config_of(options, work)
    spec = init_of(config, offline_placement(config, rank)).spec
    alone = OfflineRank(spec, machines=machines, real_tensors=True)
    alone.start()
    functions = alone.build()
    started = perf_counter()
    results = alone.compile(functions)
    seconds = perf_counter() - started
    alone.stop()
    if not all(result.outcome == "compiled" for result in results):
        sys.exit(f"rank {rank}: {results}")
    return seconds


def verdict(options: argparse.Namespace, figures: dict[str, Any]) -> dict[str, Any]:
    """The build against the compiles, and against the goal."""
    compiles_s = sum(figures["alone_s"])
    allowed_s = compiles_s + MS_PER_RANK / 1000 * options.ranks
    return {
        "compiles_s": compiles_s,
        "allowed_s": allowed_s,
        "of_compiles": figures["total_s"] / compiles_s,
        "of_allowed": figures["total_s"] / allowed_s,
    }


def report(figures: dict[str, Any]) -> None:
    """Print the figures as lines."""
    print(figures["place"])
    stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in figures["stages_s"].items())
    print(f"compiles alone:        {figures['compiles_s']:.2f} s in {len(figures['alone_s'])} stages")
    print(f"build:                 {figures['total_s']:.2f} s ({stages})")
    print(f"classes, compiled:     {figures['num_classes']}, {figures['num_compiled']}")
    print(f"build / compiles:      {figures['of_compiles']:.2f}")
    met = "met" if figures["of_allowed"] <= 1 else "MISSED"
    print(f"build / goal:          {figures['of_allowed']:.2f} ({met}: at most 1)")
    print(f"beyond the compiles:   {figures['rank_ms']:.2f} ms a rank")


if __name__ == "__main__":
    main()
