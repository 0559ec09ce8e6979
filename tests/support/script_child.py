"""Runs scripts, as ``warmrank run`` does, each in a fork of this process, which has traced something else.

With ``--untraced`` it has imported no tracer, with ``--npu`` it has an emulated NPU and TorchAir. Reads
groups of jobs from standard input as JSON; the jobs of a group run at the same time. Prints the exit status
of each job and what it wrote. A script that starts Python itself spends most of its time on imports.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.stale import FORBIDDEN, trace_something
from warmrank.worker.torchair_script import run_script


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptJob:
    """A script, and what it is run with.

    Attributes:
        script: its path.
        work_dir: where it works, and where what it writes lies: ``output.txt``, with its rank if it has one.
        environment: variables of its own.
    """

    script: str
    work_dir: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def output(self) -> Path:
        return Path(self.work_dir) / f"output{self.environment.get('RANK', '')}.txt"


def forked(jobs: list[ScriptJob]) -> list[tuple[int, str]]:
    """Exit status, and standard output and error, of scripts that run at the same time."""
    sys.stdout.flush()
    children = [_fork(job) for job in jobs]
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return [(status, job.output.read_text()) for status, job in zip(statuses, jobs, strict=True)]


def _fork(job: ScriptJob) -> int:
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            status = _as_main(job)
        os._exit(status)
    return child


def _as_main(job: ScriptJob) -> int:
    """Run the script in this process, as ``warmrank run SCRIPT`` would."""
    os.chdir(job.work_dir)
    os.environ.update(job.environment)
    with job.output.open("w") as stream:
        for descriptor in (1, 2):
            os.dup2(stream.fileno(), descriptor)
        try:
            run_script(job.script, [])
        except BaseException:  # noqa: BLE001 - the test shows it
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    return 0


def main() -> None:
    groups = [[ScriptJob(**job) for job in group] for group in json.load(sys.stdin)]
    if "--untraced" in sys.argv:
        importlib.import_module("warmrank.worker.runtime.function")
        assert not [name for name in FORBIDDEN if name in sys.modules]
    elif "--npu" in sys.argv:
        importlib.import_module("torch_npu")
        for mode in ("reduce-overhead", "npugraph_ex"):
            importlib.import_module("warmrank.worker.engines.torchair_vendor").vendor_for(mode)
    else:
        trace_something()
    gc.disable()  # else each fork's collector goes through all of torch; frozen, it would be counted instead
    sys.stdout.write(json.dumps([result for group in groups for result in forked(group)]))


if __name__ == "__main__":
    main()
