"""`status`: shows the service of a run directory; its exit status says the state.

0 ready, 1 degraded, 2 loading, restarting or draining, 3 held or refused, 4 nothing runs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console

from strata.config_source import Settings
from strata.errors import RunDirError
from strata.observe.status import EXIT_STATUS, Status
from strata.observe.status_socket import read_state, read_status
from strata.observe.terminal import print_modes
from strata.observe.words import counted, duration

DOWN = 4
WATCH_S = 1.0


def show_status(settings: Settings, *, as_json: bool, watch: bool) -> int:
    """Prints the status once, or each second until interrupted. Returns the exit status; raises
    RunDirError for a file in the place of the run directory."""
    run_dir = Path(settings.config.run_dir).expanduser().absolute()
    if run_dir.exists() and not run_dir.is_dir():
        raise RunDirError(f"run directory {run_dir}: is not a directory")
    console = Console(highlight=False, soft_wrap=True)
    while True:
        status = read_status(run_dir)
        if watch and console.is_terminal and not as_json:
            console.clear()
        if status is None:
            _show_down(run_dir, as_json=as_json)
        elif as_json:
            print(msgspec.json.encode(status).decode(), flush=True)
        else:
            print_status(console, status)
            sys.stdout.flush()
        if not watch:
            return DOWN if status is None else EXIT_STATUS[status.state]
        time.sleep(WATCH_S)


def _show_down(run_dir: Path, *, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.encode({"state": "down", "run_dir": str(run_dir)}).decode(), flush=True)
        return
    last = read_state(run_dir)
    text = f"no supervisor is running for the run directory {run_dir}"
    if last is not None:
        text += f" (the last one, pid {last.supervisor.pid}, left it in state {last.state})"
    print(text, flush=True)


def print_status(console: Console, status: Status) -> None:
    """The status for people: what a person would ask, in that order."""

    def line(name: str, text: str) -> None:
        console.print(f"{name:9} {text}", markup=False)

    reason = f": {status.reason}" if status.reason else ""
    up = duration(status.supervisor.uptime_s)
    line("strata", f"{status.state.upper()}{reason}  up {up}  {status.supervisor.url}")
    model = status.model
    facts = f"  {model.architecture}" if model.architecture else ""
    line("model", f"{model.name}{facts}  {model.path}")
    engine = status.engine
    if engine is None:
        line("engine", "not running")
    else:
        line(
            "engine",
            f"pid {engine.pid}  {engine.phase}  up {duration(engine.uptime_s)}"
            f"  build {engine.build}  {engine.device}  {engine.isa}".rstrip(),
        )
    restarts = status.restarts
    text = f"{counted(restarts.starts, 'start')}, {counted(restarts.crashes, 'crash', 'es')}"
    if restarts.boot_attempts:
        text += f", {counted(restarts.boot_attempts, 'boot attempt')} ended in a probe"
    if restarts.last is not None:
        text += f"; last: {restarts.last.text}, {duration(restarts.last.ago_s)} ago"
        if restarts.last.bundle:
            text += f" [crashes show {restarts.last.bundle}]"
    if restarts.next_start_s is not None:
        text += f"; next start in {duration(restarts.next_start_s)}"
    line("restarts", text)
    policy = restarts.policy
    if policy.rung_index:
        pinned = ", pinned" if policy.is_pinned else ""
        rungs = f"{policy.rung} ({policy.rung_index + 1} of {policy.rung_count}{pinned})"
        line("rung", f"{rungs}: {policy.rung_why}")
    for row in status.quarantine:
        line("quarantine", f"{row.mode} {row.state}: {row.sentence} ({row.id})")
    load = status.load
    text = f"{load.running} running  {load.waiting} waiting"
    if load.waiting:
        text += f" (oldest {load.oldest_wait_s:.1f} s)"
    text += f"  kv pages {load.kv_pages_used} used, {load.kv_pages_cached} cached"
    text += f" of {load.kv_pages_total}  {load.tokens_per_s:.1f} tok/s over the last 10 s"
    if load.prompt_tokens:
        share = 100 * load.cached_tokens / load.prompt_tokens
        text += f"  prefix cache {share:.0f} % of {load.prompt_tokens} prompt tokens"
    if load.ttft_p50_s is not None and load.ttft_p95_s is not None:
        text += f"  first token p50/p95 {load.ttft_p50_s:.2f}/{load.ttft_p95_s:.2f} s"
    line("load", text)
    if status.modes:
        console.print()
        print_modes(console, status.modes, status.memory)
