"""Which changes between two processes make TorchAir load the wrong graph, and which warmrank?

Each case: a first process compiles a model and fills a cache directory; then one thing is changed, and a
second process runs the same function on that directory. TorchAir's own ``cache_compile`` and warmrank's with
engine ``torchair`` do it side by side, in modes reduce-overhead and npugraph_ex, with the real torch_npu
package on the emulated NPU. Results of three calls, caches and buffers are compared with eager's (with a
fresh compile's, where eager knows nothing of the change). Model and changes: `tests.fuzz.parts.stale`.

Run: ``.venv-npu/bin/python benchmarks/stale_matrix.py [--markdown] [--only PATTERN] [--json FILE]``, after
``make test-npu`` has made that environment. It takes two to four minutes; processes are forked from some that
have imported TorchAir. The exit status is 1 if warmrank is wrong anywhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from benchmarks.running import arguments, machine, write  # noqa: E402 - also where nothing is installed
from tests.fuzz.parts.stale import MATRIX, Case, trials  # noqa: E402 - likewise
from tests.fuzz.program import Trial  # noqa: E402 - likewise
from tests.fuzz.run import Outcome, Runner, Servers  # noqa: E402 - likewise

MODES = ("reduce-overhead", "npugraph_ex")
ALONE, OURS = "vendor", "torchair"
WRONG, RIGHT, OLD, NOTICES, ERROR = (
    "wrong result",
    "loads; right",
    "loads the old graph; right here",
    "compiles anew; right",
    "error",
)
SKIPPED = {"another Python": "needs a second Python on the machine; `python` is in warmrank's key"}
_MAX_REASON_CHARS = 76
_DIGEST = re.compile(r", [0-9a-f]{16}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Outcomes of one case in one mode, of TorchAir by itself and of warmrank."""

    group: str
    case: Case
    mode: str
    alone: Outcome
    ours: Outcome

    @property
    def name(self) -> str:
        """What is changed."""
        return self.case.change.name


Chosen = tuple[str, Case, str]
"""Heading in the table, case, mode."""


def lines(root: Path, chosen: Iterable[Chosen], *, workers: int) -> list[Line]:
    """Run cases in their modes, so many processes at once.

    Raises:
        RuntimeError: a first process did not compile, or gave another result than eager.
    """
    chosen = list(chosen)
    made = [
        one
        for engine in (ALONE, OURS)
        for mode in MODES
        for one in trials([case for _, case, in_mode in chosen if in_mode == mode], mode=mode, engine=engine)
    ]
    found: dict[tuple[str, str, str], Outcome] = {}
    free: queue.Queue[Servers] = queue.Queue()
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(workers) as pool:
        for _ in range(workers):
            free.put(stack.enter_context(Servers("npu")))

        def ran(trial: Trial) -> list[Outcome]:
            servers = free.get()
            try:
                return Runner(servers, root, apart=True).run(trial)
            finally:
                free.put(servers)

        for trial, outcomes in zip(made, pool.map(ran, made), strict=True):
            if len(outcomes) != len(trial.pairs) or outcomes[0].number < 0:
                msg = f"first process, {trial.program.name}: {outcomes[0].outcome}: {outcomes[0].detail}"
                raise RuntimeError(msg)
            for pair, outcome in zip(trial.pairs, outcomes, strict=True):
                found[pair.change.name, trial.program.mode, trial.program.engine] = outcome
    return [
        Line(
            group=group,
            case=case,
            mode=mode,
            alone=found[case.change.name, mode, ALONE],
            ours=found[case.change.name, mode, OURS],
        )
        for group, case, mode in chosen
    ]


def alone(line: Line) -> str:
    """What TorchAir by itself makes of a case: one of the verdicts above."""
    right = {"loaded": RIGHT if line.case.change.fits else OLD, "compiled": NOTICES, "wrong": WRONG}
    return right.get(line.alone.outcome, ERROR)


def fault(line: Line) -> str:
    """What is not as it must be in warmrank's outcome; empty if all is well."""
    outcome, change = line.ours, line.case.change
    if outcome.outcome not in ("loaded", "compiled"):
        return f"{outcome.outcome}: {outcome.detail}"
    if change.fits:
        return "" if outcome.outcome == "loaded" else f"needless miss: {outcome.detail}"
    if outcome.outcome == "loaded":
        return "the old graph was loaded"
    return "" if re.search(change.said, outcome.detail) else f"another reason: {outcome.detail}"


def counts(found: Sequence[Line]) -> dict[str, int]:
    """How often each verdict was given, and warmrank's faults."""
    verdicts = dict.fromkeys((WRONG, ERROR, OLD, NOTICES, RIGHT), 0)
    for line in found:
        verdicts[alone(line)] += 1
    return {**verdicts, "faults of warmrank": sum(bool(fault(line)) for line in found)}


def table(found: Sequence[Line]) -> Iterator[str]:
    """The lines of a table in Markdown; a case whose modes agree takes one row."""
    yield "| what is different in the second process | TorchAir alone | warmrank, engine `torchair` |"
    yield "|---|---|---|"
    for group, of_group in groupby(found, key=lambda line: line.group):
        yield f"| **{group}** | | |"
        for name, of_case in groupby(of_group, key=lambda line: line.name):
            rows = [(line.mode, alone(line).replace(WRONG, f"**{WRONG}**"), _ours(line)) for line in of_case]
            if len({row[1:] for row in rows}) == 1:
                rows = [("", *rows[0][1:])]
            for mode, theirs, ours in rows:
                yield f"| {name}{f' (`{mode}`)' if mode else ''} | {theirs} | {ours} |"
    yield "| **not run** | | |"
    for name, why in SKIPPED.items():
        yield f"| {name} | - | {why} |"


def summary(found: Sequence[Line]) -> str:
    """The counts in a sentence."""
    verdicts = counts(found)
    faults = verdicts.pop("faults of warmrank")
    theirs = ", ".join(f"{name} {number}" for name, number in verdicts.items())
    cases = len({line.name for line in found})
    return (
        f"{cases} cases, {len(found)} with their modes. TorchAir alone: {theirs}. "
        f"warmrank: {f'{faults} FAULTS' if faults else 'right in all, with the reason that was expected'}."
    )


def _ours(line: Line) -> str:
    if said := fault(line):
        return f"**FAULT: {_short(said)}**"
    return RIGHT if line.ours.outcome == "loaded" else f"miss: `{_short(line.ours.detail)}`; right"


def _short(text: str) -> str:
    text = text.removeprefix("nearest artifact differs: ").splitlines()[0].replace("|", "/").replace("`", "'")
    text = _DIGEST.sub("", text)
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[: _MAX_REASON_CHARS - 3]}..."


def _as_json(line: Line) -> dict[str, Any]:
    ran = {"alone": line.alone, "warmrank": line.ours}
    outcomes = {name: {"outcome": one.outcome, "detail": one.detail} for name, one in ran.items()}
    named = {"group": line.group, "case": line.name, "mode": line.mode, "verdict": alone(line)}
    return {**named, **outcomes, "fault": fault(line)}


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
    chosen = [
        (group, case, mode)
        for group, cases in MATRIX.items()
        for case in cases
        for mode in MODES
        if re.search(options.only, f"{group}: {case.change.name}")
    ]
    with tempfile.TemporaryDirectory() as directory:
        found = lines(Path(directory), chosen, workers=options.workers)
    if not options.markdown:
        print(place)
    print("\n".join(table(found)))
    print(f"\n{summary(found)}")
    write(options, {"place": place, "counts": counts(found), "cases": [_as_json(line) for line in found]})
    if counts(found)["faults of warmrank"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
