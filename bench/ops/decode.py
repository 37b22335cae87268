"""Speed of decoding with a model file: tokens/s of 1 and 4 sequences, bytes that a step moves, and
their share of the measured memory speed; beside llama.cpp's llama-bench, in turn.

    python bench/ops/decode.py MODEL.gguf [--peer PATH/llama-bench] [--threads 2] [--json FILE]

Bytes are what the kernels state for a step of so many rows. Of a mixture of experts that is every
expert that the rows can choose, so with several sequences it is a bound: they may choose the same.
Tokens are random, as a text's would be for the choice of experts.

The peer measures one sequence by generating, and four by a prompt in steps of four rows, which is
the same work but for the attention's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import strata_engine_testing as engine

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.ops.kernels import memory_speed

SEQUENCES = (1, 4)
CONTEXT = 512


def plan_of(sequences: int, threads: int) -> Any:
    return engine.ModePlan(
        batch=sequences,
        prefill=1,
        kv="f16",
        activations="int8",
        threads=threads,
        max_context=CONTEXT,
        kv_tokens=sequences * CONTEXT,
    )


def request_of(text: str) -> dict[str, Any]:
    """The request that a plan describes in one line."""
    kind, *parts = text.partition(" (")[0].split()
    request: dict[str, Any] = {"kind": kind, "features": []}
    for part in parts:
        if part.startswith("+"):
            request["features"].append(part[1:])
        else:
            name, value = part.split("=")
            request[name] = int(value) if value.isdecimal() else value
    return request


def step_bytes(model: Path, plan: Any) -> dict[str, int]:
    """Bytes of one step by operation, without attention over the context."""
    kernels = engine.Kernels()
    total: dict[str, int] = {}
    for op in engine.plan_ops(str(model), plan):
        if op["op"] in {"attention", "kv_append"}:
            continue
        moved = kernels.bytes_moved(op["kernel"], request_of(op["request"]))
        total[op["op"]] = total.get(op["op"], 0) + moved
    return total


class Ours:
    """A loaded model that decodes some sequences."""

    def __init__(self, path: Path, threads: int) -> None:
        self._plan = plan_of(max(SEQUENCES), threads)
        self._model = engine.LoadedModel(str(path), self._plan)
        self._rng = np.random.default_rng(1)
        pages = CONTEXT // int(engine.PAGE_TOKENS)
        count = max(SEQUENCES) * pages
        self._tables = np.arange(count, dtype=np.uint32).reshape(-1, pages)

    def tokens_per_second(self, sequences: int, steps: int) -> float:
        rows = np.arange(sequences, dtype=np.uint32)
        spent = []
        for step in range(steps):
            tokens = self._rng.integers(0, 256, sequences).astype(np.int32)
            positions = np.full(sequences, step, np.uint32)
            begin = time.perf_counter()
            self._model.step(tokens, positions, rows, self._tables, rows)
            spent.append(time.perf_counter() - begin)
        return sequences / median(spent)


def peer_speed(peer: Path, model: Path, threads: int, sequences: int, steps: int) -> float:
    work = ["-p", "0", "-n", str(steps)]
    if sequences > 1:
        work = ["-n", "0", "-p", str(sequences * steps), "-ub", str(sequences)]
    command = [str(peer), "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json", *work]
    done = subprocess.run(command, capture_output=True, check=True, timeout=600)
    (result,) = json.loads(done.stdout)
    return float(result["avg_ts"])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    model, threads = arguments.model, arguments.threads
    speeds: dict[str, list[float]] = {}
    limits = []
    # In rounds, so that whatever else the machine does meets all alike.
    for _ in range(arguments.rounds):
        limits.append(memory_speed(engine.Kernels(), threads))
        ours = Ours(model, threads)
        for sequences in SEQUENCES:
            speed = ours.tokens_per_second(sequences, arguments.steps)
            speeds.setdefault(f"strata_{sequences}", []).append(speed)
        del ours
        for sequences in SEQUENCES if arguments.peer else ():
            speed = peer_speed(arguments.peer, model, threads, sequences, arguments.steps)
            speeds.setdefault(f"peer_{sequences}", []).append(speed)
    limit = max(limits)
    summary: dict[str, Any] = {"memory_gb_s": limit / 1e9}
    for sequences in SEQUENCES:
        moved = step_bytes(model, plan_of(sequences, threads))
        speed = median(speeds[f"strata_{sequences}"])
        rate = sum(moved.values()) * speed / sequences
        summary |= {
            f"tok_s_{sequences}": speed,
            f"step_bytes_{sequences}": moved,
            f"bytes_per_token_{sequences}": sum(moved.values()) / sequences,
            f"gb_s_{sequences}": rate / 1e9,
            f"memory_share_{sequences}": rate / limit,
        }
        if arguments.peer:
            peer = median(speeds[f"peer_{sequences}"])
            summary |= {f"peer_tok_s_{sequences}": peer, f"ratio_{sequences}": speed / peer}
    return {"summary": summary, "rounds": speeds, "memory_rounds_gb_s": [x / 1e9 for x in limits]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", type=Path, help="llama-bench binary; left out = Strata alone")
    parser.add_argument("--peer-note", default="", help="its version and build, for the results")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="", help="what the file is, for the results")
    parser.add_argument("--json", type=Path, help="also write the results here")
    arguments = parser.parse_args()
    if arguments.steps > CONTEXT:
        parser.error(f"--steps is {arguments.steps}; at most {CONTEXT}")
    result = {
        "what": "bench/ops/decode: steps of decoding, the same GGUF file and threads, in turn",
        "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "model": re.sub(r".*/", "", str(arguments.model)),
        "note": arguments.note,
        "model_bytes": arguments.model.stat().st_size,
        "threads": arguments.threads,
        "peer": arguments.peer_note,
        "machine": {"cpu": engine.cpu_features()["processor"], "cores": os.cpu_count()},
        **measure(arguments),
    }
    print(json.dumps(result["summary"], indent=1))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
