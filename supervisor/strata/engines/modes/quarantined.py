"""What a quarantine record hides. Its store is elsewhere; here is what a choice needs of it.

A mode is `AXIS` (all but the axis' plainest value) or `AXIS=VALUE` (that value; of a number, every
one at or above it), as the engine reads the same list in OFFER.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from strata_protocol.messages import ModePlan

from strata.engines.modes.axes import AXIS, Axis, Value, given

QUARANTINED = "mode.quarantined"

# Axes without a plainest value are hidden by value only.
_PLAINEST: dict[str, str] = {
    "batch": "1",
    "max_context": "256",
    "prefill": "1",
    "kv": "f32",
    "activations": "f32",
    "prefix_cache": "off",
    "mtp": "off",
    "spec": "0",
    "batch_mtp": "off",
}


_MODE = re.compile(r"([a-z_]{1,32})(?:=([A-Za-z0-9_]{1,32}))?")
# Those that the engine takes in OFFER (quarantine.cpp), which are those that can be blamed.
_AXES = frozenset(_PLAINEST)


def is_mode(text: str) -> bool:
    """Whether a record may name this mode: AXIS or AXIS=VALUE, of an axis that can be out."""
    found = _MODE.fullmatch(text)
    if found is None or found[1] not in _AXES:
        return False
    return found[1] != "max_context" or found[2] is None or found[2].strip("0") != ""


class Quarantined(Protocol):
    """A record of quarantine."""

    @property
    def mode(self) -> str: ...

    @property
    def text(self) -> str:
        """Why, in one sentence."""
        ...


def hides_value(record: Quarantined, axis: Axis, value: Value) -> bool:
    name, _, hidden = record.mode.partition("=")
    if name != axis.name:
        return False
    shown = axis.shown(value)
    if not hidden:
        return axis.name in _PLAINEST and shown != _PLAINEST[axis.name]
    if hidden.isdigit() and shown.isdigit():
        return int(shown) >= int(hidden)
    return shown == hidden


def hides(record: Quarantined, plan: ModePlan) -> bool:
    """Whether `plan` has the mode that the record takes out."""
    axis = AXIS.get(record.mode.partition("=")[0])
    return axis is not None and hides_value(record, axis, given(axis, plan))


def hiding(records: Iterable[Quarantined], plan: ModePlan) -> list[Quarantined]:
    return [record for record in records if hides(record, plan)]
