"""``python -m tests.fuzz``: run pairs, print seeds of failures, replay and shrink one."""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.generate import MODES, trial
from tests.fuzz.program import Trial, source
from tests.fuzz.run import Runner, Servers, fuzz


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000, help="stop after so many pairs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program; the next ones follow")
    parser.add_argument("--mode", choices=MODES, default="", help="one mode only")
    parser.add_argument("--guards", choices=("once", "always", "skip"), default="", help="of cache_compile")
    parser.add_argument("--only", default="", metavar="KIND", help="programs with a part of that name")
    parser.add_argument("--jobs", type=int, default=1, help="programs at once")
    parser.add_argument("--replay", metavar="SEED[:PAIR]", help="run one seed again, and show it")
    parser.add_argument("--shrink", metavar="SEED:PAIR", help="make a failing pair small, and a script of it")
    parser.add_argument("--verbose", action="store_true", help="also misses that nothing asked for")
    options = parser.parse_args()

    def make(seed: int) -> Trial:
        return trial(seed, mode=options.mode, only=options.only)

    if options.shrink:
        from tests.fuzz.run import shrunk

        seed, _, number = options.shrink.partition(":")
        with Servers() as server:
            print(shrunk(make(int(seed)), int(number), server, guards=options.guards))
        return
    if options.replay:
        sys.exit(_replay(make, options.replay, options.guards))

    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(Servers()) for _ in range(options.jobs)]
        report = fuzz(
            itertools.count(options.seed),
            servers,
            pairs=options.pairs,
            seconds=options.seconds,
            guards=options.guards,
            make=make,
        )
    print("\n".join(report.summary()))
    if options.verbose:
        print("\n".join(f"useless miss: {name}" for name in report.missed))
    sys.exit(1 if report.bad else 0)


def _replay(make: Callable[[int], Trial], text: str, guards: str) -> int:
    seed, _, number = text.partition(":")
    made = make(int(seed))
    numbers = {int(number)} if number else None
    print(source(made.program))
    for index, pair in enumerate(made.pairs):
        if numbers is None or index in numbers:
            print(f"# pair {index}: {pair}")
    with Servers() as servers, tempfile.TemporaryDirectory() as directory:
        outcomes = Runner(servers, Path(directory), guards=guards).run(made, numbers)
    for outcome in outcomes:
        print(outcome.line(), outcome.detail, sep="\n")
    return int(any(outcome.bad for outcome in outcomes))


if __name__ == "__main__":
    main()
