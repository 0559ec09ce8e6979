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
the median of the differences within each round.

Run: ``python benchmarks/load.py [--layers 2,8,32] [--runs N] [--npugraph-ex DIRECTORY] [--json FILE]``. With
the defaults it takes 20 to 40 minutes on four cores; Inductor's cold compile of 32 layers alone takes
minutes. ``--layers 2 --runs 1`` takes two to five.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CODE = [str(ROOT / "src"), str(ROOT)]
sys.path[:0] = CODE

from benchmarks.load_parts.process import WAYS, measure  # noqa: E402 - also where nothing is installed
from benchmarks.load_parts.report import report, summary  # noqa: E402
from benchmarks.load_parts.ways import FILL, WARM, Task  # noqa: E402

LEAVES_NOTHING = ("eager", "mega_cache")  # ways with no filling process of their own


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", default="2,8,32", help="numbers of layers, with commas")
    parser.add_argument("--runs", type=int, default=5, help="warm processes of each way")
    parser.add_argument("--rounds", type=int, default=400, help="timed later calls in each process")
    parser.add_argument("--ways", default=",".join(WAYS), help="which ways, with commas")
    parser.add_argument("--dynamic", action="store_true", help="symbolic sizes, in every way")
    parser.add_argument("--npugraph-ex", default="", metavar="DIRECTORY", help="an unpacked torch_npu wheel")
    parser.add_argument("--json", type=Path)
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
    figures: dict[str, Any] = {"place": place(options), "layers": {}}
    print(figures["place"], flush=True)
    with tempfile.TemporaryDirectory() as bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        for number, layers in enumerate(map(int, options.layers.split(","))):
            options.layers = str(layers)
            found = compare(options, names, first=number == 0)
            figures["layers"][str(layers)] = {"runs": found, "summary": summary(found)}
            report(layers, figures["layers"][str(layers)]["summary"])
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


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
                found[f"{name}.{FILL}"] = [child(options, name, FILL, work)]
        for name in names if first else ():  # writes the bytecode that any installation has
            child(options, name, WARM, work)
        for _ in range(options.runs):
            for name in names:
                found.setdefault(f"{name}.{WARM}", []).append(child(options, name, WARM, work))
    return found


def child(options: argparse.Namespace, name: str, stage: str, work: str) -> dict[str, Any]:
    """Figures of one fresh process."""
    with tempfile.TemporaryDirectory() as scratch:
        options.stage, options.work, options.scratch = stage, Path(work), Path(scratch)
        command = [sys.executable, __file__, "--child", name, "--stage", stage, "--work", work]
        command += ["--scratch", scratch, "--layers", options.layers, "--rounds", str(options.rounds)]
        command += ["--npugraph-ex", options.npugraph_ex] + (["--dynamic"] if options.dynamic else [])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(CODE), "OMP_NUM_THREADS": "1"}
        environment |= WAYS[name]().environment(task_of(options))
        done = subprocess.run(
            command, env=environment, cwd=scratch, capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(f"{name}, {stage}, {options.layers} layers: exit status {done.returncode}\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def place(options: argparse.Namespace) -> dict[str, Any]:
    """Hardware, versions, and how the figures were taken."""
    from importlib.metadata import version

    return {
        **machine(),
        "threads": 1,
        "torch": version("torch"),
        "runs": options.runs,
        "rounds": options.rounds,
        "dynamic": options.dynamic,
    }


def machine() -> dict[str, Any]:
    """Hardware and versions that every figure depends on."""
    return {
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def cpu_model() -> str:
    """The processor's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    main()
