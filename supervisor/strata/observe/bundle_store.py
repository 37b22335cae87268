"""The directory `crashes/` of a run directory: bundles in, oldest out, and reading them.

A bundle is written beside its place and renamed, so that a reader never meets half of one; a
damaged one is reported as such and never raises. Names begin with the time, so they sort.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import msgspec
from strata_protocol import beacon
from strata_protocol.beacon import BeaconView

from strata.engines.frame_ring import FrameNote
from strata.observe import bundle
from strata.observe.bundle import BundleMeta
from strata.observe.machine_memory import MachineMemory
from strata.observe.status import Status
from strata.serving.request_facts import RequestFacts

FOLDER = "crashes"
BUNDLES_KEPT = 20
_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}(?:-\d{1,3})?")
_PARTIAL = ".partial-"
T = TypeVar("T")


def crashes_path(run_dir: Path) -> Path:
    return run_dir / FOLDER


def new_id(run_dir: Path, when: datetime, signature: str) -> str:
    """ "20260131T235959Z-1a2b3c4d", with a number behind it where that is taken."""
    name = f"{when:%Y%m%dT%H%M%SZ}-{signature[:8]}"
    number = 1
    found = name
    while (crashes_path(run_dir) / found).exists():
        number += 1
        found = f"{name}-{number}"
    return found


def write_bundle(run_dir: Path, bundle_id: str, files: Mapping[str, bytes]) -> None:
    """Puts one bundle in its place and removes the oldest beyond BUNDLES_KEPT. Raises OSError;
    nothing of the bundle is left then."""
    folder = crashes_path(run_dir)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in folder.glob(_PARTIAL + "*"):  # of a supervisor that died while it wrote
        shutil.rmtree(left, ignore_errors=True)
    partial = folder / (_PARTIAL + bundle_id)
    try:
        partial.mkdir(mode=0o700)
        for name, data in files.items():
            _write(partial / name, data)
        partial.rename(folder / bundle_id)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for old in bundle_ids(run_dir)[BUNDLES_KEPT:]:
        if old != bundle_id:
            shutil.rmtree(folder / old, ignore_errors=True)


def bundle_ids(run_dir: Path) -> list[str]:
    """Newest first. Raises OSError where the directory is there and cannot be read."""
    try:
        names = [path.name for path in crashes_path(run_dir).iterdir()]
    except FileNotFoundError:
        return []
    return sorted((n for n in names if _ID.fullmatch(n)), key=_order, reverse=True)


def _order(name: str) -> tuple[str, int]:
    """By time, then by number: two of one second are told apart by that."""
    parts = name.split("-")
    return parts[0], int(parts[2]) if len(parts) > 2 else 1


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:  # noqa: PTH123  the mode is that of os.open
        file.write(data)


@dataclass(slots=True)
class Bundle:
    """One bundle as far as it can be understood."""

    id: str
    path: Path
    meta: BundleMeta | None = None
    beacon: BeaconView | None = None
    requests: list[RequestFacts] = field(default_factory=list)
    frames: list[FrameNote] = field(default_factory=list)
    memory: MachineMemory | None = None
    status: Status | None = None
    config: dict[str, str] = field(default_factory=dict)
    head: str = ""  # of the engine's output
    tail: str = ""
    problems: list[str] = field(default_factory=list)  # files that are damaged, with why

    @property
    def signature(self) -> str:
        return self.meta.signature if self.meta is not None else self.id.split("-")[1]


def read_file(path: Path) -> bytes:
    """A bundle's file: regular and at most BUNDLE_BYTES_MAX. Raises OSError, ValueError."""
    # Neither follows a link nor waits for a pipe that somebody put there.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as file:  # noqa: PTH123  the flags are those of os.open
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("is no regular file")
        if found.st_size > bundle.BUNDLE_BYTES_MAX:
            raise ValueError(f"has {found.st_size} bytes, a whole bundle {bundle.BUNDLE_BYTES_MAX}")
        return file.read(bundle.BUNDLE_BYTES_MAX)


def read_meta(run_dir: Path, bundle_id: str) -> Bundle:
    """With `meta` alone, for lists."""
    found = Bundle(bundle_id, crashes_path(run_dir) / bundle_id)
    found.meta = _part(found, bundle.META, BundleMeta)
    if found.meta is not None and found.meta.id != bundle_id:
        found.problems.append(f"{bundle.META}: it is of bundle {found.meta.id}")
        found.meta = None
    elif found.meta is None and not found.problems:
        found.problems.append(f"{bundle.META}: is missing")
    return found


def read_bundle(run_dir: Path, bundle_id: str) -> Bundle:
    """All of it."""
    found = read_meta(run_dir, bundle_id)
    found.beacon = _part(found, bundle.BEACON, BeaconView) or _beacon(found)
    found.requests = _part(found, bundle.SUSPECTS, list[RequestFacts]) or []
    found.frames = _part(found, bundle.FRAMES, list[FrameNote]) or []
    found.memory = _part(found, bundle.MEMORY, MachineMemory)
    found.status = _part(found, bundle.STATUS, Status)
    found.config = _part(found, bundle.CONFIG, dict[str, str]) or {}
    found.head = _data(found, bundle.HEAD).decode("utf-8", "replace")
    found.tail = _data(found, bundle.TAIL).decode("utf-8", "replace")
    return found


def _data(found: Bundle, name: str) -> bytes:
    """Empty for a file that is not there."""
    try:
        return read_file(found.path / name)
    except FileNotFoundError:
        return b""
    except OSError as error:
        found.problems.append(f"{name}: {error.strerror or error}")
    except ValueError as error:
        found.problems.append(f"{name}: {error}")
    return b""


def _part(found: Bundle, name: str, kind: type[T]) -> T | None:
    known = len(found.problems)
    data = _data(found, name)
    if not data:
        if len(found.problems) == known and (found.path / name).exists():
            found.problems.append(f"{name}: is empty")
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        found.problems.append(f"{name}: {error}")
    return None


def _beacon(found: Bundle) -> BeaconView | None:
    """Decoded once more, where the decoded one is damaged."""
    data = _data(found, bundle.BEACON_BIN)
    if not data:
        return None
    view, problem = beacon.read(data)
    if problem:
        found.problems.append(f"{bundle.BEACON_BIN}: {problem}")
    return view
