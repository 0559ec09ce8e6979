"""Scripts written for TorchAir, run twice through ``warmrank run``'s function: cold, then warm.

The first run is in a fork of a process that has imported the tracer, the second one, on a CPU, in a fork of a
process that has not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests import npu_emulator
from tests.support.checkout import PYTHONPATH, ROOT, ended
from tests.support.script_child import ScriptJob

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


def ran(groups: list[list[ScriptJob]], *options: str) -> list[tuple[int, str]]:
    """Exit status and output of each job; those of a group run at the same time."""
    environment = npu_emulator.environ({"PYTHONPATH": PYTHONPATH}) if "--npu" in options else {}
    given = json.dumps([[asdict(job) for job in group] for group in groups])
    done = ended("-m", "tests.support.script_child", *options, given=given, more=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [(status, output) for status, output in json.loads(done.stdout.splitlines()[-1])]


def events(output: str) -> list[CacheEvent]:
    """What a script logged about its cache as (verb, name, date, path)."""
    found = map(CACHE_LINE.search, output.splitlines())
    return [(m["verb"], m["name"], m["date"], m["path"]) for m in found if m]


class Runs:
    """Runs scripts twice in a directory of their own: all first runs, then all second ones."""

    def __init__(self, root: Path, names: Sequence[str], *, npu: bool = False) -> None:
        self.root = root
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
