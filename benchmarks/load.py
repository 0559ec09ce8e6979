"""How long does a new process take to its first output, and what does a later call cost?

The decode step of the example's Llama, in a fresh process each time, with one thread; all ways in one run,
taking turns. The clock starts at the end of ``import torch``. It stands while the model is built and its
weights are made, which is the same work for all; every other import, compile and load counts, and a capture
where the first call makes one. warmrank's second call does, so it is timed by itself. Later calls take turns
with eager ones in the same process, so noise falls on both alike; gradients are off. Every first output is
compared with eager's. Ratios are what counts; absolute seconds are this machine's.

Ways: eager; ``torch.compile`` (Inductor) with empty caches, and with its FX-graph and AOTAutograd caches
filled by an earlier process; Mega-Cache into an empty cache directory; ``aot_compile``, loaded; npugraph_ex's
``cache_compile`` on an emulated NPU, from a ``torch_npu`` wheel that was unpacked somewhere
(``--npugraph-ex``; nothing of it is installed); warmrank's ``cache_compile`` in both modes.

The *bare kernel* is what a call would cost without warmrank: the captured graph's ``replay()`` in mode
reduce-overhead, the compiled package on inputs that are ready in mode max-autotune. What a call adds to it is
the median of the differences within each round. How much of that goes into guards (is the process's state,
are arguments, objects and tensors as they were?) is measured in further rounds, in which each look is timed.

Run: ``python benchmarks/load.py [--layers 2,8,32] [--runs N] [--npugraph-ex DIRECTORY] [--json FILE]``. With
the defaults it takes 20 to 40 minutes on four cores; Inductor's cold compile of 32 layers alone takes
minutes. ``--layers 2 --runs 1`` takes two to five.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.load_parts.process import measure  # noqa: E402 - also where nothing is installed
from benchmarks.load_parts.report import report, summary  # noqa: E402 - likewise
from benchmarks.load_parts.ways import FILL, WARM, WAYS, Task  # noqa: E402 - likewise
from benchmarks.running import arguments, child, machine, write  # noqa: E402 - likewise

LEAVES_NOTHING = ("eager", "mega_cache")  # ways with no filling process of their own


def main() -> None:
    """Run the comparison and print it."""
    parser = arguments(__doc__)
    parser.add_argument("--layers", default="2,8,32", help="numbers of layers, with commas")
    parser.add_argument("--runs", type=int, default=5, help="warm processes of each way")
    parser.add_argument("--rounds", type=int, default=400, help="timed later calls in each process")
    parser.add_argument("--ways", default=",".join(WAYS), help="which ways, with commas")
    parser.add_argument("--dynamic", action="store_true", help="symbolic sizes, in every way")
    parser.add_argument("--npugraph-ex", default="", metavar="DIRECTORY", help="an unpacked torch_npu wheel")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, task_of(options))))
        return
    names = options.ways.split(",")
    if unknown := [name for name in names if name not in WAYS]:
        parser.error(f"unknown ways {', '.join(unknown)}; known: {', '.join(WAYS)}")
    how = {"runs": options.runs, "rounds": options.rounds, "dynamic": options.dynamic}
    place = machine("torch", threads=1, **how)
    figures: dict[str, Any] = {"place": place, "layers": {}}
    print(figures["place"], flush=True)
    with tempfile.TemporaryDirectory() as bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        for number, layers in enumerate(map(int, options.layers.split(","))):
            options.layers = str(layers)
            found = compare(options, names, first=number == 0)
            figures["layers"][str(layers)] = {"runs": found, "summary": summary(found)}
            report(layers, figures["layers"][str(layers)]["summary"])
    write(options, figures)


def task_of(options: argparse.Namespace) -> Task:
    """What this process, a child, has to do."""
    return Task(
        stage=options.stage,
        work=options.work,
        scratch=options.scratch,
        layers=int(options.layers),
        dynamic=options.dynamic,
        rounds=options.rounds,
        npugraph_ex=options.npugraph_ex,
    )


def compare(options: argparse.Namespace, names: list[str], *, first: bool) -> dict[str, list[dict[str, Any]]]:
    """Figures of every process, by way and stage: all fill once, then all are warm in turn."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            if name not in LEAVES_NOTHING:
                found[f"{name}.{FILL}"] = [measured(options, name, FILL, work)]
        for name in names if first else ():  # writes the bytecode that any installation has
            measured(options, name, WARM, work)
        for _ in range(options.runs):
            for name in names:
                found.setdefault(f"{name}.{WARM}", []).append(measured(options, name, WARM, work))
    return found


def measured(options: argparse.Namespace, name: str, stage: str, work: str) -> dict[str, Any]:
    """Figures of one fresh process."""
    with tempfile.TemporaryDirectory() as scratch:
        options.stage, options.work, options.scratch = stage, Path(work), Path(scratch)
        words = ["--child", name, "--stage", stage, "--work", work, "--scratch", scratch]
        words += ["--layers", options.layers, "--rounds", str(options.rounds)]
        words += ["--npugraph-ex", options.npugraph_ex] + (["--dynamic"] if options.dynamic else [])
        environ = {"OMP_NUM_THREADS": "1", **WAYS[name]().environment(task_of(options))}
        what = f"{name}, {stage}, {options.layers} layers"
        figures: dict[str, Any] = child(__file__, *words, what=what, environ=environ, cwd=Path(scratch))
    return figures


if __name__ == "__main__":
    main()
