"""What a quarantine record hides. Its store is elsewhere; here is what a choice needs of it.

A mode is `AXIS` (all but the axis' plainest value; of a number, all above it) or `AXIS=VALUE` (that
value; of a number, every one at or above it), as the engine reads the same list in OFFER: both
take axes and plainest values from the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Protocol

from strata_protocol.limits import MODE_PLAINEST
from strata_protocol.messages import ModePlan

from strata.engines.modes.axes import AXIS, Axis, Value, given

QUARANTINED = "mode.quarantined"

_MODE = re.compile(r"([a-z_]{1,32})(?:=([A-Za-z0-9_]{1,32}))?")


def is_mode(text: str) -> bool:
    """Whether a record may name this mode: AXIS or AXIS=VALUE, of an axis that can be out."""
    found = _MODE.fullmatch(text)
    if found is None or found[1] not in MODE_PLAINEST:
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
    shown, plainest = axis.shown(value), MODE_PLAINEST.get(axis.name)
    if not hidden:
        if plainest is not None and plainest.isdigit() and shown.isdigit():
            return int(shown) > int(plainest)
        return plainest is not None and shown != plainest
    if hidden.isdigit() and shown.isdigit():
        return int(shown) >= int(hidden)
    return shown == hidden


def hides(record: Quarantined, plan: ModePlan) -> bool:
    """Whether `plan` has the mode that the record takes out."""
    axis = AXIS.get(record.mode.partition("=")[0])
    return axis is not None and hides_value(record, axis, given(axis, plan))


def hiding(records: Iterable[Quarantined], plan: ModePlan) -> list[Quarantined]:
    return [record for record in records if hides(record, plan)]
