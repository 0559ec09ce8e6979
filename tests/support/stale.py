"""Launches of `tiny_model` before and after one change, several at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.processes import PYTHONPATH
from tests.support.stale_child import Job, Result

ROOT = Path(__file__).parents[2]
TEMPLATE = Path(__file__).parent / "tiny_model"
WORKERS = 2
FEW = 12
"""So many launches are one process's work: a second one imports the tracer once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between two launches.

    Attributes:
        edits: replacements in the package, each (file, old text, new text); the old text occurs once.
        files: files that are added to the package, by name.
        removed: files that are taken away.
        before, build, config, call, context: as in `Job`, for the second launch.
        base: as in `Job`, for the first launch; the second one starts from them too.
        environment: environment variables of the second process.
        elsewhere: the second process works in a directory of its own.
        reason: pattern that the second launch's reason has to match.
        together: the second launch may share a process with others: it changes no source, and nothing but
            its own objects.
    """

    edits: tuple[tuple[str, str, str], ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    before: str = ""
    build: str = ""
    config: str = ""
    call: str = ""
    context: str = "torch.no_grad()"
    base: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    elsewhere: bool = False
    reason: str = ""
    together: bool = False


class Launches:
    """Runs first launches once per base, and each change's second launch on a copy of what they left."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._first: dict[str, Path] = {}

    def first(self, bases: Iterable[str]) -> None:
        """The launches that compile what the second ones find."""
        for base in sorted(set(bases)):
            directory = self.root / f"first{len(self._first)}"
            self._first[base] = directory
            shutil.copytree(TEMPLATE, directory / "package" / "tiny_model", ignore=_no_bytecode)
        jobs = [_job(base, directory, config=base) for base, directory in self._first.items()]
        for result in _run([Child(jobs=jobs, mode="--fork-with-tracer")]).values():
            assert (result.outcome, result.wrong, result.again) == ("compiled", "", "loaded"), result

    def second(self, changes: Mapping[str, Change], *, tracer: bool) -> dict[str, Result]:
        """The second launch of every change, by the change's name.

        Launches are forked from processes that have imported torch, and the tracer if asked for; those whose
        change concerns the start of a process have one of their own.
        """
        jobs = {name: self._prepared(name, change) for name, change in changes.items()}
        alone = [name for name, change in changes.items() if change.environment or change.elsewhere]
        forked = [job for name, job in jobs.items() if name not in alone]
        mode = "--fork-with-tracer" if tracer else "--fork"
        workers = WORKERS if len(forked) > FEW else 1
        children = [Child(jobs=forked[start::workers], mode=mode) for start in range(workers)]
        for name in alone:
            cwd = Path(jobs[name].package) if changes[name].elsewhere else ROOT
            children.append(Child(jobs=[jobs[name]], environment=changes[name].environment, cwd=cwd))
        return _run(children)

    def _prepared(self, name: str, change: Change) -> Job:
        directory = self.root / "second" / "".join(c if c.isalnum() else "_" for c in name)
        package = directory / "package" / "tiny_model"
        shutil.copytree(TEMPLATE, package, ignore=_no_bytecode)
        shutil.copytree(self._first[change.base] / "cache", directory / "cache")
        for file, old, new in change.edits:
            text = (package / file).read_text()
            assert text.count(old) == 1, f"{name}: {old!r} occurs {text.count(old)} times in {file}"
            (package / file).write_text(text.replace(old, new))
        for file, text in change.files.items():
            (package / file).write_text(text)
        for file in change.removed:
            (package / file).unlink()
        return _job(
            name,
            directory,
            before=f"DIRECTORY = {str(directory)!r}\n{change.before}",
            build=change.build,
            config=f"{change.base}\n{change.config}",
            call=change.call,
            context=change.context,
            alone=not change.together,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One process, and the jobs that it runs, or forks for if ``mode`` says so."""

    jobs: Sequence[Job]
    mode: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = ROOT

    def run(self) -> list[Result]:
        result = subprocess.run(
            [sys.executable, "-m", "tests.support.stale_child", *filter(None, [self.mode])],
            input=json.dumps([asdict(job) for job in self.jobs]),
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1", **self.environment},
            cwd=self.cwd,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        assert result.returncode == 0, result.stderr
        return [Result(**json.loads(line)) for line in result.stdout.splitlines()]


def _run(children: Sequence[Child]) -> dict[str, Result]:
    with ThreadPoolExecutor(WORKERS) as pool:
        return {result.name: result for results in pool.map(Child.run, children) for result in results}


def _job(name: str, directory: Path, **texts: Any) -> Job:
    return Job(name=name, package=str(directory / "package"), cache=str(directory / "cache"), **texts)


def _no_bytecode(_directory: str, names: list[str]) -> set[str]:
    return {"__pycache__"} & set(names)
