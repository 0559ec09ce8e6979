"""Medians and ratios of the load benchmark, as a table and beside their targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TITLES = {
    "eager.warm": "eager",
    "inductor.fill": "torch.compile, empty caches",
    "inductor.warm": "torch.compile, FX-graph and AOTAutograd caches",
    "mega_cache.warm": "torch.compile, Mega-Cache",
    "aot_compile.warm": "aot_compile, loaded",
    "npugraph_ex.warm": "npugraph_ex cache_compile, emulated NPU",
    "warmrank_reduce_overhead.fill": "warmrank reduce-overhead, compiling",
    "warmrank_reduce_overhead.warm": "warmrank reduce-overhead",
    "warmrank_max_autotune.fill": "warmrank max-autotune, compiling",
    "warmrank_max_autotune.warm": "warmrank max-autotune",
}
HEADS = (
    ("first", "/ reduce-", "/ max-", "second", "later", "eager /", "kernel"),
    ("output ms", "overhead", "autotune", "call ms", "call us", "it", "us"),
)
TORCH_WARM = ("inductor.warm", "mega_cache.warm", "aot_compile.warm")
MODES = ("warmrank_reduce_overhead.warm", "warmrank_max_autotune.warm")

Figures = Mapping[str, Any]


def summary(found: Mapping[str, Sequence[Figures]]) -> dict[str, dict[str, Any]]:
    """Medians of each way's processes, or why it has none."""
    rows: dict[str, dict[str, Any]] = {}
    for name, runs in found.items():
        if missing := next((run["not_here"] for run in runs if "not_here" in run), None):
            rows[name] = {"not_here": missing}
            continue
        keys = [key for key, value in runs[0].items() if isinstance(value, int | float)]
        rows[name] = {key: statistics.median(run[key] for run in runs) for key in keys}
        # Each call beside eager's of the same process: what another process suffered does not count.
        rows[name]["call_ratio"] = statistics.median(run["eager_call_s"] / run["call_s"] for run in runs)
    return rows


def targets(layers: int, rows: Mapping[str, Figures]) -> list[tuple[str, float, float, str]]:
    """What the issue asks for: name, figure, limit, and whether the figure has to be above or below it."""
    found: list[tuple[str, float, float, str]] = []
    reduce, tuned = (_measured(rows, name) for name in MODES)
    torch_warm = [row for name in TORCH_WARM if (row := _measured(rows, name))]
    if tuned and torch_warm:
        fastest = min(row["first_output_s"] for row in torch_warm)
        ratio = fastest / tuned["first_output_s"]
        found.append(("first output: fastest of torch's warm caches / max-autotune", ratio, 100, "above"))
    npugraph_ex = _measured(rows, "npugraph_ex.warm")
    if reduce and npugraph_ex:
        ratio = npugraph_ex["first_output_s"] / reduce["first_output_s"]
        found.append(("first output: npugraph_ex / reduce-overhead", ratio, 100, "above"))
    inductor = _measured(rows, "inductor.warm")
    if tuned and inductor:
        ratio = tuned["call_ratio"] / inductor["call_ratio"]
        found.append(("later call: torch.compile / max-autotune", ratio, 1, "above"))
    for mode, row in zip(("reduce-overhead", "max-autotune"), (reduce, tuned), strict=True):
        if row:
            found.append((f"{mode}: load (ms a layer)", row["load_s"] * 1e3 / layers, 1, "below"))
        if row and "dispatch_s" in row:
            limit = 20 + 0.1 * row["num_parameters"]
            found.append(
                (f"{mode}: dispatch over the bare kernel (us)", row["dispatch_s"] * 1e6, limit, "below")
            )
            own_s = row["dispatch_s"] - row["guards_s"]
            found.append((f"{mode}: of it all but guards (us; fast cores: 20)", own_s * 1e6, 60, "below"))
    return found


def _measured(rows: Mapping[str, Figures], name: str) -> Figures | None:
    row = rows.get(name)
    return None if row is None or "not_here" in row else row


def report(layers: int, rows: Mapping[str, Figures], write: Callable[[str], None] = print) -> None:
    """Print one table for one number of layers."""
    shown = {name: rows[name] for name in TITLES if name in rows}
    parameters = max((row.get("num_parameters", 0) for row in shown.values()), default=0)
    write(f"\n{layers} layers, {parameters:.0f} parameters")
    for heads in HEADS:
        first, *middle, eager, kernel = heads
        write(f"{'':<50}{first:>11}{''.join(f'{head:>10}' for head in middle)}{eager:>9}{kernel:>10}")
    for name, row in shown.items():
        write(_line(TITLES[name], row, [_measured(rows, mode) for mode in MODES]))
    for name, row in shown.items():
        if "own_alone_s" in row:
            alone, after = row["own_alone_s"] * 1e6, row["own_after_eager_s"] * 1e6
            write(f"{TITLES[name]}: without its kernel {alone:.1f} us, after an eager call {after:.1f} us")
    for what, figure, limit, side in targets(layers, rows):
        met = figure >= limit if side == "above" else figure < limit
        write(f"{what:<62}{figure:>10.2f}   {'met' if met else 'MISSED'}: {side} {limit:g}")


def _line(title: str, row: Figures, modes: Sequence[Figures | None]) -> str:
    if "not_here" in row:
        return f"{title:<50}  {row['not_here']}"
    ratios = "".join(
        f"{row['first_output_s'] / mode['first_output_s']:>10.2f}" if mode else f"{'-':>10}" for mode in modes
    )
    kernel = f"{row['kernel_s'] * 1e6:>10.1f}" if "kernel_s" in row else f"{'':>10}"
    return (
        f"{title:<50}{row['first_output_s'] * 1e3:>11.2f}{ratios}"
        f"{row['second_call_s'] * 1e3:>10.2f}{row['call_s'] * 1e6:>10.1f}{row['call_ratio']:>9.2f}{kernel}"
    )
