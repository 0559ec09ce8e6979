"""How much memory do captured graphs hold with each of TorchAir's three ways of reusing it?

A function whose batch comes in 16 gears (1 to 16), compiled once and captured once for each gear, and the
same with a second function beside it. Each line is a fresh process; all results are compared with eager's.

* mode one: all functions of a configuration share a pool (``aclgraph_config.use_custom_pool``);
* mode two: all gears of a function share a pool (on unless ``disable_mempool_reuse_in_same_fx``);
* mode three: user inputs are copied into buffers of the pool (``debug.aclgraph.clone_input``).

``/ largest`` compares a line's pools with those of the largest gear captured alone under the same mode three;
``resident`` is by how much the process grew meanwhile, as a check that the bytes are real. Gears are captured
largest first, as a launch's capture plan does; one line shows what the other order costs.

Run: ``python benchmarks/memory.py [--small] [--json FILE]``. It takes three to five minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.memory_parts.process import SMALL, Modes, Shape, alone, measure  # noqa: E402 - also where nothing is installed
from benchmarks.running import arguments, child, machine, write  # noqa: E402 - likewise

MIB = 1 << 20
LIMIT = 1.1
LINES = {
    "one function": [
        Modes(),
        Modes(three=False),
        Modes(two=False),
        Modes(two=False, three=False),
        Modes(rising=True),
    ],
    "two functions": [
        Modes(functions=2, one=True),
        Modes(functions=2, one=True, three=False),
        Modes(functions=2),
        Modes(functions=2, two=False),
    ],
}


def main() -> None:
    """Run the comparison and print it."""
    parser = arguments(__doc__)
    parser.add_argument("--small", action="store_true", help="4 gears of a small model; seconds")
    parser.add_argument("--lines", default=",".join(LINES), help="which lines, with commas")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shape = SMALL if options.small else Shape()
    if options.child:
        run = alone if options.alone else measure
        print(json.dumps(run(Modes(**json.loads(options.child)), shape, options.cache)))
        return
    with tempfile.TemporaryDirectory() as cache:
        figures = compare(options, shape, cache)
    write(options, figures)


def compare(options: argparse.Namespace, shape: Shape, cache: str) -> dict[str, Any]:
    """Measure all, and print each line as soon as it is known."""
    place = machine("torch")
    figures: dict[str, Any] = {"place": place, "shape": asdict(shape), "lines": []}
    print(f"{place}\n{asdict(shape)}")
    alone_bytes = {three: measured(options, Modes(three=three), cache, "--alone") for three in (True, False)}
    figures["alone"] = {"cloned" if three else "not_cloned": sizes for three, sizes in alone_bytes.items()}
    gears = alone_bytes[True]
    print(f"largest gear alone: {gears[-1] / MIB:.2f} MiB; sum of all gears: {sum(gears) / MIB:.2f} MiB")
    heads = f"{'one':>5}{'two':>5}{'three':>6}{'graphs':>8}{'pools':>7}{'MiB':>9}{'/ largest':>11}"
    print(f"{'':<15}{heads}{'resident':>10}")
    compiled = {Modes(three=three).compiled_as() for three in alone_bytes}
    for title in options.lines.split(","):
        for modes in LINES[title]:
            if modes.compiled_as() not in compiled:  # no line's growth shall be that of a compiler
                measured(options, modes, cache)
                compiled.add(modes.compiled_as())
            item = {"modes": asdict(modes), **measured(options, modes, cache)}
            item["ratio"] = item["pool_bytes"] / alone_bytes[modes.three][-1]
            figures["lines"].append(item)
            report(title, modes, item)
    figures["met"] = all(item["ratio"] <= LIMIT for item in figures["lines"] if has_reuse(item["modes"]))
    print(f"with reuse at most {LIMIT} x the largest gear: {'met' if figures['met'] else 'MISSED'}")
    return figures


def has_reuse(modes: dict[str, Any]) -> bool:
    """Whether all graphs of a line are to lie in one pool, each over the others."""
    return (modes["one"] or (modes["two"] and modes["functions"] == 1)) and not modes["rising"]


def measured(options: argparse.Namespace, modes: Modes, cache: str, *more: str) -> Any:
    """Figures of one fresh process."""
    words = ("--child", json.dumps(asdict(modes)), "--cache", cache, *more)
    small = ["--small"] if options.small else []
    return child(__file__, *words, *small, what=str(modes), environ={"OMP_NUM_THREADS": "1"})


def report(title: str, modes: Modes, item: dict[str, Any]) -> None:
    """Print one line."""
    flags = "".join(f"{'on' if on else 'off':>{width}}" for on, width in ((modes.one, 5), (modes.two, 5)))
    order = "   smallest first" if modes.rising else ""
    print(
        f"{title:<15}{flags}{'on' if modes.three else 'off':>6}{item['captures']:>8}{item['num_pools']:>7}"
        f"{item['pool_bytes'] / MIB:>9.2f}{item['ratio']:>11.2f}{item['resident_bytes'] / MIB:>10.1f}{order}",
        flush=True,
    )


if __name__ == "__main__":
    main()
