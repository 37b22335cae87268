"""One engine process: launch, descriptors, exit. Knows nothing of the protocol.

Standard input is /dev/null; output and error go to one log pipe; commands and events have pipes
of their own, passed by number in `--ipc`, and so is the beacon's file where there is one. The
process leads its own session, so a signal reaches all it may have started. Its end is known by
exit status, never by end-of-file.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strata.engines.exits import Intent
from strata.engines.stale import start_time
from strata.errors import EngineStuckError

PIPE_BYTES = 1 << 20
RUN_DIR_MARK = "STRATA_RUN_DIR"  # in the environment of the engine and of all it starts
EPOCH_MARK = "STRATA_EPOCH"
OWNER_MARK = "STRATA_OWNER"  # the supervisor's pid and start time
TERM_WAIT_S = 3.0
KILL_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start the engine; the same for each epoch."""

    executable: Path
    arguments: Sequence[str]  # without --ipc

    def argv(self, fds: Sequence[int]) -> list[str]:
        """`fds`: command, event and, where there is one, beacon."""
        return [str(self.executable), *self.arguments, "--ipc", ",".join(map(str, fds))]


class EngineProcess:
    """Created by `launch`. The owner connects the three descriptors and closes nothing else."""

    def __init__(
        self, popen: subprocess.Popen[bytes], command_fd: int, event_fd: int, log_fd: int
    ) -> None:
        self._popen = popen
        self.pid = popen.pid
        self.command_fd = command_fd  # we write
        self.event_fd = event_fd  # we read
        self.log_fd = log_fd  # we read
        self.intent: Intent | None = None
        self.started_s = time.monotonic()
        self._exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._oom_kills = oom_kill_count()
        self._watch()

    @property
    def returncode(self) -> int | None:
        return self._exited.result() if self._exited.done() else None

    @property
    def was_oom_kill(self) -> bool:
        """Whether the kernel killed something for memory while the engine ran."""
        return oom_kill_count() > self._oom_kills

    async def wait(self) -> int:
        """The exit status; negative is a signal. Safe to cancel."""
        return await asyncio.shield(self._exited)

    def signal_leader(self, number: signal.Signals) -> None:
        """To the engine alone; what it means to us is set in `intent` beforehand."""
        if not self._exited.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def signal(self, number: signal.Signals, intent: Intent) -> None:
        """Sends a signal to the engine's whole group. The first intent is the one that counts."""
        if self._exited.done():
            return
        if self.intent is None:
            self.intent = intent
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def end(self, intent: Intent, *, grace_s: float = TERM_WAIT_S) -> int:
        """SIGTERM, then SIGKILL after `grace_s`; with no grace SIGKILL at once. Raises
        EngineStuckError where not even that ends it."""
        if self.intent is None:
            self.intent = intent
        if grace_s > 0:
            self.signal(signal.SIGTERM, intent)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    return await self.wait()
        self.signal(signal.SIGKILL, intent)
        try:
            async with asyncio.timeout(KILL_WAIT_S):
                return await self.wait()
        except TimeoutError:
            raise EngineStuckError(
                f"the engine {self.pid} does not end after SIGKILL: it waits in the kernel"
            ) from None

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            watch = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            # No pidfd on this system: a thread waits instead.
            def wait_in_thread() -> None:
                self._popen.wait()
                with contextlib.suppress(RuntimeError):  # the loop is closed already
                    loop.call_soon_threadsafe(self._on_exit)

            threading.Thread(target=wait_in_thread, name="engine-wait", daemon=True).start()
            return

        def on_readable() -> None:
            loop.remove_reader(watch)
            os.close(watch)
            self._on_exit()

        loop.add_reader(watch, on_readable)

    def _on_exit(self) -> None:
        # The leader is not reaped yet, so its group's number cannot be another's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if not self._exited.done():
            self._exited.set_result(self._popen.wait())


def launch(
    spec: Launch, beacon_fd: int | None = None, run_dir: Path | None = None, epoch: int = 0
) -> EngineProcess:
    """Starts the engine; `beacon_fd` stays ours. `run_dir` and `epoch` mark it and all that it may
    start as theirs (strays.py). Raises OSError where the executable cannot be started.

    Must be called on the main thread: the engine asks the kernel to end it together with the
    *thread* that started it.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("engines are launched from the main thread only")
    command_read, command_write = os.pipe()
    event_read, event_write = os.pipe()
    log_read, log_write = os.pipe()
    theirs = (command_read, event_write, log_write)
    passed = (command_read, event_write) + (() if beacon_fd is None else (beacon_fd,))
    try:
        for fd in (command_write, event_read):
            _widen(fd)
        popen = subprocess.Popen(
            spec.argv(passed),
            stdin=subprocess.DEVNULL,
            stdout=log_write,
            stderr=log_write,
            pass_fds=passed,
            start_new_session=True,
            env={
                **os.environ,
                "STRATA_PPID": str(os.getpid()),
                **({} if run_dir is None else _marks(run_dir, epoch)),
            },
        )
    except BaseException:
        for fd in (command_write, event_read, log_read):
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    return EngineProcess(popen, command_write, event_read, log_read)


def _marks(run_dir: Path, epoch: int) -> dict[str, str]:
    return {
        RUN_DIR_MARK: str(run_dir),
        EPOCH_MARK: str(epoch),
        OWNER_MARK: f"{os.getpid()} {start_time(os.getpid())}",
    }


def _widen(fd: int) -> None:
    with contextlib.suppress(AttributeError, OSError):  # Linux only, and bounded by the system
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def oom_kill_count() -> int:
    """Kills for memory that the kernel has done since boot; 0 where it does not say."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0
