"""Requests that a shared step ended with logits that are not finite, and what it says of the mode.

Such a request runs again alone before its client hears of it. Alone it is fine: then the fault was
that of what the step was, so the mode is in doubt. Not fine alone either: then it is the request's
own, and the error goes out. Everything that is hit before one of them is found fine is one doubt,
as one step may hit many. Pure.
"""

from __future__ import annotations

from strata_protocol.messages import Done, ErrorKind, FinishReason

from strata.serving.entry import Entry

RETRIES_MAX = 2  # of one request; with the next fault it is given up


class NumericDoubts:
    """Of one engine; `clear` with the next."""

    def __init__(self) -> None:
        self._hit: dict[int, str] = {}  # by request: the mode of the step, while it is one doubt

    def retries(self, entry: Entry, done: Done, mode: str) -> bool:
        """Whether `done` is such an end and the request is to run again alone. `mode`: what the
        steps that it shared ran in."""
        is_fault = done.reason is FinishReason.ERROR and done.error_kind is ErrorKind.NUMERIC_FAULT
        is_lost = entry.is_cancelled or entry.ending is not None
        if not is_fault or is_lost or not entry.was_shared or entry.retries >= RETRIES_MAX:
            return False
        entry.retries += 1
        self._hit[entry.rid] = mode
        return True

    def on_fine(self, rid: int) -> str:
        """The request ran alone and was fine: the mode that this puts in doubt, or an empty text.
        The others that were hit are of the same doubt."""
        mode = self._hit.get(rid, "")
        if mode:
            self._hit.clear()
        return mode

    def forget(self, rid: int) -> None:
        """It ended some other way."""
        self._hit.pop(rid, None)

    def clear(self) -> None:
        self._hit.clear()
