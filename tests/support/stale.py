"""Launches of `tiny_model` before and after one change; as a program: jobs from standard input."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import json
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.stale_matrix_parts.contexts import both, default_type
from tests.support.checkout import ROOT, python
from tests.support.compare import cloned, difference

FORBIDDEN = ("torch._dynamo", "torch._inductor", "sympy", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between two launches.

    Attributes:
        edits: replacements in the package, each (file, old text, new text); the old text occurs once.
        files: files that are added to the package, by name.
        removed: files that are taken away.
        before: Python that the second launch runs before anything of the model or of the cache is imported;
            DIRECTORY is its own.
        build: may change ``model``, which was just built.
        base: may change ``config`` and ``options``, the parameters of `cache_compile`, in both launches.
        config: likewise, in the second one.
        call: may change ``batch``, ``args`` and ``kwargs``.
        context: expression of a context manager for the call.
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
    base: str = ""
    config: str = ""
    call: str = ""
    context: str = "torch.no_grad()"
    environment: Mapping[str, str] = field(default_factory=dict)
    elsewhere: bool = False
    reason: str = ""
    together: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One launch in a directory, which has the package ``tiny_model`` and the cache."""

    name: str
    directory: str
    change: Change

    @property
    def package(self) -> str:
        return f"{self.directory}/package"


@dataclass(slots=True)
class Result:
    """What became of one launch.

    Attributes:
        outcome: ``compiled``, ``loaded``, or the name of an error.
        reason: why, or the error's message.
        wrong: where the result, or the state after it, is not eager's.
        again: outcome of the same call by a new cached function in the same process.
        imported: modules that a warm launch must not import.
    """

    name: str
    outcome: str = ""
    reason: str = ""
    wrong: str = ""
    again: str = ""
    imported: list[str] = field(default_factory=list)


def launch(job: Job) -> Result:
    """Build the model, call it eagerly and cached, and compare."""
    result = Result(name=job.name)
    change = job.change
    scope: dict[str, Any] = {"torch": torch, "sys": sys, "os": os, "both": both, "default_type": default_type}
    scope["DIRECTORY"] = job.directory
    exec(change.before, scope)  # noqa: S102 - jobs come from the test beside it
    sys.path.insert(0, job.package)
    definition = importlib.import_module("tiny_model.model")
    import warmrank
    from warmrank.worker.errors import WorkerError

    scope["model"], scope["definition"] = model, _ = definition.build(), definition
    exec(change.build, scope)  # noqa: S102 - likewise
    model = scope["model"]
    scope |= {"config": warmrank.CompilerConfig(), "options": {}, "batch": definition.batch()}
    exec(f"{change.base}\n{change.config}", scope)  # noqa: S102 - likewise
    scope |= {"args": [scope["batch"], [1.0, 2.0]], "kwargs": {}}
    exec(change.call, scope)  # noqa: S102 - likewise
    eager, start = copy.deepcopy(model), copy.deepcopy(model)
    wanted_args, args, later_args = (copy.deepcopy(scope["args"]) for _ in range(3))
    with eval(change.context, scope):  # noqa: S307 - likewise
        wanted = cloned(eager.step(*wanted_args, **scope["kwargs"]))
        step = _cached(model, job, scope)
        try:
            got = cloned(step(*args, **scope["kwargs"]))
        except WorkerError as error:
            result.outcome, result.reason = type(error).__name__, str(error)
            return result
        result.wrong = difference(wanted, got, "result") or difference(
            dict(eager.state_dict()), dict(model.state_dict()), "state"
        )
        result.outcome, result.reason = step.last_result.outcome, step.last_result.reason
        result.imported = [name for name in FORBIDDEN if name in sys.modules]
        later = _cached(start, job, scope)
        wrong_later = difference(wanted, cloned(later(*later_args, **scope["kwargs"])), "later")
        result.wrong = result.wrong or wrong_later
        result.again = later.last_result.outcome
    return result


def _cached(model: Any, job: Job, scope: dict[str, Any]) -> Any:
    from warmrank.inference import cache_compile

    return cache_compile(
        model.step, config=scope["config"], cache_dir=f"{job.directory}/cache", **scope["options"]
    )


def attempt(job: Job) -> str:
    """The result as one line of JSON; an error that nobody expected is a result too."""
    warnings.simplefilter("error")
    try:
        result = launch(job)
    except Exception:  # noqa: BLE001 - the test shows it
        result = Result(name=job.name, outcome="crashed", reason=traceback.format_exc())
    return json.dumps(asdict(result)) + "\n"


def forked(jobs: Sequence[Job]) -> str:
    """`attempt` of each, in a process of their own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), os.fdopen(writer, "w") as stream:
            for job in jobs:
                stream.write(attempt(job))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        lines = stream.readlines()
    os.waitpid(child, 0)
    died = (json.dumps(asdict(Result(name=job.name, outcome="died"))) + "\n" for job in jobs[len(lines) :])
    return "".join([*lines, *died])


class Unrelated(torch.nn.Module):
    """Uses what any model uses, so that the first trace of a process is behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6)])
        self.register_buffer("held", torch.zeros(9, 6))
        self.held: torch.Tensor
        self.factor = 0.5

    def forward(self, x: torch.Tensor, where: torch.Tensor, numbers: list[float]) -> torch.Tensor:
        x = x.view(x.shape[0], -1)
        for layer in self.layers:
            self.held[where] = layer(x)
            x = torch.softmax(x @ self.held.t(), dim=-1) @ self.held + self.factor
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)).clamp(-2.0, 2.0) / 3.0 - numbers[0]
        return torch.sigmoid(torch.nn.functional.leaky_relu(torch.tanh(x)))


def trace_something() -> None:
    """Import the tracer and trace once, which takes seconds the first time."""
    import warmrank.worker.compile.compiler  # noqa: F401 - as a compile would
    from warmrank.worker.torch_private.tracing import trace

    arguments = (torch.ones(4, 2, 3), torch.arange(4), [1.0])
    with torch.no_grad():
        trace(Unrelated().forward, arguments, {}, dynamic=True, decompositions={}, build=id)


def main() -> None:
    jobs = [Job(**{**item, "change": Change(**item["change"])}) for item in json.load(sys.stdin)]
    if len(sys.argv) == 1:
        sys.stdout.write("".join(map(attempt, jobs)))
        return
    importlib.import_module("warmrank.worker.runtime.function")
    if "--fork-with-tracer" in sys.argv:
        trace_something()
    gc.disable()  # else each fork's collector goes through all of torch; frozen, it would be counted instead
    together = [job for job in jobs if job.change.together]
    for share in (together, *([job] for job in jobs if not job.change.together)):
        sys.stdout.write(forked(share))
        sys.stdout.flush()


TEMPLATE = Path(__file__).parent / "tiny_model"
WORKERS = 2
FEW = 12
"""So many launches are one process's work: a second one imports the tracer once more."""


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
        jobs = [
            Job(name=base, directory=str(directory), change=Change(base=base))
            for base, directory in self._first.items()
        ]
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
        return Job(name=name, directory=str(directory), change=change)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """One process, and the jobs that it runs, or forks for if ``mode`` says so."""

    jobs: Sequence[Job]
    mode: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = ROOT

    def run(self) -> list[Result]:
        mode = [self.mode] if self.mode and len(self.jobs) > 1 else []
        given = json.dumps([asdict(job) for job in self.jobs])
        printed = python("-m", "tests.support.stale", *mode, cwd=self.cwd, given=given, **self.environment)
        return [Result(**json.loads(line)) for line in printed.splitlines()]


def _run(children: Sequence[Child]) -> dict[str, Result]:
    with ThreadPoolExecutor(WORKERS) as pool:
        return {result.name: result for results in pool.map(Child.run, children) for result in results}


def _no_bytecode(_directory: str, names: list[str]) -> set[str]:
    return {"__pycache__"} & set(names)


if __name__ == "__main__":
    main()
