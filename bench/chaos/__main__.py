"""`make chaos`: measures what a failing engine costs and prints the table.

    python -m bench.chaos [--short] [--only PART]... [--engine FILE] [--soak-s N] [--calm-s N]

The whole run takes about 50 minutes, 30 of them the calm time in which nothing may be taken for a
failure. Writes one JSON with facts of the machine, anew after each figure, so that a run which is
cut off leaves what it had; with `--only` the other figures stay as they were. Each says when and
of which revision it is. Exit status 1 where a figure is not reached or could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import sys
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path

from bench.chaos import cancels, failures, load, orphans, policy, soak, streams
from bench.chaos.figure import SHORT, Bench, Figure, Scale
from bench.serve.run import RESULTS, machine, revision

Measure = Callable[[Bench], Awaitable[Figure | None]]

FIGURES: dict[str, Measure] = {
    "exit": failures.exit_noticed,
    "hang": failures.hang_noticed,
    "orphan": orphans.orphan_gone,
    "twins": orphans.never_two,
    "streams-fake": streams.identical_fake,
    "streams-real": streams.identical_real,
    "soak": soak.kill_soak,
    "gap": failures.gap,
    "poison": failures.poison,
    "never-starts": policy.never_starts,
    "rejection": load.rejection,
    "cancel": cancels.cancel_to_freed,
    "cost": load.supervisor_cost,
}


def terminal_events(bench: Bench) -> Figure:
    """Over everything that ran before; and that nothing of it is left."""
    is_met = bench.accepted == bench.ended_once > 0 and not bench.left and not bench.twins
    return Figure(
        "exactly one terminal event for each accepted request",
        "100 %",
        f"{bench.ended_once} of {bench.accepted}; {len(bench.left)} processes left",
        is_met,
        {
            "accepted": bench.accepted, "ended_once": bench.ended_once,
            "left": len(bench.left), "twins": bench.twins,
        },
    )  # fmt: skip


async def run(
    bench: Bench, names: list[str], write: Callable[[list[Figure]], None]
) -> list[Figure]:
    """`write` keeps what has been found so far."""
    found: list[Figure] = []
    for name in names:
        figure = await _measured(name, bench)
        bench.close()
        if figure is None:
            print(f"{name}: not measured, as there is no real engine (--engine)", flush=True)
            continue
        found.append(figure)
        show(figure)
        write(found)
    if bench.accepted:
        found.append(terminal_events(bench))
        show(found[-1])
        write(found)
    return found


async def _measured(name: str, bench: Bench) -> Figure | None:
    """With what the machine had to do meanwhile. Where measuring itself fails, the figure is missed
    and the others are still measured: nobody watches a run of this length."""
    began_s = time.monotonic()
    try:
        figure = await FIGURES[name](bench)
    except Exception as error:
        traceback.print_exc()
        figure = Figure(name, "is measured", f"failed: {type(error).__name__}: {error}", False)
    if figure is not None:
        figure.when, figure.revision = now(), revision()
        figure.facts["seconds"] = round(time.monotonic() - began_s)
        figure.facts["load_average_after"] = [round(load, 2) for load in os.getloadavg()]
    return figure


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def show(figure: Figure) -> None:
    mark = "ok  " if figure.is_met else "MISS"
    print(f"{mark} {figure.name}: {figure.measured}  (must be: {figure.must})", flush=True)


def table(figures: list[Figure]) -> str:
    lines = ["| figure | must be | measured | |", "|---|---|---|---|"]
    lines += [
        f"| {f.name} | {f.must} | {f.measured} | {'reached' if f.is_met else 'not reached'} |"
        for f in figures
    ]
    return "\n".join(lines)


def kept_rows(path: Path) -> list[dict[str, object]]:
    """The figures of an earlier run, none where there was no such run."""
    if not path.is_file():
        return []
    earlier = json.loads(path.read_text())
    of_run = {"when": earlier["when"], "revision": earlier["revision"]}
    return [of_run | row for row in earlier["figures"]]


def merged(
    kept: list[dict[str, object]], fresh: list[dict[str, object]]
) -> list[dict[str, object]]:
    """`fresh` in the places of those of the same name, the rest behind."""
    by_name = {row["name"]: row for row in fresh}
    rows = [by_name.pop(row["name"], row) for row in kept]
    return rows + list(by_name.values())


def installed_engine() -> Path | None:
    path = Path(sysconfig.get_path("platlib")) / "strata" / "bin" / "strata-engine-cpu"
    return path if path.is_file() else None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="the amounts that CI has time for")
    parser.add_argument("--only", action="append", choices=list(FIGURES), help="parts to run")
    parser.add_argument("--engine", type=Path, help="the real engine; default: the installed one")
    parser.add_argument("--soak-s", type=float, help="length of the kill soak")
    parser.add_argument("--calm-s", type=float, help="length of the calm time")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--out", type=Path, help="default: bench/results/chaos[-short].json")
    args = parser.parse_args()
    scale = SHORT if args.short else Scale()
    scale = replace(
        scale,
        soak_s=scale.soak_s if args.soak_s is None else args.soak_s,
        calm_s=scale.calm_s if args.calm_s is None else args.calm_s,
    )
    logging.disable(logging.CRITICAL)  # hundreds of crashes, all of them wanted
    engine = args.engine.absolute() if args.engine else installed_engine()
    faults = None if engine is None else streams.find_engine_beside(engine)
    began_s, load_before = time.monotonic(), os.getloadavg()
    out: Path = args.out or RESULTS / ("chaos-short.json" if args.short else "chaos.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = kept_rows(out) if args.only else []

    def write(figures: list[Figure]) -> None:
        result = {
            "what": "bench/chaos: what a failing engine costs",
            "when": now(),
            "revision": revision(),
            "machine": machine(),
            "load_average": {"before": load_before, "after": os.getloadavg()},  # of others, too
            "nice": os.nice(0),
            "seconds": round(time.monotonic() - began_s),
            "seed": args.seed,
            "scale": asdict(scale),
            "figures": merged(kept, [figure.row() for figure in figures]),
        }
        out.write_text(json.dumps(result, indent=1) + "\n")

    gc.freeze()  # as the service does once it is up; the rig runs its code in this process
    with tempfile.TemporaryDirectory(prefix="strata-chaos-") as name:
        bench = Bench(scale, Path(name), engine, faults)
        bench.random.seed(args.seed)
        figures = asyncio.run(run(bench, args.only or list(FIGURES), write))
    print("\n" + table(figures))
    print(f"written: {out}")
    return 0 if all(figure.is_met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
