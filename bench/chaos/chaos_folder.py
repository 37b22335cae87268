"""A folder with one chaos engine: its script, its executable and what its processes left there."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import strata_protocol

from tests.fakes.chaos_script import EpochScript, noted_pids, write_script

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE = REPOSITORY / "tests" / "fakes" / "chaos_engine.py"
MODEL = REPOSITORY / "tests" / "data" / "oracle" / "tiny-llama.gguf"
PROTOCOL = Path(strata_protocol.__file__ or "").parent.parent


class ChaosFolder:
    """`executable` acts by `epochs`, one per start. `end_all` belongs behind every use."""

    def __init__(self, path: Path, epochs: Sequence[EpochScript]) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.run_dir = path / "run"
        self.script = path / "script.json"
        self.executable = path / "chaos-engine"
        write_script(self.script, epochs)
        self.executable.write_text(
            f"#!{sys.executable}\n"
            "import runpy, sys\n"
            f"sys.path[:0] = {[str(PROTOCOL), str(REPOSITORY)]!r}\n"
            f"sys.argv[1:1] = [{str(self.script)!r}]\n"
            f"runpy.run_path({str(ENGINE)!r}, run_name='__main__')\n"
        )
        self.executable.chmod(0o755)

    @property
    def starts(self) -> int:
        return len(self._lines(".starts"))

    @property
    def twins(self) -> int:
        """Engines that found another one of this folder alive."""
        return len(self._lines(".twins"))

    def has_mark(self, name: str) -> bool:
        """Whether an engine left this mark."""
        return self.script.with_name(f"{self.script.name}.{name}").exists()

    def alive(self) -> list[int]:
        """Processes of engines of this folder, and what they left behind, that still live."""
        return [pid for pid, at in noted_pids(self.script) if is_alive(pid, at)]

    def end_all(self, within_s: float = 0.0) -> list[int]:
        """Ends what is left after `within_s` and returns it."""
        end_s = time.monotonic() + within_s
        for pid, at in noted_pids(self.script):
            wait_gone(pid, at, end_s - time.monotonic())
        left = self.alive()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        return left

    def log_bytes(self) -> int:
        """What the supervisor kept of the engines' output."""
        return sum(file.stat().st_size for file in self.run_dir.glob("engine-*.log"))

    def _lines(self, suffix: str) -> list[str]:
        file = self.script.with_name(self.script.name + suffix)
        return file.read_text().splitlines() if file.exists() else []


def is_alive(pid: int, start_time: str) -> bool:
    """Whether this very process lives; a zombie does not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == start_time and fields[0] not in ("Z", "X")


def wait_gone(pid: int, start_time: str, within_s: float) -> bool:
    """Waits until this very process has ended; whether it has."""
    try:
        watch = os.pidfd_open(pid)
    except OSError:
        return not is_alive(pid, start_time)
    try:
        if not is_alive(pid, start_time):
            return True
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        return bool(poll.poll(max(within_s, 0.0) * 1000))
    finally:
        os.close(watch)


def started_at(pid: int) -> str:
    """Start time of a live process as the system counts it. Raises OSError."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
