"""The place that a quarantine record is about, from an engine's HELLO and the files it runs from.

Reads files and remembers nothing; what a place means is `quarantine.py`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from strata_protocol.messages import Hello

from strata.engines.quarantine import Place

TIMES_MODULUS = 2**63  # a sum of times stays a number that every reader of JSON takes


def size_and_time(files: Sequence[Path]) -> tuple[int, int]:
    """Bytes and time of change (ns); zeros for a file that is not there: the engine will refuse
    it. Of several files the sums, times as a number that differs whichever of them changes."""
    size = mtime_ns = 0
    for path in files:
        try:
            stat = path.stat()
        except OSError:
            continue
        size += stat.st_size
        mtime_ns += stat.st_mtime_ns
    return size, mtime_ns % TIMES_MODULUS


def hash_of(executable: Path) -> str:
    """Of the file's contents, short; empty for one that cannot be read: it cannot be started."""
    try:
        with executable.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:12]
    except OSError:
        return ""


def place_of(hello: Hello, build: str, model: Path, stat: tuple[int, int]) -> Place:
    """Where the engine that says HELLO is; `build` and `stat` are what `hash_of` and
    `size_and_time` found of its executable and of its model files when it was started."""
    size, mtime_ns = stat
    return Place(
        build=f"{hello.build} {build}".rstrip(),  # two builds may share a version
        device=hello.device,
        path=str(model),
        size=size,
        mtime_ns=mtime_ns,
    )
