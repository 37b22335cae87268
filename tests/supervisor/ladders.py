"""Ladders as the tests of rungs and restarts need them."""

from __future__ import annotations

from strata.engines.modes import Rung
from strata.engines.rungs import Ladder
from strata_protocol.messages import ModePlan

from tests.supervisor.crash_facts import plan


def ladder() -> Ladder:
    """full, no-drafts, batch-1, context-4096, prefill-1: each gives up one more thing."""
    full = {"spec": 2, "mtp": "model"}
    steps: list[tuple[str, dict[str, object], int]] = [
        ("full", full, 1000),
        ("no-drafts", {}, 900),
        ("batch-1", {"batch": 1}, 600),
        ("context-4096", {"batch": 1, "max_context": 4096}, 400),
        ("prefill-1", {"batch": 1, "max_context": 4096, "prefill": 1}, 400),
    ]
    rungs = [(Rung(name, plan(**changes)), size) for name, changes, size in steps]
    return Ladder(tuple(r for r, _ in rungs), tuple(size for _, size in rungs))


def without(found: Ladder, *names: str) -> Ladder:
    """The same, after quarantine has taken rungs out."""
    kept = [(r, n) for r, n in zip(found.rungs, found.bytes, strict=True) if r.name not in names]
    return Ladder(tuple(r for r, _ in kept), tuple(n for _, n in kept))


def plans(found: Ladder) -> list[ModePlan]:
    return [rung.plan for rung in found.rungs]
