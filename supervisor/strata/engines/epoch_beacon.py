"""One epoch's beacon: its file in the run directory, and reading it, also after the engine's death.

A full disk or a run directory that is gone costs the beacon, not the service.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import struct
from pathlib import Path

from strata_protocol import beacon
from strata_protocol.beacon import BeaconView
from strata_protocol.beacon_layout import MAGIC, PAGE, PAGE_BYTES, PHASES, RECORD_WHOLE

from strata.engines.glance import Glance

FILES_KEPT = 5

log = logging.getLogger("strata.engine")
_EPOCH_FILE = re.compile(r"beacon-(\d+)")


def beacon_path(run_dir: Path, epoch: int) -> Path:
    return run_dir / f"beacon-{epoch}"


class EpochBeacon:
    """Created by `make`. `fd` is for the engine to inherit; `close` it once the exit is known."""

    def __init__(self, file: beacon.BeaconFile) -> None:
        self.fd = file.fd
        self.path = file.path
        self._map = mmap.mmap(file.fd, PAGE_BYTES, access=mmap.ACCESS_READ)

    @classmethod
    def make(cls, run_dir: Path, epoch: int) -> EpochBeacon | None:
        """A new file, and without those of old epochs; None where it cannot be had."""
        path = beacon_path(run_dir, epoch)
        try:
            run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            for old in run_dir.glob("beacon-*"):
                match = _EPOCH_FILE.fullmatch(old.name)
                if match and int(match.group(1)) <= epoch - FILES_KEPT:
                    old.unlink(missing_ok=True)
            file = beacon.create(path)
        except OSError as error:
            _warn(path, error)
            return None
        try:
            # Pages that the disk has no room for would end whoever writes to them.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fd, 0, PAGE_BYTES)
        except OSError as error:
            _warn(path, error)
            file.close()
            path.unlink(missing_ok=True)
            return None
        try:
            return cls(file)
        except OSError as error:
            _warn(path, error)
            file.close()
            return None

    def read(self) -> BeaconView | None:
        """What it says now, from the descriptor, so that a removed file can be read too; None
        where the engine wrote nothing that can be understood."""
        try:
            view, _ = beacon.read(os.pread(self.fd, PAGE_BYTES, 0))
        except OSError as error:
            log.warning("%s cannot be read: %s", self.path, error.strerror)
            return None
        return view

    def glance(self) -> Glance | None:
        """Whether and where it moves: microseconds, for every look at a running engine. None before
        the engine has begun to write. Words that are written meanwhile are a movement too."""
        if self._number("<Q", "magic") != MAGIC:
            return None
        phase = self._number("<I", "phase")
        name = PHASES[phase] if phase < len(PHASES) else f"unknown ({phase})"
        words = [self._number("<Q", field) for field in ("moved_ns", "position", "step")]
        return Glance(name, tuple(words), words[0] / 1e9)

    def has_dump(self) -> bool:
        """Whether the compute thread has answered SIGUSR2."""
        return self._number("<I", "dump") == RECORD_WHOLE  # the record begins with its state

    def close(self) -> None:
        self._map.close()
        os.close(self.fd)

    def _number(self, code: str, name: str) -> int:
        value: int = struct.unpack_from(code, self._map, PAGE.offsets[name])[0]
        return value


def _warn(path: Path, error: OSError) -> None:
    log.warning(
        "%s cannot be made: %s; should this engine crash, its last act will not be known",
        path,
        error.strerror,
    )
