"""What the figures of all ways say: the best run of each, the ratios, and where a warm launch's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COMPILE_GOAL = 1.2
WARM_GOAL = 1.1
COLUMNS = ("unaudited", "cold", "warm", "node", "build", "groups", "fx warm", "shared cold", "shared warm")


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures by number of ranks; of several runs of a way the fastest counts, and the least CPU time."""
    sizes = sorted({run["ranks"] for run in runs})
    lines = {size: _of_size([run for run in runs if run["ranks"] == size]) for size in sizes}
    one = lines[sizes[0]]["compile_cpu_s"]
    for line in lines.values():
        line["compile_ratio"] = line["compile_cpu_s"] / one
    return {
        "sizes": {str(size): line for size, line in lines.items()},
        "driver_cpu_s_a_rank": slope({size: line["driver_cpu_s"]["warm"] for size, line in lines.items()}),
        "plain_driver_cpu_s_a_rank": slope(
            {size: line["driver_cpu_s"]["build"] for size, line in lines.items()}
        ),
        "goals": {
            "compile": max(line["compile_ratio"] for line in lines.values()) <= COMPILE_GOAL,
            "warm": max(line["warm_over_build"] for line in lines.values()) <= WARM_GOAL,
        },
    }


def slope(values: Mapping[int, float]) -> float:
    """How much a value grows with each rank, by least squares; 0 for one size."""
    mean_x = sum(values) / len(values)
    mean_y = sum(values.values()) / len(values)
    spread = sum((x - mean_x) ** 2 for x in values)
    return sum((x - mean_x) * (y - mean_y) for x, y in values.items()) / spread if spread else 0.0


def _of_size(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ways = list(dict.fromkeys(run["way"] for run in runs))
    best = {way: min((r for r in runs if r["way"] == way), key=lambda r: r["wall_s"]) for way in ways}
    walls = {way: best[way]["wall_s"] for way in ways}
    drivers, ranks = (_least(runs, ways, name) for name in ("driver_cpu_s", "ranks_cpu_s"))
    cpu = {way: drivers[way] + ranks[way] for way in ways}
    return {
        "wall_s": walls,
        "driver_cpu_s": drivers,
        "ranks_cpu_s": ranks,
        "compile_cpu_s": best["unaudited"]["stages"]["compile"]["ranks_cpu_s"],
        "audit": _audit(best["cold"], best["unaudited"]),
        "outcomes": {way: best[way]["outcomes"] for way in ways if "outcomes" in best[way]},
        "warm_over_cold": walls["warm"] / walls["cold"],
        "warm_over_build": walls["warm"] / walls["build"],
        "warm_over_groups": walls["warm"] / walls["groups"],
        "warm_over_build_cpu": cpu["warm"] / cpu["build"],
        "stages": {way: best[way]["stages"] for way in ways if "stages" in best[way]},
    }


def _audit(audited: Mapping[str, Any], unaudited: Mapping[str, Any]) -> dict[str, Any]:
    """What the audit added to the stage that compiles."""
    with_it, without = (run["stages"]["compile"] for run in (audited, unaudited))
    return {
        **audited["audits"],
        "stage_s": with_it["seconds"],
        "stage_off_s": without["seconds"],
        "stage_cpu_s": with_it["ranks_cpu_s"],
        "stage_off_cpu_s": without["ranks_cpu_s"],
        "wall_ratio": with_it["seconds"] / without["seconds"],
        "cpu_ratio": with_it["ranks_cpu_s"] / without["ranks_cpu_s"],
    }


def _least(runs: Sequence[Mapping[str, Any]], ways: Sequence[str], name: str) -> dict[str, float]:
    return {way: min(run[name] for run in runs if run["way"] == way) for way in ways}


def report(found: Mapping[str, Any]) -> None:
    """Print the tables."""
    for name, heading in (("wall_s", "wall s"), ("ranks_cpu_s", "CPU s of all ranks")):
        print(f"\n{'ranks':>5}" + "".join(f"{way:>12}" for way in COLUMNS) + f"   {heading}")
        for size, line in found["sizes"].items():
            cells = (f"{line[name][way]:.1f}" if way in line[name] else "-" for way in COLUMNS)
            print(f"{size:>5}" + "".join(f"{cell:>12}" for cell in cells))
    print(
        f"\n{'ranks':>5}{'compile CPU s':>15}{'/ one rank':>12}{'warm/cold':>11}{'warm/build':>12}"
        f"{'warm/groups':>13}{'CPU warm/build':>16}"
    )
    for size, line in found["sizes"].items():
        print(
            f"{size:>5}{line['compile_cpu_s']:>15.2f}{line['compile_ratio']:>12.2f}{line['warm_over_cold']:>11.2f}"
            f"{line['warm_over_build']:>12.2f}{line['warm_over_groups']:>13.2f}"
            f"{line['warm_over_build_cpu']:>16.2f}"
        )
    print(
        f"\n{'ranks':>5}{'compile s':>11}{'audited':>9}{'ratio':>7}{'CPU s':>9}{'audited':>9}{'ratio':>7}"
        f"{'audits':>8}{'took s':>8}{'CPU s':>8}"
    )
    for size, line in found["sizes"].items():
        audit = line["audit"]
        print(
            f"{size:>5}{audit['stage_off_s']:>11.2f}{audit['stage_s']:>9.2f}{audit['wall_ratio']:>7.2f}"
            f"{audit['stage_off_cpu_s']:>9.2f}{audit['stage_cpu_s']:>9.2f}{audit['cpu_ratio']:>7.2f}"
            f"{audit['number']:>8}{audit['seconds']:>8.2f}{audit['cpu_s']:>8.2f}"
        )
    largest = list(found["sizes"])[-1]
    for way in ("cold", "warm"):
        by_stage = found["sizes"][largest]["stages"][way]
        columns = ("seconds", "ranks_cpu_s", "driver_cpu_s")
        print(f"\n{way}, {largest} ranks, by stage: wall s, CPU s of all ranks, CPU s of the driver")
        total = {name: sum(taken[name] for taken in by_stage.values()) for name in columns}
        for stage, taken in (*by_stage.items(), ("all stages", total)):
            print(f"{stage:>12}" + "".join(f"{taken[name]:>9.2f}" for name in columns))
    cold = {size: line["ranks_cpu_s"]["cold"] for size, line in found["sizes"].items()}
    print(
        "\ncold, CPU s of all ranks over all stages: " + ", ".join(f"{n}: {s:.1f}" for n, s in cold.items())
    )
    print(
        f"\ndriver's CPU for each further rank: {found['driver_cpu_s_a_rank'] * 1e3:.0f} ms, of the plain "
        f"program {found['plain_driver_cpu_s_a_rank'] * 1e3:.0f} ms\n"
        f"goals: compile at most {COMPILE_GOAL} x: {_met(found['goals']['compile'])}; "
        f"warm at most {WARM_GOAL} x of the plain program: {_met(found['goals']['warm'])}"
    )


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"
