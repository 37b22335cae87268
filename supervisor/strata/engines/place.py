"""The place that a quarantine record is about, from an engine's HELLO and the files it runs from.

Reads files and remembers nothing; what a place means is `quarantine.py`'s.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from strata_protocol.messages import Hello

from strata.engines.quarantine import Place


def size_and_time(path: Path) -> tuple[int, int]:
    """Bytes and time of change (ns); zeros for a file that is not there: the engine will refuse
    it."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


def hash_of(executable: Path) -> str:
    """Of the file's contents, short; empty for one that cannot be read: it cannot be started."""
    try:
        with executable.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:12]
    except OSError:
        return ""


def place_of(hello: Hello, build: str, model: Path, stat: tuple[int, int]) -> Place:
    """Where the engine that says HELLO is; `build` and `stat` are what `hash_of` and
    `size_and_time` found of its executable and of its model file when it was started."""
    size, mtime_ns = stat
    return Place(
        build=f"{hello.build} {build}".rstrip(),  # two builds may share a version
        device=hello.device,
        path=str(model),
        size=size,
        mtime_ns=mtime_ns,
    )
