"""Memory of the machine as the kernel tells it: free memory, pressure, the control group's limits.

What a system does not tell is left out. Reading takes well below a millisecond.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import psutil

from strata.engines.process import oom_kill_count

CGROUP_FILES = (
    "memory.current",
    "memory.peak",
    "memory.max",
    "memory.high",
    "memory.swap.current",
    "memory.swap.max",
    "memory.events",
    "memory.pressure",
)


class MachineMemory(msgspec.Struct, frozen=True, kw_only=True):
    """As of one moment. Sizes in bytes."""

    total_bytes: int = 0
    available_bytes: int = 0
    swap_used_bytes: int = 0
    swap_total_bytes: int = 0
    supervisor_rss_bytes: int = 0
    engine_rss_bytes: int = 0  # as its beacon last said
    oom_kills: int = 0  # by the kernel since boot
    pressure: str = ""  # /proc/pressure/memory
    cgroup: dict[str, str] = {}  # memory.* of the supervisor's own group

    @property
    def pressure_share(self) -> float | None:
        """Percent of the last 10 s in which something waited for memory."""
        found = re.search(r"some avg10=([\d.]+)", self.pressure)
        try:
            return float(found.group(1)) if found else None
        except ValueError:
            return None


def machine_memory(engine_rss_bytes: int = 0) -> MachineMemory:
    """As of now."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return MachineMemory(
        total_bytes=memory.total,
        available_bytes=memory.available,
        swap_used_bytes=swap.used,
        swap_total_bytes=swap.total,
        supervisor_rss_bytes=psutil.Process().memory_info().rss,
        engine_rss_bytes=engine_rss_bytes,
        oom_kills=oom_kill_count(),
        pressure=_text(Path("/proc/pressure/memory")),
        cgroup=_cgroup(),
    )


def _cgroup() -> dict[str, str]:
    """Of version 2; the folder is named on the line that begins with "0::"."""
    names = _text(Path("/proc/self/cgroup")).splitlines()
    name = next((line[3:] for line in names if line.startswith("0::")), None)
    if name is None:
        return {}
    folder = Path("/sys/fs/cgroup") / name.lstrip("/")
    found = {part: _text(folder / part) for part in CGROUP_FILES}
    return {part: text for part, text in found.items() if text}


def _text(path: Path) -> str:
    """Empty where the system has no such file or does not let us read it."""
    try:
        return path.read_text(errors="replace").strip()[:4096]
    except OSError:
        return ""
