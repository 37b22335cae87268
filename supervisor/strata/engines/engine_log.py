"""Drains the engine's standard output and error: last lines in memory, everything to one file per
epoch, each line to our log. Never makes the engine wait and never blocks the loop: what comes
faster than the disk takes it is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from pathlib import Path

LINES_KEPT = 200
LINE_BYTES_MAX = 4096
PENDING_BYTES_MAX = 1 << 20
FILE_BYTES_MAX = 16 << 20
FILES_KEPT = 10
LINES_PER_SECOND = 200  # of the log; the file gets all

log = logging.getLogger("strata.engine.output")
_EPOCH_FILE = re.compile(r"engine-(\d+)\.log")


def log_path(run_dir: Path, epoch: int) -> Path:
    return run_dir / f"engine-{epoch}.log"


def newest_epoch(run_dir: Path) -> int:
    """The highest epoch that has a log file here, or 0; a new run counts on from it."""
    found = (_EPOCH_FILE.fullmatch(p.name) for p in run_dir.glob("engine-*.log"))
    return max((int(m.group(1)) for m in found if m), default=0)


def drop_old_files(run_dir: Path, epoch: int) -> None:
    """Removes the logs of all but the newest epochs."""
    for path in run_dir.glob("engine-*.log"):
        match = _EPOCH_FILE.fullmatch(path.name)
        if match and int(match.group(1)) <= epoch - FILES_KEPT:
            path.unlink(missing_ok=True)


class EngineLog(asyncio.Protocol):
    """One epoch's log pipe. Give it to `connect_read_pipe`, then run `write_file`."""

    def __init__(self, run_dir: Path, epoch: int) -> None:
        self._path = log_path(run_dir, epoch)
        self._run_dir = run_dir
        self._epoch = epoch
        self._pending = bytearray()
        self._partial = b""
        self._has_more = asyncio.Event()
        self._is_closed = False
        self._dropped = 0
        self._second = 0
        self._lines_this_second = 0
        self._suppressed = 0
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)

    def data_received(self, data: bytes) -> None:
        if len(self._pending) + len(data) <= PENDING_BYTES_MAX:
            self._pending += data
        else:
            self._dropped += len(data)
        self._has_more.set()
        *lines, rest = (self._partial + data).split(b"\n")
        for line in lines:
            self._take_line(line)
        if len(rest) > LINE_BYTES_MAX:
            self._take_line(rest)
            rest = b""
        self._partial = rest

    def connection_lost(self, exc: Exception | None) -> None:
        if self._partial:
            self._take_line(self._partial)
            self._partial = b""
        self._is_closed = True
        self._has_more.set()

    async def write_file(self) -> None:
        """Writes the epoch's file until the pipe closes. A full disk costs the file, no more."""
        try:
            await asyncio.to_thread(drop_old_files, self._run_dir, self._epoch)
        except OSError as error:
            log.warning("old logs in %s cannot be removed: %s", self._run_dir, error.strerror)
        self._has_more.set()  # the file is there from the start: epochs are counted by it
        written = 0
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            is_last = self._is_closed
            data, self._pending = bytes(self._pending), bytearray()
            if self._dropped:
                data += b"\n[strata: %d bytes of output dropped]\n" % self._dropped
                self._dropped = 0
            if written < FILE_BYTES_MAX:
                written += len(data)
                if written >= FILE_BYTES_MAX:
                    data += b"\n[strata: the file is full; later output is not kept]\n"
                try:
                    await asyncio.to_thread(self._append, data)
                except OSError as error:
                    log.warning("%s cannot be written: %s", self._path, error.strerror)
                    written = FILE_BYTES_MAX
            if is_last:
                return

    def _append(self, data: bytes) -> None:
        with self._path.open("ab") as file:
            file.write(data)

    def _take_line(self, raw: bytes) -> None:
        text = raw[:LINE_BYTES_MAX].decode("utf-8", "replace").rstrip()
        if not text:
            return
        self.lines.append(text)
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            if self._suppressed:
                log.info("(%d more lines in %s)", self._suppressed, self._path)
            self._second, self._lines_this_second, self._suppressed = second, 0, 0
        self._lines_this_second += 1
        if self._lines_this_second > LINES_PER_SECOND:
            self._suppressed += 1
        else:
            log.info("%s", text)
