"""What the system says of a process: its state, its page faults, and memory pressure. Faults and
pressure are known on Linux only; elsewhere nothing is concluded from them."""

from __future__ import annotations

import re
from pathlib import Path

import psutil

from strata.engines.hang import STOPPED_STATES, Vitals

_FULL = re.compile(r"^full avg10=([\d.]+)", re.MULTILINE)


def read_vitals(pid: int) -> Vitals:
    """As of now; tens of microseconds."""
    try:
        # Field 2 may hold blanks and brackets; the state is field 3, major faults field 12.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        state, faults = fields[0], int(fields[9])
    except (OSError, IndexError, ValueError):
        return Vitals()
    return Vitals(state, faults, memory_pressure())


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped it, as of now; tens of microseconds."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in STOPPED_STATES
    except (OSError, IndexError):
        pass  # gone, or not Linux
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def memory_pressure() -> float:
    """Percent of the last 10 s in which nothing could run for lack of memory; 0 where unknown."""
    try:
        found = _FULL.search(Path("/proc/pressure/memory").read_text())
    except OSError:
        return 0.0
    return float(found.group(1)) if found else 0.0
