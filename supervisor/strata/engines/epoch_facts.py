"""What an epoch has shown of itself, as its owner needs it."""

from __future__ import annotations

from pathlib import Path

from strata_protocol.messages import ModePlan

from strata.engines.blame import is_in_step
from strata.engines.epoch import Epoch
from strata.engines.exits import EngineExit
from strata.engines.memory_wait import bytes_needed

Fingerprints = tuple[tuple[int, int, int] | None, ...]


def suspects_of(exited: EngineExit) -> tuple[int, ...]:
    """Requests in the step that an engine died in; empty where not all of them are known."""
    view = exited.beacon
    if view is None or not is_in_step(view) or view.rid_count > len(view.rids):
        return ()
    return view.rids


def plan_of(epoch: Epoch) -> ModePlan | None:
    """What an engine ran, or was about to."""
    shake = epoch.handshake
    if shake.ready is not None:
        return shake.ready.plan
    return shake.choice.plan if shake.choice is not None else None


def memory_of(epoch: Epoch) -> int:
    """Bytes of memory that an engine's plan needed, as far as is known."""
    shake = epoch.handshake
    if shake.ready is not None:
        return bytes_needed(shake.ready.memory)
    configuration = shake.choice.configuration if shake.choice is not None else None
    return 0 if configuration is None else bytes_needed(configuration.memory)


def fingerprint(paths: tuple[Path, ...]) -> Fingerprints:
    """Identity, size and time of change of files; None for one that is not there."""
    found: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
