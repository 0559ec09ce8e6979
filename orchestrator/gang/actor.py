"""The Ray actor of one rank: a thin shell around `RankHost` that sends the process's output to a log file."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from warmrank.cache_store.cache_dir.private_files import ensure_cache_dir, make_private_directories
from warmrank.cache_store.errors import StoreError
from warmrank.orchestrator.gang import rank_files
from warmrank.orchestrator.gang.launcher import Process, free_port
from warmrank.orchestrator.gang.rank_host import MakeWorker, RankHost, answer
from warmrank.worker import collection

# Appending: a launch of the same name beside this one does not write over its lines.
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW


class RankActor:
    """One process of the gang; becomes a rank when the driver has seen where all processes are.

    It sets ``environ``, in time: torch reads it when the worker imports it, later.
    """

    def __init__(self, environ: Mapping[str, str], make_worker: MakeWorker | None) -> None:
        os.environ.update(environ)
        if make_worker is None:
            # Beside all that is to be done before the rank has a place; torch alone takes a second or two.
            threading.Thread(target=_import_ahead, name="import-ahead", daemon=True).start()
        self._host = RankHost(make_worker)
        self._step: rank_files.StepFile | None = None

    def process(self) -> Process:
        """This process, for the driver to assign a rank to."""
        import ray

        node_id, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return Process(node_id=node_id, host=os.uname().nodename, address=address, pid=os.getpid())

    def free_port(self, address: str) -> int:
        """A TCP port that is free on this node."""
        return free_port(address)

    def log_to(self, rank: int, cache_dir: Path, log: Path) -> None:
        """Send log records, prints and a crash's last words of this process to a file of its own."""
        try:
            ensure_cache_dir(cache_dir)
            make_private_directories(log.parent)
            descriptor = os.open(log, _LOG_FLAGS, 0o600)
        except (StoreError, OSError):
            return  # stage start meets the same fault, and reports it
        self._step = rank_files.StepFile(rank_files.step_file(log))
        self._host.note = self._step.note
        rank_files.record_stacks(rank_files.stacks_file(log))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(descriptor, stream.fileno())
        os.close(descriptor)
        line = f"%(asctime)s %(levelname)s rank {rank} %(name)s: %(message)s"
        logging.basicConfig(level=logging.INFO, format=line, stream=sys.stderr, force=True)
        logging.getLogger(__name__).info("Process %d on %s", os.getpid(), os.uname().nodename)

    def call(self, rank: int, stage: str, method: str, *arguments: Any) -> Any:
        """Call a method of the rank's host; a failure comes back as a value."""
        if self._step is not None:
            self._step.note(_in_words(stage, method, arguments))
        found = answer(self._host, rank, stage, method, arguments)
        if self._step is not None:
            self._step.note("")
            if method == RankHost.close.__name__:
                self._step.close()
        if method == RankHost.build.__name__:
            # torch and the model live as long as this process: without this, each full collection walks
            # all of it (0.13 s), and one falls into the load by chance.
            collection.freeze()
        return found


def _import_ahead() -> None:
    """Import what `open` needs; should that fail, `open` meets the same fault, and reports it."""
    with suppress(Exception):
        importlib.import_module("warmrank.worker.rank.start")
        importlib.import_module("torch.distributed")


def _in_words(stage: str, method: str, arguments: tuple[Any, ...]) -> str:
    """A call's work in words: ``compile Model.decode``."""
    if method == RankHost.compile.__name__:
        doing = zip(("compile", "audit"), arguments, strict=True)
        return "; ".join(f"{what} {', '.join(names)}" for what, names in doing if names)
    return stage if method == stage else f"{stage}: {method.replace('_', ' ')}"
