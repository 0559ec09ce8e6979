"""Which changes between two processes make TorchAir load the wrong graph, and which warmrank?

Each case of `tests.fuzz.parts.stale` that concerns TorchAir: a first process compiles a model and fills a
cache directory; then one thing is changed, and a second process runs the same function on a copy of that
directory. TorchAir's own ``cache_compile`` and warmrank's with engine ``torchair`` do it in turn, in modes
reduce-overhead and npugraph_ex, with the real torch_npu package on the emulated NPU. Results of three calls,
caches and buffers are compared with eager's (or a fresh compile's, where eager knows nothing of the change).

Run: ``.venv-npu/bin/python benchmarks/stale_matrix.py [--markdown] [--only PATTERN] [--json FILE]``, after
``make test-npu`` has made that environment. It takes two to four minutes; processes are forked from servers
that have imported TorchAir. The exit status is 1 if warmrank is wrong anywhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.running import arguments, machine, write  # noqa: E402 - also where nothing is installed
from tests.fuzz.parts.stale import BESIDE_TORCHAIR, Case, trials  # noqa: E402 - likewise
from tests.fuzz.program import Trial  # noqa: E402 - likewise
from tests.fuzz.run import Outcome, Runner, Servers  # noqa: E402 - likewise

MODES = ("reduce-overhead", "npugraph_ex")
CASES = {f"{group}: {case.change.name}": case for group, cases in BESIDE_TORCHAIR.items() for case in cases}
SKIPPED = {"another Python": "needs a second Python on the machine; `python` is in warmrank's key"}
WRONG, RIGHT, OLD, NOTICES, ERROR = (
    "wrong result",
    "loads; right",
    "loads the old graph; right here",
    "compiles anew; right",
    "error",
)
_PAIRS_AT_ONCE = 16
_MAX_REASON_CHARS = 76
_DIGEST = re.compile(r", [0-9a-f]{16}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What became of one case in one mode.

    Attributes:
        name: group and name of the case.
        mode: of the configuration.
        theirs: outcome of TorchAir by itself.
        ours: outcome of warmrank's engine ``torchair``.
    """

    name: str
    mode: str
    theirs: Outcome
    ours: Outcome

    @property
    def case(self) -> Case:
        """The case."""
        return CASES[self.name]

    @property
    def alone(self) -> str:
        """What TorchAir by itself makes of the case: one of the verdicts above."""
        loaded = RIGHT if self.case.change.fits else OLD
        return {"wrong": WRONG, "compiled": NOTICES, "loaded": loaded}.get(self.theirs.outcome, ERROR)

    @property
    def fault(self) -> str:
        """What is not as it must be in warmrank's outcome; empty if all is well."""
        outcome, detail, change = self.ours.outcome, self.ours.detail, self.case.change
        if outcome != ("loaded" if change.fits else "compiled"):
            return "the old graph was loaded" if outcome == "loaded" else f"{outcome}: {detail}"
        return "" if re.search(change.said, detail) else f"another reason: {detail}"


def lines(asked: Sequence[tuple[str, str]], *, workers: int) -> list[Line]:
    """Run cases, by name, each in a mode, on so many servers at once."""
    ways = list(_ways(asked))
    free: queue.Queue[Servers] = queue.Queue()
    with contextlib.ExitStack() as stack:
        for _ in range(workers):
            free.put(stack.enter_context(Servers("npu")))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stale")))
        pool = stack.enter_context(ThreadPoolExecutor(workers))

        def run(way: tuple[list[str], Trial, bool]) -> list[Outcome]:
            servers = free.get()
            try:
                return Runner(servers, directory, apart=True, vendor=way[2]).run(way[1])
            finally:
                free.put(servers)

        ran = list(pool.map(run, ways))
    found: dict[tuple[str, str, bool], Outcome] = {}
    for (names, made, vendor), outcomes in zip(ways, ran, strict=True):
        if outcomes[0].number < 0:
            msg = f"first process: {outcomes[0].line()}"
            raise RuntimeError(msg)
        for name, outcome in zip(names, outcomes, strict=True):
            found[name, made.program.mode, vendor] = outcome
    return [
        Line(name=name, mode=mode, theirs=found[name, mode, True], ours=found[name, mode, False])
        for name, mode in asked
    ]


def _ways(asked: Sequence[tuple[str, str]]) -> Iterator[tuple[list[str], Trial, bool]]:
    """Trials of a few cases each, the cases' names, and which of them TorchAir does alone."""
    for mode, vendor in product(MODES, (True, False)):
        names = {id(CASES[name].change): name for name, asked_mode in asked if asked_mode == mode}
        for start in range(0, len(names), _PAIRS_AT_ONCE):
            share = list(names.values())[start : start + _PAIRS_AT_ONCE]
            for made in trials([CASES[name] for name in share], mode=mode, engine="torchair"):
                yield [names[id(pair.change)] for pair in made.pairs], made, vendor


def counts(found: Sequence[Line]) -> dict[str, int]:
    """How often each verdict was given, and warmrank's faults."""
    given = dict.fromkeys((WRONG, ERROR, OLD, NOTICES, RIGHT), 0)
    for line in found:
        given[line.alone] += 1
    return {**given, "faults of warmrank": sum(bool(line.fault) for line in found)}


def table(found: Sequence[Line]) -> Iterator[str]:
    """The lines of a table in Markdown; a case whose modes agree takes one row."""
    yield "| what is different in the second process | TorchAir alone | warmrank, engine `torchair` |"
    yield "|---|---|---|"
    for group, of_group in groupby(found, key=lambda line: line.name.partition(": ")[0]):
        yield f"| **{group}** | | |"
        for name, of_case in groupby(of_group, key=lambda line: line.case.change.name):
            rows = [(line.mode, cell(line), _ours(line)) for line in of_case]
            if len({row[1:] for row in rows}) == 1:
                rows = [("", *rows[0][1:])]
            for mode, theirs, ours in rows:
                yield f"| {name}{f' (`{mode}`)' if mode else ''} | {theirs} | {ours} |"
    yield "| **not run** | | |"
    for name, why in SKIPPED.items():
        yield f"| {name} | - | {why} |"


def cell(line: Line) -> str:
    """TorchAir's verdict as the table has it."""
    return f"**{line.alone}**" if line.alone == WRONG else line.alone


def _ours(line: Line) -> str:
    if said := line.fault:
        return f"**FAULT: {_short(said)}**"
    return RIGHT if line.ours.outcome == "loaded" else f"miss: `{_short(line.ours.detail)}`; right"


def _short(text: str) -> str:
    text = text.removeprefix("nearest artifact differs: ").splitlines()[0].replace("|", "/").replace("`", "'")
    text = _DIGEST.sub("", text)
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[: _MAX_REASON_CHARS - 3]}..."


def summary(found: Sequence[Line]) -> str:
    """The counts in a sentence."""
    given = counts(found)
    faults = given.pop("faults of warmrank")
    theirs = ", ".join(f"{name} {number}" for name, number in given.items())
    cases = len({line.name for line in found})
    return (
        f"{cases} cases, {len(found)} with their modes. TorchAir alone: {theirs}. "
        f"warmrank: {f'{faults} FAULTS' if faults else 'right in all, with the reason that was expected'}."
    )


def as_json(line: Line) -> dict[str, Any]:
    """All of a line."""
    sides = {"alone": line.theirs, "warmrank": line.ours}
    told = {side: {"outcome": each.outcome, "detail": each.detail} for side, each in sides.items()}
    return {"case": line.name, "mode": line.mode, "verdict": line.alone, **told, "fault": line.fault}


def main() -> None:
    """Run the cases and print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--only", default="", help="regular expression over `group: name` of the cases")
    parser.add_argument("--markdown", action="store_true", help="nothing but the table, for the documents")
    parser.add_argument("--workers", type=int, default=min(4, os.cpu_count() or 1), help="processes at once")
    options = parser.parse_args()
    if importlib.util.find_spec("torch_npu") is None:
        print("torch_npu is not installed here; `make test-npu` makes an environment that has it, .venv-npu")
        return
    place = machine("torch", "torch_npu", device="emulated NPU")
    asked = [(name, mode) for name in CASES if re.search(options.only, name) for mode in MODES]
    found = lines(asked, workers=options.workers)
    if not options.markdown:
        print(place)
    print("\n".join(table(found)))
    print(f"\n{summary(found)}")
    write(options, {"place": place, "counts": counts(found), "cases": [as_json(line) for line in found]})
    if counts(found)["faults of warmrank"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
