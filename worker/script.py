"""A plain script under torchrun's variables: it knows nothing of the launch, and caches all the same."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from worker import journal
from worker.errors import CompileForbidden, ScriptFailed
from worker.results import FunctionResult

if TYPE_CHECKING:
    from worker.rank import RankSpec

_log = logging.getLogger(__name__)
_TAIL_LINES = 20


def journal_of(spec: RankSpec) -> Path:
    """Where a rank's script leaves its journal."""
    return Path(spec.cache_dir) / ".journal" / f"world{spec.world_size}global_rank{spec.rank}.jsonl"


def run_script(spec: RankSpec, path: str, arguments: tuple[str, ...]) -> tuple[FunctionResult, ...]:
    """Run a script to its end on this rank.

    Returns:
        One result per cached function that the script called, in the order of their first calls.

    Raises:
        CompileForbidden: it ended because something missed, and compiling is forbidden.
        ScriptFailed: the script is not there, or ended with another error.
    """
    if not Path(path).is_file():
        msg = f"rank {spec.rank}: script {path} is not there (looked for from {Path.cwd()})"
        raise ScriptFailed(msg, rank=spec.rank, script=path)
    file = journal_of(spec)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.unlink(missing_ok=True)
    finished = subprocess.run(  # noqa: S603 - running the user's script is what this is for
        [sys.executable, path, *arguments],
        env={**os.environ, **_variables(spec), "WARMRANK_JOURNAL": str(file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    for line in finished.stdout.splitlines():
        _log.info("%s", line)
    if finished.returncode:
        _raise_if_forbidden(file)
        tail = "\n".join(finished.stdout.splitlines()[-_TAIL_LINES:])
        ended = f"ended with status {finished.returncode}"
        msg = f"rank {spec.rank}: script {path} {ended}; its last lines:\n{tail}"
        raise ScriptFailed(msg, rank=spec.rank, script=path, status=finished.returncode)
    latest: dict[str, FunctionResult] = {}
    for result, _ in journal.read(file):
        latest.setdefault(result.function, result)
    return tuple(latest.values())


def _raise_if_forbidden(file: Path) -> None:
    for function, reason in journal.forbidden(file):
        raise CompileForbidden(reason, function=function, reason=reason)


def _variables(spec: RankSpec) -> dict[str, str]:
    """As torchrun sets them, and where the cache lies; the script's own directory stays importable."""
    return {
        "RANK": str(spec.rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_RANK": str(spec.local_rank),
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "GROUP_RANK": str(spec.node_rank),
        "MASTER_ADDR": spec.master_addr,
        "MASTER_PORT": str(spec.master_port),
        "TORCHAIR_CACHE_HOME": spec.cache_dir,
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path[1:]]),
    }
