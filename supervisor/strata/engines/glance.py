"""A look at the beacon, for who watches whether an engine moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glance:
    """The beacon, as far as movement goes. `place` differs with every movement."""

    phase: str
    place: object
    moved_s: float = 0.0  # monotonic clock; of the last movement whose time was written
