"""Small values, errors, the garbage collector, variables of the environment, threads and processes."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from filelock import FileLock

from tests.support.checkout import ROOT, python
from warmrank.cache_store.backends.deadline import Call, Ticks, all_within
from warmrank.cache_store.cache_dir import single_flight as flight
from warmrank.cache_store.cache_dir.single_flight import LOCK_NAME, LOCKS, one_compile
from warmrank.orchestrator.gang.ray_session import inherited
from warmrank.worker import collection, errors
from warmrank.worker.collection import paused
from warmrank.worker.errors import NotYet, StateChanged, WorkerError
from warmrank.worker.values import Value


class Point(Value):
    """Two numbers and what they are called."""

    kind: ClassVar[str] = "point"
    x: int
    y: int = 0
    names: tuple[str, ...] = ()
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Twin:
    x: int
    y: int = 0
    names: tuple[str, ...] = ()
    tags: list[str] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize("changed", [{"y": 1}, {"x": 2}, {"names": ("a",)}, {"tags": ["t"]}])
def test_values_are_equal_by_all_their_fields(changed: dict[str, Any]) -> None:
    base: dict[str, Any] = {"x": 1}
    assert Point(**base) == Point(**base)
    assert Point(**base) != Point(**{**base, **changed})


def test_values_without_names_are_refused_with_the_fields() -> None:
    with pytest.raises(TypeError, match="Point takes its fields by name; its fields: x, y, names, tags"):
        Point(1)  # type: ignore[call-arg] # as users write it


def test_dataclasses_take_values_for_their_own() -> None:
    made, twin = Point(x=1, names=("a",)), Twin(x=1, names=("a",))
    assert dataclasses.asdict(made) == dataclasses.asdict(twin)
    changed = dataclasses.replace(made, y=3)
    assert dataclasses.asdict(changed) == dataclasses.asdict(dataclasses.replace(twin, y=3))
    described = [(one.name, one.type, one.kw_only) for one in dataclasses.fields(Point)]
    assert described == [(one.name, one.type, one.kw_only) for one in dataclasses.fields(Twin)]
    assert dataclasses.is_dataclass(made)


KINDS = sorted(
    (kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WorkerError)),
    key=lambda kind: kind.__name__,
)


def make(kind: type[WorkerError]) -> WorkerError:
    if kind is StateChanged:
        return StateChanged("layer.weight", None)
    return NotYet("x", instead="y") if kind is NotYet else kind("what happened", rank=3)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_error_of_every_kind_survives_pickling(kind: type[WorkerError]) -> None:
    error = make(kind)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert (type(copy), str(copy), copy.fields) == (kind, str(error), error.fields)


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    was_enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.enable()
    yield
    if gc.get_freeze_count() > frozen:
        gc.unfreeze()
    collection._State.is_frozen = False
    (gc.enable if was_enabled else gc.disable)()


def test_collector_waits_and_goes_on() -> None:
    with paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_cycles_that_were_made_meanwhile_are_collected_later() -> None:
    class Node:
        def __init__(self) -> None:
            self.own = self

    with paused():
        for _ in range(10):
            Node()
    gc.collect()
    assert not any(type(one) is Node for one in gc.get_objects())


@pytest.mark.parametrize("freeze", [gc.freeze, collection.freeze], ids=["by somebody", "by warmrank"])
def test_what_is_frozen_is_counted_once_at_most(freeze, monkeypatch):
    freeze()
    counted: list[int] = []
    count = gc.get_freeze_count

    def counting() -> int:
        counted.append(1)
        return count()

    with monkeypatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", counting)
        for _ in range(5):
            with paused():
                pass
    assert len(counted) == (1 if freeze is gc.freeze else 0)


def test_collector_goes_on_when_the_last_of_many_threads_is_done() -> None:
    def pause_often(_: int) -> None:
        for _ in range(2000):
            with paused():
                pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(pause_often, range(4)))
    assert gc.isenabled()


def test_collector_goes_on_in_a_child_that_was_forked_meanwhile() -> None:
    with paused():
        child = os.fork()
        if not child:
            is_running = gc.isenabled()
            gc.disable()  # which is its own to say from now on
            grandchild = os.fork()
            if not grandchild:
                os._exit(gc.isenabled())
            _, status = os.waitpid(grandchild, 0)
            os._exit(0 if is_running and not status else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


NAME = "WARMRANK_TEST_VARIABLE"


@pytest.mark.parametrize("before", [None, "old"])
def test_variable_is_set_inside_and_as_before_outside_also_after_an_error(monkeypatch, before):
    monkeypatch.delenv(NAME, raising=False)
    if before is not None:
        monkeypatch.setenv(NAME, before)
    with contextlib.suppress(KeyError), inherited(NAME, "new"):
        assert os.environ[NAME] == "new"
        raise KeyError
    assert os.environ.get(NAME) == before


STUCK = """
import threading
from warmrank.cache_store.parallel import each
begun = threading.Barrier(3)
def hang(_):
    begun.wait()
    threading.Event().wait()
threading.Thread(target=each, args=(hang, range(2)), kwargs={"num_threads": 2}, daemon=True).start()
begun.wait()
"""


def test_call_that_never_returns_keeps_no_process_from_ending():
    python("-c", STUCK)


HOLD = """
import sys
from pathlib import Path
from warmrank.cache_store.cache_dir.single_flight import one_compile, single_flight
with {lock}:
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held(root: Path, lock: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds a lock until its input ends."""
    command = [sys.executable, "-c", HOLD.format(lock=lock), str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder


def is_free(cache: Path) -> bool:
    lock = FileLock(cache / LOCKS / LOCK_NAME, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except TimeoutError:
        return False
    lock.release()
    return True


def test_holder_that_was_killed_holds_no_lock(tmp_path):
    with held(tmp_path, "single_flight(Path(sys.argv[1]), timeout_s=0.0)") as holder:
        assert not is_free(tmp_path)
        os.kill(holder.pid, signal.SIGKILL)
    assert is_free(tmp_path)


def test_compile_waits_for_that_of_another_process_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight, "COMPILE_TIMEOUT_S", 0.0)
    with held(tmp_path, 'one_compile(Path(sys.argv[1]), "model/forward")') as holder:
        assert one_waits(tmp_path, "model/other") is False
        assert one_waits(tmp_path, "model/forward") is True
        holder.communicate(b"")
    assert one_waits(tmp_path, "model/forward") is False
    assert not list(tmp_path.rglob("*.lock"))


def one_waits(root: Path, what: str) -> bool:
    with one_compile(root, what) as has_waited:
        return has_waited


def test_all_silent_calls_together_cost_one_timeout() -> None:
    released = threading.Event()
    now_s = 0.0
    waits: list[float] = []

    def wait(call: Call[object], seconds: float) -> bool:
        nonlocal now_s
        waits.append(seconds)
        now_s += seconds
        return call.wait(0.0)

    try:
        ticks = Ticks(clock=lambda: now_s, wait=wait)
        assert all_within([released.wait] * 5, timeout_s=0.5, ticks=ticks) == (None,) * 5
    finally:
        released.set()
    assert 0.5 <= sum(waits) < 0.7


def test_time_in_which_this_process_did_not_run_is_not_counted() -> None:
    asked = threading.Event()
    now_s = 0.0

    def wait(call: Call[object], seconds: float) -> bool:
        nonlocal now_s
        now_s += 100  # far more than was asked for
        asked.set()
        return call.wait(60) if now_s > 250 else False

    def answer() -> str:
        asked.wait(60)
        return "here"

    ticks = Ticks(clock=lambda: now_s, wait=wait)
    assert all_within([answer], timeout_s=0.5, ticks=ticks) == ("here",)
