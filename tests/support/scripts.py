"""Scripts written for TorchAir, run twice as ``warmrank run`` does: cold, then warm.

As a program: each in a fork of this process, which has traced something else; with ``--untraced`` it has
imported no tracer, with ``--npu`` it has an emulated NPU and TorchAir. It reads groups of jobs from standard
input as JSON; the jobs of a group run at the same time. Prints the exit status of each job and what it wrote.
A script that starts Python itself spends most of its time on imports.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests import npu_emulator
from tests.fuzz.child import FORBIDDEN, prepare
from tests.support.checkout import PYTHONPATH, ROOT, ended
from warmrank.worker.torchair_script import run_script

SEEDS = ROOT / "tests" / "support" / "seeds"
FUNCTIONS: Mapping[str, Sequence[str]] = {
    "add": ["_forward"],
    "decomposition": ["inner_forward", "products"],
    "prefill_decode": ["prefill", "decode"],
    "input_meta": ["prompt", "decode"],
    "memory_reuse": ["inner_forward"],
    "backend": ["add", "subtract"],
    "statics": ["decode", "decode"],  # with all arguments, and without the optional ones
    "programs": ["decode_step", "decode_2", "decode_4", "decode", "switched", "forward"],
    "flat_options": ["decode", "doubled"],
    "drop_in": ["decode", "decode", "decode", "decode", "head"],
}
"""Script -> the functions that it caches, in the order of their first calls."""
UNKEPT = ("gears", "aclgraph", "imports")
CACHE_LINE = re.compile(
    r"\[INFO\] TORCHAIR.*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d.* Cache "
    r"ModelCacheMeta\(name=(?P<quote>['\"])(?P<name>.+)(?P=quote), "
    r"date='(?P<date>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6})', version='\d+\.\d+\.\d+', fx=None\) "
    r"(?P<verb>saved to|loaded from) (?P<path>\S+)"
)
CacheEvent = tuple[str, str, str, str]


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


def ran(groups: list[list[ScriptJob]], *options: str) -> list[tuple[int, str]]:
    """Exit status and output of each job; those of a group run at the same time."""
    environment = npu_emulator.environ({"PYTHONPATH": PYTHONPATH}) if "--npu" in options else {}
    given = json.dumps([[asdict(job) for job in group] for group in groups])
    done = ended("-m", "tests.support.scripts", *options, given=given, more=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(status, output) for status, output in json.loads(done.stdout.splitlines()[-1])]


def events(output: str) -> list[CacheEvent]:
    """What a script logged about its cache as (verb, name, date, path)."""
    found = map(CACHE_LINE.search, output.splitlines())
    return [(m["verb"], m["name"], m["date"], m["path"]) for m in found if m]


class Runs:
    """Runs each of some scripts twice in a directory of its own: all first runs, then all second ones."""

    def __init__(self, root: Path, asked: set[str], *, npu: bool = False) -> None:
        self.root = root
        names = [name for name in (*FUNCTIONS, *UNKEPT) if name in asked]
        for name in names:
            self.work_dir(name).mkdir()
        kept = [name for name in names if name in FUNCTIONS]
        first = ran([[self._job(name)] for name in names], *(["--npu"] if npu else []))
        second = ran([[self._job(name)] for name in kept], "--npu" if npu else "--untraced")
        self._first = dict(zip(names, first, strict=True))
        self._second = dict(zip(kept, second, strict=True))

    def work_dir(self, name: str) -> Path:
        return self.root / name

    def first(self, name: str) -> list[CacheEvent]:
        return _events_of(self._first[name])

    def second(self, name: str) -> list[CacheEvent]:
        return _events_of(self._second[name])

    def printed(self, name: str) -> str:
        """What the runs wrote."""
        return self._first[name][1] + self._second.get(name, (0, ""))[1]

    def check(self, name: str) -> None:
        """The second run loaded what the first one saved, under the same names and dates."""
        first, second = self.first(name), self.second(name)
        assert [entry[0] for entry in first] == ["saved to"] * len(FUNCTIONS[name]), self.printed(name)
        assert [entry[0] for entry in second] == ["loaded from"] * len(FUNCTIONS[name]), self.printed(name)
        assert [entry[1:] for entry in first] == [entry[1:] for entry in second]
        for (_, entry, _, path), function in zip(first, FUNCTIONS[name], strict=True):
            assert f".{function}(" in entry
            assert Path(path).stem == "compiled_module"
            assert Path(path).parent.name == function
            assert Path(path).is_relative_to(self.work_dir(name))
            assert "aclgraphcache_" in path

    def _job(self, name: str) -> ScriptJob:
        return ScriptJob(script=str(SEEDS / f"{name}.py"), work_dir=str(self.work_dir(name)))


def _events_of(result: tuple[int, str]) -> list[CacheEvent]:
    status, output = result
    assert status == 0, output
    return events(output)


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
        prepare("cold")
    gc.disable()  # else each fork's collector goes through all of torch; frozen, it would be counted instead
    sys.stdout.write(json.dumps([result for group in groups for result in forked(group)]))


if __name__ == "__main__":
    main()
