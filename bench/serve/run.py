#!/usr/bin/env python3
"""Strata and llama.cpp's server on the same file, same threads, in turn, in one run.

    bench/serve/run.py --peer PATH/llama-server [--model FILE] [--threads 2] [--rounds 3]

A round starts one server, waits until it is healthy (start-up time), runs the load client with 1
and 4 clients and with long prompts, reads the resident memory, and stops it; then the other
server. Ratios are medians over rounds of ours / peer, so that a drift of the machine hits both.
Without --peer only Strata is measured. Writes one JSON with the machine's facts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from strata.config import Config
from strata.model_source import find_model

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
HEALTHY_TIMEOUT_S = 120.0
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    argv: list[str]  # {port} and {dir} are filled in
    health: str


def servers(args: argparse.Namespace) -> list[Server]:
    supervisor = Path(sys.executable).with_name("strata-supervisor")
    model, threads = str(args.model), str(args.threads)
    ours = Server(
        "strata",
        [
            *(str(supervisor), "serve", "--model", model, "--port", "{port}", "--run-dir", "{dir}"),
            *("--threads", threads, "--batch", "4", "--max-context", "2048"),
            *("--log-level", "warning", *args.strata_flag),
        ],
        "/health/ready",
    )
    if args.peer is None:
        return [ours]
    peer = Server(
        "llama.cpp",
        [
            *(str(args.peer), "-m", model, "--port", "{port}", "--host", "127.0.0.1"),
            *("-t", threads, "--parallel", "4", "-c", "8192", "--no-webui"),
        ],
        "/health",
    )
    return [ours, peer]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_healthy(process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + HEALTHY_TIMEOUT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            sys.exit(f"{process.args!r} ended with status {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.02)
    sys.exit(f"{url} was not healthy within {HEALTHY_TIMEOUT_S:.0f} s")


def resident_bytes(pid: int) -> int:
    """RSS of the process and its descendants; the mapped file counts once a process touched it."""
    root = psutil.Process(pid)
    return sum(p.memory_info().rss for p in [root, *root.children(recursive=True)])


def load(port: int, directory: Path, *flags: str) -> list[Row]:
    out = directory / "rows.json"
    subprocess.run(
        [
            sys.executable,
            str(HERE / "load.py"),
            *("--base-url", f"http://127.0.0.1:{port}", "--json", str(out), *flags),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    rows: list[Row] = json.loads(out.read_text())
    return rows


def measure(server: Server, args: argparse.Namespace) -> Row:
    """One server's start, load and stop: the figures of a round."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        port = free_port()
        argv = [a.format(port=port, dir=directory / "run") for a in server.argv]
        started = time.perf_counter()
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            wait_healthy(process, f"http://127.0.0.1:{port}{server.health}")
            start_s = time.perf_counter() - started
            repeat = ("--rounds", str(args.repeats), "--warmup", "1", "--ignore-eos")
            decode = load(port, directory, "--clients", "1,4", "--max-tokens", "128", *repeat)
            prompt = load(
                port,
                directory,
                "--clients",
                "1",
                "--max-tokens",
                "2",
                "--prompt-words",
                "400",
                *repeat,
            )
            rss = resident_bytes(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
    one, four, long = decode[0], decode[1], prompt[0]
    return {
        "tok_s_1": one["tok_s_median"],
        "tok_s_4": four["tok_s_median"],
        "ttft_ms_p50_1": one["ttft_ms_p50"],
        "ttft_ms_p95_1": one["ttft_ms_p95"],
        "ttft_ms_p50_4": four["ttft_ms_p50"],
        "ttft_ms_p95_4": four["ttft_ms_p95"],
        "itl_ms_p50_1": one["itl_ms_p50"],
        "itl_ms_p50_4": four["itl_ms_p50"],
        "prompt_tok_s": long["prompt_tokens_median"] / long["ttft_ms_p50"] * 1e3,
        "prompt_tokens": long["prompt_tokens_median"],
        "rss_mib": rss / 2**20,
        "start_s": start_s,
        "errors": one["n_errors"] + four["n_errors"] + long["n_errors"],
    }


def machine() -> Row:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [x for x in info.read_text().splitlines() if x.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "os": platform.platform(),
        "python": platform.python_version(),
    }


def revision() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        cwd=HERE,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def table(rounds: dict[str, list[Row]]) -> Row:
    """Medians per server, and the median over rounds of ours / peer."""
    keys = list(rounds["strata"][0])
    summary: Row = {
        name: {k: statistics.median(r[k] for r in rows) for k in keys}
        for name, rows in rounds.items()
    }
    names = list(rounds)
    print(
        f"{'':>16}"
        + "".join(f"{n:>14}" for n in names)
        + (f"{'ratio':>10}" if len(names) > 1 else "")
    )
    ratios: Row = {}
    for key in keys:
        line = f"{key:>16}" + "".join(f"{summary[n][key]:>14.2f}" for n in names)
        if len(names) > 1:
            pairs = zip(rounds[names[0]], rounds[names[1]], strict=True)
            values = [ours[key] / peer[key] for ours, peer in pairs if peer[key]]
            if values:
                ratios[key] = statistics.median(values)
                line += f"{ratios[key]:>10.2f}"
        print(line)
    if ratios:
        summary["ratio_ours_to_peer"] = ratios
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", type=Path, help="llama-server binary; left out = Strata alone")
    parser.add_argument(
        "--peer-note", default="", help="how the peer was built; goes into the JSON"
    )
    parser.add_argument("--model", type=Path, help="GGUF file (default: SmolLM2-135M Q4_1)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=3, help="starts of each server")
    parser.add_argument("--repeats", type=int, default=3, help="load rounds per start")
    parser.add_argument("--strata-flag", action="append", default=[], help="extra flag for serve")
    parser.add_argument("--out", type=Path, default=RESULTS / "serve.json")
    args = parser.parse_args()
    if args.model is None:
        args.model = find_model(Config(model="smollm2"))

    rounds: dict[str, list[Row]] = {}
    for number in range(args.rounds):
        for server in servers(args):
            row = measure(server, args)
            rounds.setdefault(server.name, []).append(row)
            print(
                f"round {number + 1} {server.name:>10}: {row['tok_s_1']:.1f} tok/s with 1 client, "
                f"{row['tok_s_4']:.1f} with 4, prompt {row['prompt_tok_s']:.0f} tok/s",
                flush=True,
            )
    result = {
        "what": "bench/serve: the same GGUF file and threads, servers in turn",
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "revision": revision(),
        "model": args.model.name,
        "threads": args.threads,
        "peer": args.peer_note,
        "machine": machine(),
        "summary": table(rounds),
        "rounds": rounds,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
