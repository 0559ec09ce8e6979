"""Damaged artifacts of engine torchair: eager's result, a reason, and no neighbour touched."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import npu_emulator
from tests.support.checkout import ROOT
from tests.support.loop_mounts import NAMESPACE, why_not
from tests.support.npu_damage_child import build, cached, is_right
from warmrank.cache_store.cache_dir.single_flight import LOCKS
from warmrank.worker.runtime import artifact as artifacts
from warmrank.worker.runtime.artifact import Artifact
from warmrank.worker.runtime.files import to_bytes

MODES = ("reduce-overhead", "npugraph_ex")
NEIGHBOURS = {
    "ge_cache_20260101.om": b"a graph of GE's",
    "ts123_static_kernel/package.run": b"a static kernel package",
    "debug/notes.txt": b"whatever else",
}


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process's private directories are made."""
    path = tmp_path / "private"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each mode a cache directory with a function, its neighbours, and other files beside them."""
    return {mode: fill(tmp_path_factory.mktemp(mode), mode) for mode in MODES}


def fill(cache: Path, mode: str) -> Path:
    model = build()
    function, other = cached(model, mode, cache), cached(model, mode, cache, "other")
    with torch.no_grad():
        assert is_right(model, function)
        other(torch.ones(3, 4))
        cached(model, mode, cache, "other")(torch.ones(6, 4).t().contiguous().t())  # another variant
    function_dir = function.place().function_dir
    for name, data in NEIGHBOURS.items():
        for path in (function_dir / name, function_dir.parent / name):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
    rank = function_dir.parent / "world2global_rank1" / "other"
    shutil.copytree(other.place().function_dir, rank)
    return cache


class Damage:
    """A copy of a filled cache directory, whose artifact of `Damaged.step` a test damages."""

    def __init__(self, mode: str, cache: Path) -> None:
        self.mode, self.cache, self.model = mode, cache, build()
        self.file = cached(self.model, mode, cache).place().function_dir / "compiled_module"
        self.neighbours = self.others()

    def others(self) -> dict[str, tuple[int, bytes]]:
        """Mode and content of every file but the artifact, its variants, what was set aside, and locks."""
        return {
            str(path.relative_to(self.cache)): (stat.S_IMODE(path.lstat().st_mode), path.read_bytes())
            for path in sorted(self.cache.rglob("*"))
            if path.is_file()
            and path.parent.name != LOCKS
            and not (path.parent == self.file.parent and path.name.startswith(self.file.name))
        }

    def artifact(self) -> Artifact:
        return artifacts.parse(self.file.read_bytes(), str(self.file))

    def put(self, data: bytes) -> None:
        self.file.write_bytes(data)

    def put_sections(self, **changed: bytes) -> None:
        """A valid artifact with other sections."""
        sections = {name.replace(".", "_"): name for name in self.artifact().sections}
        new = {sections[name]: data for name, data in changed.items()}
        artifact = self.artifact()
        self.put(to_bytes(replace(artifact, sections={**artifact.sections, **new})))

    def check(self, reason: str) -> None:
        """A call is right and says why it compiles; the next process loads; the neighbours are the same."""
        function = cached(self.model, self.mode, self.cache)
        assert is_right(self.model, function)
        result = function.last_result
        assert (result.outcome, reason in result.reason) == ("compiled", True), result.reason
        assert self.others() == self.neighbours
        later = cached(self.model, self.mode, self.cache)
        assert is_right(self.model, later)
        assert later.last_result.outcome == "loaded"
        assert self.others() == self.neighbours


@pytest.fixture(params=MODES)
def damage(request: pytest.FixtureRequest, filled: dict[str, Path], tmp_path: Path) -> Damage:
    return of_mode(request.param, filled, tmp_path)


@pytest.fixture
def one_damage(filled: dict[str, Path], tmp_path: Path) -> Damage:
    return of_mode("npugraph_ex", filled, tmp_path)


def of_mode(mode: str, filled: dict[str, Path], tmp_path: Path) -> Damage:
    cache = tmp_path / "cache"
    shutil.copytree(filled[mode], cache)
    return Damage(mode, cache)


@pytest.mark.parametrize("flipped", [False, True], ids=["cut", "flipped bit"])
def test_damaged_bytes_are_compiled_again(damage: Damage, *, flipped: bool) -> None:
    data = bytearray(damage.file.read_bytes())
    if flipped:
        data[-100] ^= 4
    damage.put(bytes(data if flipped else data[: len(data) // 2]))
    damage.check("its bytes do not match the digest" if flipped else "corrupt")
    assert damage.file.with_name("compiled_module.corrupt").exists()


def test_torchairs_own_file_is_compiled_again(damage: Damage) -> None:
    """As it lies there after a script was moved from TorchAir."""
    from warmrank.worker.engines.torchair_vendor import vendor_for

    models = vendor_for(damage.mode).cache
    model = models.CompiledModel(damage.model.step)
    model.compiled_fn = build.__code__
    model.compiled_fx = models.CompiledFX("signature", "raise SystemExit", [])
    model.save(str(damage.file))
    assert models.CompiledModel.load(str(damage.file))
    damage.check("it is a pickle")


def test_others_may_read_it(damage: Damage) -> None:
    damage.file.chmod(0o644)
    damage.check("found mode 0644")
    assert stat.S_IMODE(damage.file.stat().st_mode) == 0o644


SECTIONS = {
    "file version of another TorchAir": (
        "torchair_json",
        lambda data: json.dumps({**json.loads(data), "version": "0.0.1"}).encode(),
        "Version mismatch",
    ),
    "no JSON": ("torchair_json", lambda data: data[:-3], "cannot be read"),
    "code that does not parse": ("torchair_py", lambda data: data + b"\n)", "cannot be read"),
    "code that raises an error": ("torchair_py", lambda data: data + b"\nraise OSError('mine')\n", "mine"),
}


@pytest.mark.parametrize("what", SECTIONS)
def test_valid_file_with_a_bad_section_is_passed_over(one_damage: Damage, private: Path, what: str) -> None:
    """Whoever wrote it: its digest is right, and TorchAir does not take what is in it."""
    section, change, reason = SECTIONS[what]
    before = one_damage.artifact().sections[section.replace("_", ".")]
    assert change(before) != before
    one_damage.put_sections(**{section: change(before)})
    one_damage.check(reason)
    gc.collect()  # a directory ends with the function that was loaded from it
    assert not list(private.iterdir())


def test_whole_copy_of_another_rank_is_adopted(one_damage: Damage) -> None:
    whole = one_damage.file.parent.parent / "world2global_rank1" / "step" / "compiled_module"
    whole.parent.mkdir()
    shutil.copy2(one_damage.file, whole)
    data = whole.read_bytes()
    one_damage.put(b"torn")
    function = cached(one_damage.model, one_damage.mode, one_damage.cache)
    assert is_right(one_damage.model, function)
    assert function.last_result.outcome == "adopted"
    assert whole.read_bytes() == data


def child(*arguments: str, tmpdir: Path, around: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*around, sys.executable, "-m", "tests.support.npu_damage_child", *arguments]
    environment = {**npu_emulator.environ(), "TMPDIR": str(tmpdir)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=400
    )


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_process_that_is_killed_in_a_compile_leaves_the_cache_whole(one_damage, private):
    """And one that ends normally leaves nothing in the directory for temporary files."""
    one_damage.file.unlink()
    done = child(one_damage.mode, str(one_damage.cache), "killed", tmpdir=private)
    assert done.returncode == -signal.SIGKILL, done.stderr[-4000:]
    left = list(private.glob("warmrank-torchair-*"))
    assert [stat.S_IMODE(path.stat().st_mode) for path in left] == [0o700]
    assert one_damage.others() == one_damage.neighbours
    for outcome in ("compiled", "loaded"):
        found = told(child(one_damage.mode, str(one_damage.cache), "call", tmpdir=private))
        assert found == {"right": True, "outcome": outcome}
        assert list(private.glob("warmrank-torchair-*")) == left
    assert one_damage.others() == one_damage.neighbours


def test_what_a_killed_process_left_is_removed_a_day_later(private: Path, damage: Damage) -> None:
    from warmrank.worker.engines import torchair_vendor

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    name = f"warmrank-torchair-{os.uname().nodename}-{ended.pid}-{'0' * 32}"
    old, running = private / name, private / name.replace(str(ended.pid), str(os.getpid()))
    for path in (old, running):
        path.mkdir()
        (path / "compiled_module").write_bytes(b"left")
        os.utime(path, (0, 0))
    torchair_vendor._sweep_once.cache_clear()
    assert is_right(damage.model, cached(damage.model, damage.mode, damage.cache))
    assert not old.exists()
    assert running.exists()


def test_processes_that_compile_at_once_both_get_it_right(one_damage: Damage, private: Path) -> None:
    one_damage.file.unlink()
    words = (one_damage.mode, str(one_damage.cache), "call")
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: told(child(*words, tmpdir=private)), range(2)))
    assert [found["right"] for found in both] == [True, True]
    files = [path.name for path in one_damage.file.parent.glob("compiled_module*")]
    assert files == ["compiled_module"]  # equal compiles are equal bytes
    assert one_damage.others() == one_damage.neighbours
    assert not list(private.glob("warmrank-torchair-*"))


def test_full_disk_for_temporary_files_is_said(one_damage: Damage, private: Path) -> None:
    """In a compile and in a load; the cache directory is on another disk, and stays as it is."""
    if reason := why_not("ext4"):
        pytest.skip(reason)
    one_damage.file.unlink()
    mounted = ("sh", "-c", f'mount -t tmpfs -o size=64k,mode=700 tmpfs "{private}" && exec "$@"', "sh")
    done = child(
        one_damage.mode, str(one_damage.cache), "full", tmpdir=private, around=(*NAMESPACE, *mounted)
    )
    found = told(done)
    assert "No space left on device" in found["compile"]
    assert "No space left on device" in found["load"]
    assert "set TMPDIR" in found["load"]
    assert (found["right"], found["outcome"]) == (True, "loaded")
    assert one_damage.others() == one_damage.neighbours
