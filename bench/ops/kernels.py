"""Speed of every kernel of the table: bytes moved, GB/s, and share of the measured memory speed.

    python bench/ops/kernels.py [--match GLOB] [--rows 1,256] [--threads 1,2] [--json FILE]

Matmuls run at the shape --n x --k with --rows rows; all other kernels at their first test shape
with more rows. Each figure is the best of several timed runs. Single rows of a matmul cycle through
copies of the weight of 256 MiB together, as decoding does, and take the median copy; everything
else is timed with its operands in cache, so its share may exceed 100 %.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import strata_engine_testing as engine

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.ops.cases import make_case
from tests.ops.reference import Case

COLD_BYTES = 256 << 20  # copies of a weight that a decode benchmark cycles through
TRIALS = 5


def memory_speed(kernels: Any, threads: int) -> float:
    """Bytes per second to and from memory: out += y over two arrays of 256 MiB, best of several."""
    rows, k = 256, COLD_BYTES // 4 // 256
    request = {"kind": "add", "rows": rows, "k": k}
    kernel = kernels.find(request)[0]
    op = kernels.op(kernel, request, threads=threads)
    arrays = {name: np.ones((rows, k), np.float32) for name in ("y", "out")}
    best = min(op.run(arrays, rows=rows) for _ in range(TRIALS))
    return float(kernels.bytes_moved(kernel, request) / best)


def request_for(entry: dict[str, Any], rows: int, n: int, k: int) -> dict[str, Any]:
    request = dict(entry["requests"][0])
    request["features"] = [f for f in request["features"] if f != "bias"]
    request["rows"] = rows
    if entry["kind"] == "matmul":
        request |= {"n": n, "k": k}
    return request


def seconds(kernels: Any, entry: dict[str, Any], case: Case, threads: int) -> float:
    """Seconds of one launch."""
    request = case.request
    op = kernels.op(entry["id"], request, case.weight, threads)
    ops = [op]
    if entry["kind"] == "matmul" and request["rows"] == 1:
        copies = min(64, COLD_BYTES // max(op.weight_bytes, 1) + 1)
        ops += [kernels.op(entry["id"], request, case.weight, threads) for _ in range(copies - 1)]
    rows = request["rows"]

    def once() -> float:
        return float(median(o.run(case.arrays, rows=rows, scale=case.scale) for o in ops))

    first = once()
    repeats = max(1, min(200, int(0.02 / max(first * len(ops), 1e-7))))
    return min(min(once() for _ in range(repeats)) for _ in range(TRIALS))


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    kernels = engine.Kernels(arguments.isa)
    limits = {threads: memory_speed(kernels, threads) for threads in arguments.threads}
    for threads, limit in limits.items():
        print(f"memory with {threads} threads: {limit / 1e9:.1f} GB/s")
    results = []
    for entry in kernels.entries():
        if not fnmatch.fnmatchcase(entry["id"], arguments.match):
            continue
        for rows in arguments.rows:
            request = request_for(entry, rows, arguments.n, arguments.k)
            if kernels.find(request)[0] is None:
                continue
            # The rope reference lists six positions; it is timed at those.
            request["rows"] = min(rows, 6) if entry["kind"] == "rope" else rows
            case = make_case(request)
            moved = kernels.bytes_moved(entry["id"], request)
            for threads in arguments.threads:
                spent = seconds(kernels, entry, case, threads)
                result = {
                    "id": entry["id"],
                    "rows": request["rows"],
                    "threads": threads,
                    "us": spent * 1e6,
                    "bytes": moved,
                    "gb_s": moved / spent / 1e9,
                    "memory_share": moved / spent / limits[threads],
                }
                line = (
                    f"{entry['id']:48} rows {request['rows']:4} threads {threads}"
                    f" {spent * 1e6:10.1f} us {moved / 1e6:9.3f} MB {result['gb_s']:7.2f} GB/s"
                    f" {100 * result['memory_share']:4.0f} %"
                )
                if entry["kind"] == "matmul":
                    operations = 2.0 * request["rows"] * request["n"] * request["k"]
                    result["gop_s"] = operations / spent / 1e9
                    line += f" {result['gop_s']:8.1f} GOP/s"
                print(line, flush=True)
                results.append(result)
    return results


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--match", default="*", help="kernel ids to run, as a glob")
    parser.add_argument("--isa", default="auto", help="highest instruction set")
    parser.add_argument("--rows", type=numbers, default=[1, 256])
    parser.add_argument("--threads", type=numbers, default=[1, os.cpu_count() or 1])
    parser.add_argument("--n", type=int, default=1536, help="outputs of matmuls")
    parser.add_argument("--k", type=int, default=1536, help="inputs of matmuls")
    parser.add_argument("--json", type=Path, help="also write the results here")
    arguments = parser.parse_args()
    results = measure(arguments)
    if arguments.json:
        facts = {"processor": engine.cpu_features()["processor"], "cpus": os.cpu_count()}
        arguments.json.write_text(json.dumps({"machine": facts, "kernels": results}, indent=1))


if __name__ == "__main__":
    main()
