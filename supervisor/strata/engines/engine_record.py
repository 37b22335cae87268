"""The file of the run directory that names an engine's process, so that one left behind is found
(stale.py). A full disk or a run directory that is gone costs the record, not the service.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from strata.engines import stale

log = logging.getLogger("strata.engine")


class EngineRecord:
    """Of one engine; `name` is that of a successor's file until it has taken over."""

    def __init__(self, run_dir: Path, epoch: int, run_id: str, name: str) -> None:
        self._run_dir = run_dir
        self._epoch = epoch
        self._run_id = run_id
        self._name = name

    async def write(self, pid: int) -> None:
        try:
            await asyncio.to_thread(
                stale.write_record, self._run_dir, pid, self._epoch, self._run_id, self._name
            )
        except OSError as error:
            log.warning(
                "%s cannot be written: %s; should this supervisor be killed, the next one does not"
                " know of engine %d",
                self._run_dir / stale.RECORD_NAME,
                error.strerror,
                pid,
            )

    async def forget(self) -> None:
        """A record that stays is harmless: its process is gone, and it names the start time."""
        try:
            await asyncio.to_thread(stale.forget_record, self._run_dir, self._epoch)
        except OSError as error:
            log.warning(
                "%s cannot be removed: %s", self._run_dir / stale.RECORD_NAME, error.strerror
            )

    def promote(self) -> None:
        """The engine was proven beside another one and has taken over. In a thread."""
        try:
            stale.promote_record(self._run_dir)
        except OSError as error:
            log.warning("%s cannot be renamed: %s", stale.NEXT_NAME, error.strerror)
