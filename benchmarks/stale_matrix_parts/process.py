"""Child process of ``benchmarks/stale_matrix.py``: reads jobs from standard input, writes a line for each.

Every job runs in a process forked from this one, which has installed the emulated NPU, imported both packages
of TorchAir and compiled something else, but has imported no line of the model. With ``--fresh`` there is one
job, which runs in this very process.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import gc
import importlib
import json
import logging
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.stale_matrix_parts.contexts import both, default_type
from benchmarks.stale_matrix_parts.jobs import Job, Outcome

CLOSE = 1e-5


def run(job: Job) -> Outcome:
    """Build the model, call the function twice, and compare with eager's results."""
    scope = _scope(job)
    model, args, kwargs = scope["model"], scope["args"], scope["kwargs"]
    found: list[Any] = []
    log = _Log()
    outcome = Outcome(name=job.name)
    with eval(job.context, scope), log.listening():  # noqa: S307 - jobs are the script's own
        model.cached, told = _function(job, scope, log)
        for _ in range(2):
            given = copy.deepcopy(args)
            try:
                found.append(model(*given, **kwargs).clone())
            except Exception as error:  # noqa: BLE001 - that is the result
                outcome.outcome, outcome.detail = "error", f"{type(error).__name__}: {error}"
                return outcome
            found.append(given[2])
    found.append(dict(model.state_dict()))
    outcome.outcome, outcome.detail = told()
    if job.writes:
        torch.save(found, job.expected)
        return outcome
    wanted = torch.load(job.expected, weights_only=True)
    outcome.wrong = _difference(wanted, found)
    return outcome


def _scope(job: Job) -> dict[str, Any]:
    scope: dict[str, Any] = {"torch": torch, "sys": sys, "os": os, "Path": Path, "DIRECTORY": job.directory}
    scope |= {"both": both, "default_type": default_type}
    exec(job.before, scope)  # noqa: S102 - likewise
    sys.path.insert(0, job.directory)
    scope["definition"] = definition = importlib.import_module("stale_model")
    scope["model"] = definition.build()
    exec(job.build, scope)  # noqa: S102 - likewise
    batch = definition.batch()
    scope |= {"batch": batch, "kwargs": {"reverse": False}}
    scope["args"] = [batch, [torch.ones(3, 8), torch.full((3, 8), 0.5)], torch.zeros(3, 8), 1.0]
    exec(job.call, scope)  # noqa: S102 - likewise
    return scope


def _function(job: Job, scope: dict[str, Any], log: _Log) -> tuple[Any, Any]:
    """What is called, and a function that says afterwards what became of it."""
    model = scope["model"]
    if job.runner == "eager":
        return model.step, lambda: ("ran", "")
    if job.runner == "warmrank":
        from warmrank.inference import cache_compile
        from warmrank.worker.configs.compiler_config import CompilerConfig

        config: Any = CompilerConfig()
        config.mode = job.mode
        options = _options(job, scope, config)
        ours: Any = cache_compile(
            model.step, config=config, cache_dir=job.cache, engine="torchair", **options
        )
        return ours, lambda: (ours.last_result.outcome, ours.last_result.reason)
    package = importlib.import_module("npugraph_ex" if job.mode == "npugraph_ex" else "torchair")
    config = package.CompilerConfig()
    if job.mode != "npugraph_ex":
        config.mode = job.mode
    options = _options(job, scope, config)
    theirs = package.inference.cache_compile(model.step, config=config, cache_dir=job.cache, **options)
    return theirs, log.told


def _options(job: Job, scope: dict[str, Any], config: Any) -> dict[str, Any]:
    package = importlib.import_module("npugraph_ex" if job.mode == "npugraph_ex" else "torchair")
    scope |= {"config": config, "options": {}, "package": package}
    exec(job.config, scope)  # noqa: S102 - likewise
    return dict(scope["options"])


class _Log(logging.Handler):
    """What TorchAir's loggers say; it tells nothing else of whether it loads."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        loggers = [logging.getLogger(name) for name in ("torchair", "npugraph_ex")]
        for logger in loggers:
            logger.setLevel(logging.INFO)
            logger.addHandler(self)
        yield

    def told(self) -> tuple[str, str]:
        for line in self.lines:
            if line.startswith("Clear broken cache"):
                return "compiled", line
        if any(line.startswith("Compiling cache for") for line in self.lines):
            return "compiled", "it finds no cache"
        return "loaded", ""


def _difference(wanted: list[Any], found: list[Any]) -> str:
    names = ("first result", "cache after it", "second result", "cache after that")
    for name, one, other in zip(names, wanted, found, strict=False):
        if said := _tensors_differ(name, one, other):
            return said
    for name, one in wanted[-1].items():
        if said := _tensors_differ(f"buffer {name}", one, found[-1][name]):
            return said
    return ""


def _tensors_differ(name: str, one: torch.Tensor, other: torch.Tensor) -> str:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{name}: {one.dtype} {tuple(one.shape)}, got {other.dtype} {tuple(other.shape)}"
    close = CLOSE if one.dtype in (torch.float32, torch.float64) else 0.05
    if torch.allclose(one, other, rtol=close, atol=close):
        return ""
    return f"{name}: {one.flatten()[0]:.4f}, got {other.flatten()[0]:.4f}"


def attempt(job: Job) -> str:
    """The outcome as one line of JSON."""
    try:
        outcome = run(job) if job.num_ranks == 1 else _run_together(job)
    except Exception:  # noqa: BLE001 - the script shows it
        outcome = Outcome(name=job.name, outcome="crashed", detail=traceback.format_exc())
    return json.dumps(asdict(outcome)) + "\n"


def _run_together(job: Job) -> Outcome:
    """Two ranks: this process, and one that is forked from it; of equal ones, who compiled."""
    import torch.distributed as dist

    meeting = tempfile.mktemp(dir=job.directory)  # noqa: S306 - torch makes the file
    other = os.fork()
    rank = 0 if other else 1
    try:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=job.num_ranks)
        outcome = run(replace(job, expected=f"{job.expected}.{rank}"))
        both: list[Outcome] = [outcome] * job.num_ranks
        dist.all_gather_object(both, outcome)  # nobody leaves before the others are done
    finally:
        if not other:
            os._exit(0)
    os.waitpid(other, 0)
    made = next((each for each in both if each.outcome != "adopted"), outcome)
    return replace(made, wrong=next(filter(None, (each.wrong for each in both)), ""))


def forked(job: Job) -> str:
    """`attempt` in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException), os.fdopen(writer, "w") as stream:
            stream.write(attempt(job))
            atexit._run_exitfuncs()  # noqa: SLF001 - as a process does that ends by itself
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        line = stream.readline()
    os.waitpid(child, 0)
    return line or json.dumps(asdict(Outcome(name=job.name, outcome="died"))) + "\n"


class Unrelated(torch.nn.Module):
    """Uses what any model uses, so that the first compile of a process is behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)
        self.register_buffer("held", torch.zeros(6))
        self.held: torch.Tensor

    def forward(self, x: torch.Tensor, cache: torch.Tensor, number: float) -> torch.Tensor:
        """What is compiled."""
        x = torch.softmax(self.layer(x) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)), -1)
        cache.add_(x)
        self.held.add_(x.sum(0))
        return torch.sigmoid(x.clamp(-2.0, 2.0)) / 3.0 - number


def compile_something() -> None:
    """Compile once in each way, which takes seconds the first time."""
    with tempfile.TemporaryDirectory() as directory, torch.no_grad():
        for mode in ("reduce-overhead", "npugraph_ex"):
            for runner in ("torchair", "warmrank"):
                job = Job(
                    name="",
                    runner=runner,
                    mode=mode,
                    directory="",
                    cache=f"{directory}/{runner}",
                    expected="",
                )
                model: Any = Unrelated()
                model.step = model.forward
                function, _ = _function(job, {"model": model}, _Log())
                function(torch.ones(4, 6), torch.zeros(4, 6), 0.5)
                torch._dynamo.reset()  # noqa: SLF001 - as if nothing had been traced
    environment: Any = importlib.import_module("warmrank.worker.keys.request")
    environment._components.cache_clear()  # noqa: SLF001 - each job has its own


def main() -> None:
    """Run the jobs."""
    from tests import npu_emulator

    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # TorchAir's log goes to standard output
    jobs = [Job(**item) for item in json.load(sys.stdin)]
    npu_emulator.install()
    warnings.simplefilter("ignore")
    if "--fresh" in sys.argv:
        results.writelines(map(attempt, jobs))
        return
    compile_something()
    gc.freeze()  # else each fork's collector goes through all of torch
    for job in jobs:
        results.write(forked(job))
        results.flush()


if __name__ == "__main__":
    main()
