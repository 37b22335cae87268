"""Clocks: one that goes on while the machine sleeps, and how long it has slept."""

from __future__ import annotations

import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)  # Linux


def boottime_s() -> float:
    """Seconds since the machine booted, sleep included; elsewhere the monotonic clock."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


def slept_s() -> float:
    """For how long the machine has slept since it booted; 0 where it does not tell."""
    return boottime_s() - time.monotonic()
