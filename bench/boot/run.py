"""What a start costs before it serves: CAPS of a 100 GB file, and the whole probe of a small one.

    python bench/boot/run.py --engine PATH --model SMOLLM2.gguf [--repeats N] [--out FILE]

CAPS is measured on a sparse file (81 layers; a header and a hole) with the most that can be asked
for (batch 256, prefill 8192, 7 drafts), from the start of the process to the message, and from
OFFER alone. The probe is measured on the model with a batch of 8: `probe_ms` is what READY calls
warm, each probe beside it; the rest of the start is told too. Medians and the worst of `--repeats`
starts go to the JSON; status 1 where the worst of the two is not below LIMIT_MS. Tests do not look
at the clock: what they hold is that no weight is read for CAPS (tests/system/test_large_file.py).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from strata_protocol import messages as m

from bench.serve.run import machine, revision
from tests.model.sparse_model import write_sparse_model
from tests.system.engine_driver import Engine, first_ready

RESULTS = Path(__file__).resolve().parents[1] / "results"
LARGEST: dict[str, Any] = {"batch": 256, "prefill": 8192, "spec": 7}
LARGE_MACHINE = ("--as", "cpu", "--assume", "host_memory=512GiB,cores=8")
BATCH = 8
LIMIT_MS = 2000.0
LIMITED = (("large_file", "caps_with_process_start_ms"), ("small_model", "probe_ms"))

Figures = dict[str, list[float]]


def caps_of_large(engine_path: Path, model: Path, figures: Figures) -> dict[str, Any]:
    """One question about the sparse file; answers what was planned."""
    begin = time.monotonic()
    with Engine(engine_path, *LARGE_MACHINE) as engine:
        engine.expect(m.Hello)
        offered = time.monotonic()
        engine.send(engine.offer(model, **LARGEST))
        caps = engine.expect(m.Caps)
        end = time.monotonic()
    figures["caps_with_process_start_ms"].append((end - begin) * 1e3)
    figures["caps_ms"].append((end - offered) * 1e3)
    return {
        "file_bytes": caps.model.file_bytes,
        "layers": caps.model.layers,
        "configurations": len(caps.configurations),
        "reasons": len(caps.reasons),
    }


def start_of_small(engine_path: Path, model: Path, threads: int, figures: Figures) -> m.ModePlan:
    """One start up to READY; answers what runs."""
    begin = time.monotonic()
    with Engine(engine_path) as engine:
        engine.expect(m.Hello)
        figures["hello_ms"].append((time.monotonic() - begin) * 1e3)
        engine.send(engine.offer(model, batch=BATCH, threads=threads))
        caps = engine.expect(m.Caps)
        figures["caps_ms"].append((time.monotonic() - begin) * 1e3 - figures["hello_ms"][-1])
        engine.send(m.Plan(plan=first_ready(caps).plan))
        while not isinstance(message := engine.expect(msgspec.Struct), m.Ready):
            if isinstance(message, m.Probe):
                if not message.ok:
                    raise SystemExit(f"the probe of {message.mode} failed: {message.reasons}")
                figures.setdefault(f"probe_{message.mode}_ms", []).append(message.ms)
        figures["ready_ms"].append((time.monotonic() - begin) * 1e3)
        figures["load_ms"].append(message.load_ms)
        figures["probe_ms"].append(message.warm_ms)
    return message.plan


def summary(figures: Figures) -> dict[str, dict[str, float]]:
    return {
        name: {"median": round(median(values), 2), "worst": round(max(values), 2)}
        for name, values in figures.items()
    }


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    large: Figures = {"caps_with_process_start_ms": [], "caps_ms": []}
    small: Figures = {name: [] for name in ("hello_ms", "caps_ms", "load_ms", "probe_ms")}
    small["ready_ms"] = []
    with tempfile.TemporaryDirectory(prefix="strata-boot-") as folder:
        path = write_sparse_model(Path(folder) / "large.gguf", kinds=("f16", "q8_0"))
        facts = [caps_of_large(arguments.engine, path, large) for _ in range(arguments.repeats)]
    plans = [
        start_of_small(arguments.engine, arguments.model, arguments.threads, small)
        for _ in range(arguments.repeats)
    ]
    return {
        "what": "CAPS of a sparse file, and a start with its probe; milliseconds",
        "revision": revision(),
        "machine": machine() | {"load_average": [round(x, 2) for x in os.getloadavg()]},
        "repeats": arguments.repeats,
        "limit_ms": LIMIT_MS,
        "large_file": {**facts[-1], "asked": LARGEST, **summary(large)},
        "small_model": {
            "model": arguments.model.name,
            "plan": msgspec.to_builtins(plans[-1]),
            **summary(small),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure CAPS of a large file and a whole probe.")
    parser.add_argument("--engine", type=Path, required=True, help="strata-engine-cpu")
    parser.add_argument("--model", type=Path, required=True, help="a small GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS / "boot.json")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error("--repeats: at least 1")
    result = measure(arguments)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    for part in ("large_file", "small_model"):
        for name, value in result[part].items():
            if name.endswith("_ms"):
                print(f"{part}: {name} median {value['median']}, worst {value['worst']}")
    print(f"written to {arguments.out}")
    late = [f"{part}: {name}" for part, name in LIMITED if result[part][name]["worst"] >= LIMIT_MS]
    for name in late:
        print(f"{name} is not below {LIMIT_MS:.0f} ms", file=sys.stderr)
    return 1 if late else 0


if __name__ == "__main__":
    raise SystemExit(main())
