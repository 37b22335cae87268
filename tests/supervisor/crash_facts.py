"""Beacons, exits and plans as the tests of blame, signature and quarantine need them."""

from __future__ import annotations

from strata.engines.exits import EngineExit, ExitClass
from strata_protocol.beacon import BeaconView, CrashRecord
from strata_protocol.messages import ModePlan


def plan(**changes: object) -> ModePlan:
    facts: dict[str, object] = {
        "batch": 4, "max_context": 8192, "kv": "f16", "prefill": 256, "activations": "int8",
        "threads": 2, "kv_tokens": 32768,
    }  # fmt: skip
    return ModePlan(**{**facts, **changes})  # type: ignore[arg-type]


def crash(**changes: object) -> CrashRecord:
    facts: dict[str, object] = {
        "signal": 11, "code": 1, "sender_pid": 0, "is_external": False, "address": 0,
        "thread": "compute", "kernel": "", "frames": ("libc.so.6+0x9", "strata-engine-cpu+0x10"),
    }  # fmt: skip
    return CrashRecord(**{**facts, **changes})  # type: ignore[arg-type]


def view(**changes: object) -> BeaconView:
    """An idle engine, with `changes`; a crash record of SIGSEGV unless it says otherwise."""
    facts: dict[str, object] = {
        "phase": "ready", "mode": "", "plan": "", "step": 7, "moved_ns": 1, "kernel": "", "op": -1,
        "layer": -1, "rows": 1, "sequences": 1, "rids": (), "pid": 9, "build": "b", "rss_bytes": 0,
        "assert_text": "", "exit_called": False, "crash": crash(), "steps": (),
    }  # fmt: skip
    return BeaconView(**{**facts, **changes})  # type: ignore[arg-type]


def exited(
    beacon: BeaconView | None, exit_class: ExitClass = ExitClass.SIGNAL, **changes: object
) -> EngineExit:
    signal = 11 if exit_class is ExitClass.SIGNAL else None
    facts: dict[str, object] = {"signal": signal, "beacon": beacon, **changes}
    return EngineExit(3, 9, exit_class, "text", "running", 1.0, **facts)  # type: ignore[arg-type]
