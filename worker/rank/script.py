"""A plain script under torchrun's variables: it knows nothing of the launch, and caches all the same."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from warmrank.worker import journal
from warmrank.worker.errors import CompileForbidden, ScriptFailed, WorkloadError
from warmrank.worker.results import FunctionResult

if TYPE_CHECKING:
    from collections.abc import Iterable

    from warmrank.worker.rank.start import RankSpec

_log = logging.getLogger(__name__)
_TAIL_LINES = 20


def journal_of(spec: RankSpec) -> Path:
    """Journal of the script that this process runs: launches side by side do not mix."""
    partition = f"world{spec.world_size}global_rank{spec.rank}"
    return Path(spec.cache_dir) / ".journal" / f"{partition}-{os.getpid()}.jsonl"


def run_script(spec: RankSpec, path: str, arguments: tuple[str, ...]) -> tuple[FunctionResult, ...]:
    """Run a script to its end on this rank.

    Returns:
        One result per artifact of each cached function that the script called, in the order of their first
        uses; a function's second one is named ``Model.f[1]``.

    Raises:
        CompileForbidden: it ended because something missed, and compiling is forbidden.
        ScriptFailed: the script ended with another error.
        WorkloadError: it is not there.
    """
    if not Path(path).is_file():
        msg = f"rank {spec.rank}: script {path} is not there (looked for from {Path.cwd()})"
        raise WorkloadError(msg, rank=spec.rank, script=path)
    file = journal_of(spec)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.unlink(missing_ok=True)
    environ = {**os.environ, **_variables(spec), "WARMRANK_JOURNAL": str(file)}
    status, tail = _run([sys.executable, path, *arguments], environ)
    if status:
        for function, reason in journal.forbidden(file):
            raise CompileForbidden(reason, function=function, reason=reason)
        last = "\n".join(tail)
        msg = f"rank {spec.rank}: script {path} ended with status {status}; its last lines:\n{last}"
        raise ScriptFailed(msg, rank=spec.rank, script=path, status=status)
    return _distinct(result for result, _ in journal.read(file))


def _run(command: list[str], environ: dict[str, str]) -> tuple[int, deque[str]]:
    """Run a command, its output logged line by line as it comes; its status and last lines."""
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with subprocess.Popen(  # noqa: S603 - running the user's script is what this is for
        command,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            for line in process.stdout:
                tail.append(line.rstrip("\n"))
                _log.info("%s", tail[-1])
        except BaseException:
            process.kill()
            raise
    return process.returncode, tail


def _distinct(results: Iterable[FunctionResult]) -> tuple[FunctionResult, ...]:
    """The first result of each artifact of each function, under names of their own."""
    first: dict[tuple[str, str], FunctionResult] = {}
    num_seen: Counter[str] = Counter()
    for result in results:
        name, slot = result.function, (result.function, result.digest)
        if slot not in first:
            first[slot] = replace(result, function=f"{name}[{num_seen[name]}]" if num_seen[name] else name)
            num_seen[name] += 1
    return tuple(first.values())


def _variables(spec: RankSpec) -> dict[str, str]:
    """As torchrun sets them, and where the cache lies; the script's own directory stays importable."""
    # Where compiling is allowed, what the variable says is left as it is.
    forbidden = {"WARMRANK_NO_COMPILE": "1"} if spec.no_compile else {}
    return (
        forbidden
        | {
            "RANK": str(spec.rank),
            "WORLD_SIZE": str(spec.world_size),
            "LOCAL_RANK": str(spec.local_rank),
            "LOCAL_WORLD_SIZE": str(spec.local_world_size),
            "GROUP_RANK": str(spec.node_rank),
            "MASTER_ADDR": spec.master_addr,
            "MASTER_PORT": str(spec.master_port),
            "TORCHAIR_CACHE_HOME": spec.cache_dir,
            "PYTHONUNBUFFERED": "1",  # its output is followed line by line
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path[1:]]),
        }
    )
