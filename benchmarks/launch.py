"""What does a launch cost, cold and warm, beside the same processes without it?

1, 2, 4 and 8 equal ranks (data parallel) of the example's Llama in mode reduce-overhead, on a Ray that is
started for each way anew, as a local launch does. Every way is a fresh driver process with as many Ray actors
as ranks, and is timed from the start of that process to its end; all ways take turns. Ratios are what counts.

    cold     a launch into an empty cache and an empty store: one rank of the class compiles, another one
             traces as well (audit: one), the others adopt
    unaudited   the same, with audit: off
    warm     the same launch again: every rank loads
    node     the same launch with an empty cache directory: everything comes from the store
    build    a plain Ray program with as many actors, under the same options and environment variables: import
             torch, build the same model, and nothing else
    groups   the same, and a process group of all ranks, without which no distributed model can be built; a
             launch makes it too
    fx       instead of warmrank: every rank compiles for itself (``torch.compile``), with Inductor's caches
             in one directory, filled by a run before
    shared   instead of the driver: every rank calls ``cache_compile``, all in one cache directory: the first
             time (cold) and the next

Compile CPU seconds are those of all ranks' processes while the stage compile lasts, whoever of them works,
read from ``/proc`` by the driver; waiting costs none. So they tell how often something was compiled where
wall seconds on a few cores would not. What the audit adds is told beside them: wall seconds of the stage and
CPU seconds of all ranks in it, with audit and without.

Goals: compile CPU seconds of all ranks, unaudited, at most 1.2 times one rank's; a warm launch at most 1.1
times the program that does nothing (``build``).

Run: ``python benchmarks/launch.py [--ranks 1,2,4,8] [--layers L] [--runs N] [--without fx,shared]
[--quick] [--json FILE]``. The defaults take 15 to 30 minutes on four cores, ``--quick`` about one.
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

from benchmarks.launch_parts.report import report, summary  # noqa: E402 - also where nothing is installed
from benchmarks.running import arguments, child, machine, write  # noqa: E402 - likewise

LAUNCHES = ("cold", "unaudited", "warm", "node")
WARM_WAYS = ("warm", "build", "groups")  # those whose wall seconds are compared, so most often repeated
_CHILD_LIMIT_S = 600


def main() -> None:
    """Run all ways in turn and print the comparison."""
    parser = arguments(__doc__)
    parser.add_argument("--ranks", default="1,2,4,8", help="numbers of ranks, with commas")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3, help="of warm and its baselines; the others run once")
    parser.add_argument("--without", default="", help="ways to leave out, with commas: node, fx, shared")
    parser.add_argument("--quick", action="store_true", help="one and two ranks, two layers, one run")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cache", default="cache", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.ranks, options.layers, options.runs = "1,2", 2, 1
    if options.child:
        print(json.dumps(measure(options)))
        return
    figures: dict[str, Any] = {
        "place": machine("torch", "ray", layers=options.layers, runs=options.runs),
        "runs": [],
    }
    print(figures["place"], flush=True)
    with tempfile.TemporaryDirectory() as work:
        for number in map(int, options.ranks.split(",")):
            figures["runs"] += compare(options, number, Path(work))
            figures["summary"] = summary(figures["runs"])
            write(options, figures)  # after each size, for the last ones take longest
    report(figures["summary"])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """What this process, a child, has to do."""
    ranks, layers = int(options.ranks), options.layers
    if options.child in LAUNCHES:
        from benchmarks.launch_parts import ours

        audit = "off" if options.child == "unaudited" else "one"
        return ours.run(options.work, options.cache, ranks=ranks, layers=layers, audit=audit)
    from benchmarks.launch_parts import alone

    alone.check_imports()
    return alone.run(options.work, options.child, ranks=ranks, layers=layers)


def compare(options: argparse.Namespace, ranks: int, work: Path) -> list[dict[str, Any]]:
    """Figures of all ways at one number of ranks, in the order in which they ran."""
    own = work / str(ranks)
    own.mkdir()
    apart = own / "unaudited"
    apart.mkdir()
    found = [timed(options, "unaudited", ranks, apart), timed(options, "cold", ranks, own)]
    for number in range(options.runs):
        # The first to run finds other files in memory than the last, so each is first in its turn.
        turn = number % len(WARM_WAYS)
        found += [timed(options, way, ranks, own) for way in (*WARM_WAYS[turn:], *WARM_WAYS[:turn])]
    left_out = options.without.split(",")
    if "node" not in left_out:
        found.append(timed(options, "node", ranks, own, cache="fresh"))
    for way in (way for way in ("fx", "shared") if way not in left_out):
        found += [{**timed(options, way, ranks, own), "way": f"{way} {state}"} for state in ("cold", "warm")]
    return found


def timed(
    options: argparse.Namespace, way: str, ranks: int, work: Path, *, cache: str = "cache"
) -> dict[str, Any]:
    """Figures of one way in a fresh process."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode beside it
    words = ("--child", way, "--ranks", ranks, "--work", work, "--layers", options.layers, "--cache", cache)
    quiet = {"RAY_USAGE_STATS_ENABLED": "0"}
    what = f"{way}, {ranks} ranks"
    figures = child(__file__, *words, what=what, environ=quiet, cwd=work, limit_s=_CHILD_LIMIT_S)
    print(f"{ranks} ranks, {way}: {figures['wall_s']:.1f} s", file=sys.stderr, flush=True)
    return {"ranks": ranks, "way": way, **figures}


if __name__ == "__main__":
    main()
