"""Make a failing pair small, and write a script that shows it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from pprint import pformat

from tests.fuzz.generate import Trial
from tests.fuzz.program import source
from tests.fuzz.run import Outcome, Runner, Servers

_SCRIPT = '''\
"""{line}

Run it with warmrank's root in PYTHONPATH; its exit status is 1 where it still fails. The program:

{source}
"""

import pathlib
import sys
import tempfile

from tests.fuzz.generate import Pair, Trial
from tests.fuzz.program import Change, Part, Program
from tests.fuzz.run import Runner, Servers

MADE = {made}
with Servers() as servers, tempfile.TemporaryDirectory() as directory:
    outcomes = Runner(servers, pathlib.Path(directory), guards={guards!r}).run(MADE)
for outcome in outcomes:
    print(outcome.line())
sys.exit(any(outcome.bad for outcome in outcomes))
'''


def shrunk(made: Trial, number: int, servers: Servers, *, guards: str = "") -> str:
    """A script of the smallest program that still fails like this pair."""
    with tempfile.TemporaryDirectory() as directory:
        runner = Runner(servers, Path(directory), guards=guards)

        def failure(candidate: Trial, position: int) -> Outcome | None:
            outcomes = runner.run(candidate, {position})
            return outcomes[0] if outcomes and outcomes[0].bad else None

        found = failure(made, number)
        if found is None:
            msg = f"pair {made.seed}:{number} does not fail"
            raise SystemExit(msg)
        alone, smaller = replace(made, pairs=(made.pairs[number],)), True
        while smaller:
            smaller = False
            for candidate in _smaller(alone):
                again = failure(candidate, 0)
                if again is not None and again.outcome == found.outcome:
                    alone, found, smaller = candidate, again, True
                    break
    text = source(alone.program).replace("\\", "\\\\").replace('"""', "'''")
    return _SCRIPT.format(line=found.line(), source=text, made=pformat(alone, width=110), guards=guards)


def _smaller(made: Trial) -> Iterator[Trial]:
    """Trials with one part or one slot's line less."""
    pair = made.pairs[0]
    for index in range(len(made.program.parts)):
        if index != pair.index:
            moved = pair.index - 1 if pair.index > index else pair.index
            yield replace(made, program=made.program.without(index), pairs=(replace(pair, index=moved),))
    if made.program.dynamic:
        yield replace(made, program=replace(made.program, dynamic=False))
    if made.program.gloo and not pair.change.alone:
        yield replace(made, program=replace(made.program, gloo=False))
    for index, part in enumerate(made.program.parts):
        for slot, text in part.slots.items():
            lines = text.splitlines()
            for gone in range(len(lines)) if len(lines) > 1 else ():
                slots = {**part.slots, slot: "\n".join([*lines[:gone], *lines[gone + 1 :]])}
                parts = [*made.program.parts]
                parts[index] = replace(part, slots=slots)
                yield replace(made, program=replace(made.program, parts=tuple(parts)))
