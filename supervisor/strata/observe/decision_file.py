"""The decision log on disk: `decisions.jsonl` in the run directory, so that `status --why` can be
answered when nobody is left to ask. One JSON object per line, at most BYTES_MAX.

A full disk or a directory that is gone costs lines, not the service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from strata.engines.decision_log import DecisionLog, Entry
from strata.observe.decision_read import FILE_NAME, read_decisions

BYTES_MAX = 128 * 1024
ENTRIES_KEPT = 200  # of a file that has grown beyond that

log = logging.getLogger("strata.service")


class DecisionFile:
    """Writes what is new in a log. One writer: the supervisor that holds the directory's lock."""

    def __init__(self, run_dir: Path, decisions: DecisionLog) -> None:
        self._run_dir = run_dir
        self._decisions = decisions
        self._written = 0
        self._lock = asyncio.Lock()
        self._is_warned = False

    async def write(self) -> None:
        """Appends what was added since the last call, in a thread."""
        async with self._lock:
            added = self._decisions.added
            entries = self._decisions.since(self._written)
            if not entries:
                return
            try:
                await asyncio.to_thread(append, self._run_dir, entries)
            except OSError as error:
                if not self._is_warned:
                    self._is_warned = True
                    path = self._run_dir / FILE_NAME
                    log.warning("%s cannot be written: %s", path, error.strerror)
                return
            self._written = added


def append(run_dir: Path, entries: Sequence[Entry]) -> None:
    """Raises OSError. A file that grows too large is replaced as a whole by its newest entries."""
    path = run_dir / FILE_NAME
    data = _lines(entries)
    with path.open("ab") as file:
        if file.tell() and not _ends_line(path):
            data = b"\n" + data  # the last writer died within a line
        file.write(data)
        size = file.tell()
    if size > BYTES_MAX:
        kept = read_decisions(run_dir)[-ENTRIES_KEPT:]
        data = _lines(kept)
        while len(data) > BYTES_MAX:
            kept = kept[len(kept) // 2 :]
            data = _lines(kept)
        partial = run_dir / (FILE_NAME + ".new")
        partial.write_bytes(data)
        partial.replace(path)


def _lines(entries: Sequence[Entry]) -> bytes:
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
