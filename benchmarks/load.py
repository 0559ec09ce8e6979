"""How long does a warm rank take to get its compiled function, and what does a call then cost?

The 8-layer example's ``decode``, in fresh processes, one thread each. Side by side in one run: warmrank's
cold compile and warm load, ``torch.compile`` (backend aot_eager, whole graph) in a process of its own, and
eager calls. Ratios are what counts; absolute seconds are this machine's.

Run: ``python benchmarks/load.py [--runs N] [--json FILE]``.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"layers": 8}
FORBIDDEN = ("torch._dynamo", "torch._inductor", "sympy", "ray")
CALLS = 200


def child(cache_dir: str, what: str) -> dict[str, Any]:
    """One fresh process's figures, in seconds."""
    started = perf_counter()
    import torch

    import_torch_s = perf_counter() - started
    started = perf_counter()
    import worker.cached_function
    import worker.engines.graph
    import worker.inference  # noqa: F401 - what a script imports before its model stands

    import_worker_s = perf_counter() - started
    from examples.llama import positions, prompts
    from examples.llama_model import build_model
    from examples.llama_weights import LlamaSizes, full_weights
    from worker.cache_options import LaunchDefaults, launch_defaults

    launch_defaults.set(LaunchDefaults(cache_dir=cache_dir))
    sizes = LlamaSizes(**SIZES)
    with torch.inference_mode():
        model = build_model(sizes, full_weights(sizes), group=None, device=torch.device("cpu"))
        token = prompts(sizes.batch, 1)
        arguments = (token, positions(8, token))
        figures: dict[str, Any] = {"import_torch_s": import_torch_s, "import_worker_s": import_worker_s}
        if what == "torch.compile":
            function = torch.compile(model.decode, backend="aot_eager", fullgraph=True, dynamic=True)
            figures["ready_s"] = timed(lambda: function(*arguments))
            figures["call_s"], _ = per_call_in_turn(lambda: function(*arguments), lambda: None)
            return figures
        gc.collect()
        gc.freeze()  # or a full collection of torch's heap (0.13 s) falls into the load by chance
        started = perf_counter()
        variant = model.cached_decode.ensure(arguments, {})
        figures["load_s"] = perf_counter() - started
        figures["bind_s"] = variant.bind_s
        figures["imported"] = [name for name in FORBIDDEN if name in sys.modules]
        figures["first_call_s"] = timed(lambda: model.cached_decode(*arguments))
        figures["ready_s"] = figures["load_s"] + figures["first_call_s"]
        figures["call_s"], figures["eager_call_s"] = per_call_in_turn(
            lambda: model.cached_decode(*arguments), lambda: model.decode(*arguments)
        )
        return figures


def timed(call: Any) -> float:
    """Seconds of one call."""
    started = perf_counter()
    call()
    return perf_counter() - started


def per_call_in_turn(one: Any, other: Any) -> tuple[float, float]:
    """Median seconds of two calls that take turns, so that noise falls on both alike."""
    pairs = [(timed(one), timed(other)) for _ in range(CALLS)]
    return median(first for first, _ in pairs), median(second for _, second in pairs)


def run(cache_dir: str, what: str) -> dict[str, Any]:
    """Figures of a child process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--child", what, "--cache", cache_dir]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    return figures


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child")
    parser.add_argument("--cache", default="")
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.cache, options.child)))
        return
    with tempfile.TemporaryDirectory() as bytecode, tempfile.TemporaryDirectory() as cache_dir:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        run(str(Path(bytecode) / "cache"), "cold")  # writes the bytecode that any installation has
        cold = run(cache_dir, "cold")
        pairs = [(run(cache_dir, "warm"), run(cache_dir, "torch.compile")) for _ in range(options.runs)]
    warm = {key: median(figures[key] for figures, _ in pairs) for key in pairs[0][0] if key.endswith("_s")}
    peer = {key: median(figures[key] for _, figures in pairs) for key in pairs[0][1] if key.endswith("_s")}
    imported = sorted({name for figures, _ in pairs for name in figures["imported"]})
    report(cold, warm, peer, imported, options.json)


def median(values: Any) -> float:
    """Median of an iterable."""
    return float(statistics.median(list(values)))


def report(
    cold: dict[str, Any],
    warm: dict[str, float],
    peer: dict[str, float],
    imported: list[str],
    file: Path | None,
) -> None:
    """Print the table; write it as JSON where wanted."""
    rows = [
        ("cold: trace, compile, load (s)", cold["load_s"]),
        ("import torch (ms)", warm["import_torch_s"] * 1e3),
        ("import of warmrank's modules on top (ms)", warm["import_worker_s"] * 1e3),
        ("warm: load after import torch (ms)", warm["load_s"] * 1e3),
        ("warm: of which binding (ms)", warm["bind_s"] * 1e3),
        ("warm: first call, with capture (ms)", warm["first_call_s"] * 1e3),
        ("torch.compile, aot_eager: first call (s)", peer["ready_s"]),
        ("ratio: torch.compile / warm, until the first result", peer["ready_s"] / warm["ready_s"]),
        ("ratio: cold / warm, until loaded", cold["load_s"] / warm["load_s"]),
        ("call, eager (us)", warm["eager_call_s"] * 1e6),
        ("call, warmrank (us)", warm["call_s"] * 1e6),
        ("call, torch.compile aot_eager (us)", peer["call_s"] * 1e6),
        ("ratio: eager / warmrank, a call", warm["eager_call_s"] / warm["call_s"]),
    ]
    for name, value in rows:
        print(f"{name:<56}{value:>12.3f}")
    print(f"imported by the warm load of {', '.join(FORBIDDEN)}: {', '.join(imported) or 'none'}")
    if file is not None:
        import torch

        place = {"python": platform.python_version(), "torch": torch.__version__, "cpus": os.cpu_count()}
        file.write_text(json.dumps({"rows": dict(rows), "imported": imported, "place": place}, indent=2))


if __name__ == "__main__":
    main()
