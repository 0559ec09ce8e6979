"""Models that nobody here wrote: compiled in one process, loaded in the next with other weights.

``families TABLE PHASE CACHE_DIR MODE NAME...`` prints a line of JSON for each name. A table is a module with
``load(names)``, which imports what is needed, and ``calls(name, cached, whole=...)``, which builds a model,
calls it and its cached functions, and returns these and how far they are apart. In mode max-autotune, whose
C++ compiler takes longest, prompts run eagerly (``whole`` is false). Each model has a process of its own, a
fork: some tables of these packages grow with every model that a process makes, and traced code reads them.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tests.support.checkout import ended
from tests.support.forks import in_a_fork
from warmrank.inference import cache_compile
from warmrank.worker.configs.compiler_config import CompilerConfig
from warmrank.worker.runtime.function import CachedFunction

Cached = Callable[[Any], CachedFunction]
Calls = tuple[list[CachedFunction], float]
Found = dict[str, dict[str, Any]]

# Strings hash otherwise in the other process; ModernBERT goes over a set of two, which both order alike.
PHASES = {"cold": {"PYTHONHASHSEED": "1"}, "warm": {"PYTHONHASHSEED": "6", "WARMRANK_NO_COMPILE": "1"}}
TRACERS = ("torch._dynamo", "torch._inductor", "sympy", "torch.fx")


def run(table: str, cache: Path, mode: str, names: Sequence[str]) -> dict[str, Found]:
    """What models did in each phase, by phase and name; many at once on two cores."""
    processes = 1 if len(names) < 5 else 2
    shares = [list(names)[start::processes] for start in range(processes)]

    def together(phase: str) -> Found:
        with ThreadPoolExecutor(processes) as pool:
            parts = pool.map(lambda share: _phase(table, phase, cache, mode, share), shares)
            return {name: found for part in parts for name, found in part.items()}

    return {phase: together(phase) for phase in PHASES}


def _phase(table: str, phase: str, cache: Path, mode: str, names: list[str]) -> Found:
    own = {"HF_HUB_OFFLINE": "1", **PHASES[phase]}
    words = ("-m", "tests.support.families", table, phase, str(cache), mode, *names)
    done = ended(*words, given="", more=own, timeout_s=200 * len(names))  # 22 s of one core each, at most
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return {name: found for line in done.stdout.splitlines() for name, found in json.loads(line).items()}


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of an output, however it is packed."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for item in value for one in tensors(item)] if isinstance(value, list | tuple) else []


def furthest(wanted: Any, got: Any) -> float:
    """Largest absolute difference; that of other shapes or types is infinite."""
    pairs = list(zip(tensors(wanted), tensors(got), strict=True))
    if any((one.shape, one.dtype) != (other.shape, other.dtype) for one, other in pairs):
        return float("inf")
    return max(float((one.double() - other.double()).abs().max()) for one, other in pairs)


def _served(table: Any, name: str, cache: Path, mode: str) -> dict[str, Any]:
    config = CompilerConfig()
    config.mode = mode
    known: set[str] = set()

    def cached(method: Any) -> CachedFunction:
        known.update(known or sys.modules)
        return cache_compile(method, cache_dir=cache / name, config=config, ge_cache=mode == "max-autotune")

    with torch.no_grad():
        functions, far = table.calls(name, cached, whole=mode == "reduce-overhead")
    results = [function.last_result for function in functions]
    imported = [module for module in sys.modules if module not in known and module.startswith(TRACERS)]
    return {"outcomes": [result and result.outcome for result in results], "far": far, "imported": imported}


def _forked(table: Any, name: str, cache: Path, mode: str, seed: int) -> dict[str, Any]:
    def served() -> dict[str, Any]:
        torch.manual_seed(seed)
        try:
            return _served(table, name, cache, mode)
        except BaseException:  # noqa: BLE001 - the test shows it
            return {"error": traceback.format_exc()[-3000:]}

    try:
        found: dict[str, Any] = in_a_fork(served)
    except EOFError:
        return {"error": "the process died"}
    return found


def main(table: str, phase: str, cache: str, mode: str, *names: str) -> None:
    torch.set_num_threads(1)
    module = importlib.import_module(table)
    module.load(names)
    if phase == "cold":
        importlib.import_module("warmrank.worker.compile.compiler")
    for name in names:
        found = _forked(module, name, Path(cache), mode, list(PHASES).index(phase))
        print(json.dumps({name: found}), flush=True)  # noqa: T201 - a line each


if __name__ == "__main__":
    main(*sys.argv[1:])
