"""How do plan, commit and look-up of a launch grow with the number of its ranks?

From 16 to 16,384 ranks, four times as many each time, without any process for them. What they would answer
is made up (`scale_parts/world.py`) and given to the real planner; their manifests are real and signed, and go
into a real store in a directory. Tensor parallel 8, pipeline 4, data parallel the rest: four classes of ranks
for each of two functions. torch is never imported; each stage checks that.

    plan      begin to end of a cold launch in which every other rank refuses its leader's artifact, of a warm
              one, and of one of another size; and the order of captures
    hand-out  what the driver sends to every rank so that it comes up: as bytes, and there taken apart again
    commit    all manifests sealed, signed, stored and made durable, in one go; the driver looks at each of
              them again, then the launch record
    look-up   what a warm launch asks: a new node finds the record and its ranks' manifests, and copies; the
              same again; and the driver checks that all manifests of the record still stand
    calls     with --calls: all calls of a cold launch to all ranks, in a dozen stages, as the driver makes
              them through a real Ray; a few processes stand for all nodes (`scale_parts/calling.py`)
    resized   what a node of a launch of another size asks: the distinct artifacts of all manifests

Every stage of every size runs in a process of its own, so that its peak memory is its own. The exponent is
that of the growth of CPU seconds since the size before: 1.0 is linear. (Of wall seconds it would say what
else the machine does.) It says little below 1,024 ranks, where what does not grow takes most of the time. In
a launch the manifests come from as many processes as there are ranks, side by side; here one process makes
them all, so the commit is an upper limit.

Goal: at most linear, and plan, commit and look-up together under 10 s at 16,384 ranks; with --calls, at
most 30 CPU seconds for all calls.

Run: ``python benchmarks/scale.py [--ranks 16,64,...] [--runs N] [--work DIRECTORY] [--json FILE]``; the
defaults take about two minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.running import arguments, child, machine, write  # noqa: E402 - also where nothing is installed
from benchmarks.scale_parts.report import report, summary, verdict  # noqa: E402 - likewise

RANKS = (16, 64, 256, 1024, 4096, 16384)
CALLS = "calls"
STAGES = ("plan", "hand-out", "commit", "look-up", "resized")


def main() -> None:
    """Measure every stage at every size, and print how it grows."""
    parser = arguments(__doc__)
    parser.add_argument("--ranks", default=",".join(map(str, RANKS)), help="sizes, with commas")
    parser.add_argument("--runs", type=int, default=3, help="how often; the fastest of each stage counts")
    parser.add_argument("--work", type=Path, help="where to write; by default the temporary directory")
    parser.add_argument("--calls", action="store_true", help="measure the driver's calls as well")
    parser.add_argument("--child", choices=(*STAGES, CALLS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        from benchmarks.scale_parts.process import measure

        print(json.dumps(measure(options.child, int(options.ranks), options.work)))
        return
    figures: dict[str, Any] = {"place": machine("pydantic", "cryptography", runs=options.runs), "runs": []}
    print(figures["place"], flush=True)
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        for ranks in map(int, options.ranks.split(",")):
            stages = (*STAGES, CALLS) if options.calls else STAGES
            figures["runs"] += [one_run(ranks, work, stages) for _ in range(options.runs)]
            figures["summary"] = summary(figures["runs"], stages)
            report(figures["summary"], ranks)
    figures["verdict"] = verdict(figures["summary"])
    for line in figures["verdict"].values():
        print(line["text"])
    write(options, figures)


def one_run(ranks: int, work: str, stages: Sequence[str]) -> dict[str, Any]:
    """Figures of all stages at one size; each goes on with the store that the one before left.

    What it writes stays until all runs are over: for minutes ext4 takes no inode that was deleted, and steps
    over each of them for every new file, so a run after a deletion would take several times as long.
    """
    store = tempfile.mkdtemp(dir=work)
    words = ("--ranks", ranks, "--work", store)
    return {
        "ranks": ranks,
        "stages": {
            stage: child(__file__, "--child", stage, *words, what=f"{stage}, {ranks} ranks")
            for stage in stages
        },
    }


if __name__ == "__main__":
    main()
