"""Make a failing pair small, and write a script that shows it without the fuzzer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.fuzz.generate import Pair, Trial
from tests.fuzz.program import PACKAGE, Program
from tests.fuzz.run import Outcome, Runner, Servers

_SCRIPT = '''\
"""Seed {seed}, pair {number}: {name}.

{outcome}: {detail}
Run it with warmrank's root in PYTHONPATH; its exit status is 1 where it still fails.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

BEFORE = {before}
AFTER = {after}
JOB = {job}
CHANGED = {changed}

CHILD = """
import dataclasses, json, sys
from tests.fuzz.child import BAD, Job, attempt
result = attempt(Job(**json.loads(sys.argv[1])))
print(json.dumps(dataclasses.asdict(result)))
sys.exit(any(calls.outcome in BAD for calls in (result.first, result.later) if calls))
"""


def run(directory, files, job, hash_seed):
    package = pathlib.Path(directory, "{package}")
    package.mkdir(parents=True)
    for name, text in files.items():
        (package / name).write_text(text)
    job = dict(job, package=str(directory))
    environment = {{**os.environ, "PYTHONHASHSEED": hash_seed}}
    return subprocess.run([sys.executable, "-c", CHILD, json.dumps(job)], env=environment).returncode


failed = 0
with tempfile.TemporaryDirectory() as root:
    for name, files, job, hash_seed in (("cold", BEFORE, JOB, "0"), ("changed", AFTER, CHANGED, "1")):
        print(name, flush=True)
        failed |= run(pathlib.Path(root, name), files, dict(job, cache=root + "/cache"), hash_seed)
sys.exit(failed)
'''


def shrunk(made: Trial, number: int, servers: Servers, *, guards: str = "") -> str:
    """A stand-alone script of the smallest program that still fails like this pair."""
    with tempfile.TemporaryDirectory() as directory:
        runner = Runner(servers, Path(directory), guards=guards)

        def failure(candidate: Trial, position: int) -> Outcome | None:
            outcomes = runner.run(candidate, {position})
            return outcomes[0] if outcomes and outcomes[0].bad else None

        found = failure(made, number)
        if found is None:
            msg = f"pair {made.seed}:{number} does not fail"
            raise SystemExit(msg)
        alone = replace(made, pairs=(made.pairs[number],))
        smaller = True
        while smaller:
            smaller = False
            for candidate in _smaller(alone):
                again = failure(candidate, 0)
                if again is not None and again.outcome == found.outcome:
                    alone, found, smaller = candidate, again, True
                    break
        cold, changed = runner.jobs(alone, 0)
    return _script(alone.program, alone.pairs[0], found, (cold, changed))


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


def _script(program: Program, pair: Pair, found: Outcome, jobs: tuple[object, object]) -> str:
    from pprint import pformat

    before, after = program.files(), pair.changed(program).files()
    names = ("cold", "changed")
    texts = {name: pformat(job, width=110) for name, job in zip(names, jobs, strict=True)}
    return _SCRIPT.format(
        seed=found.seed,
        number=found.number,
        name=found.name,
        outcome=found.outcome,
        detail=found.detail.strip().replace('"""', "'''")[:600],
        before=_texts(before),
        after=_texts(after),
        job=texts["cold"],
        changed=texts["changed"],
        package=PACKAGE,
    )


def _texts(files: dict[str, str]) -> str:
    shown = "".join(f"    {name!r}: r'''\n{text}''',\n" for name, text in files.items())
    return "{\n" + shown + "}"
