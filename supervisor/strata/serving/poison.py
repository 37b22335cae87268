"""Requests that kill engines: who is suspected, who is tried alone, and who is refused.

After a crash each request that was in the fatal step goes on alone for TRIAL_TOKENS tokens, one
request after another, while everything else waits; those that pass are held by their credit until
the last one has been tried. So a guilty one dies alone, and whoever dies alone and has been in a
crash before is refused from then on. Pure; only hashes of requests are kept.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import msgspec
from strata_protocol.messages import ErrorKind

from strata.serving.request import Failed, RejectedError, RequestSpec

TRIAL_TOKENS = 16  # generated alone to be cleared: beyond what a dying engine kept to itself
CRASHES_MAX = 2  # crashes of one fingerprint, the last of them alone, until it is refused
QUARANTINE_S = 24 * 3600.0
RECORDS_MAX = 1024
CODE = "request_quarantined"

_ENCODER = msgspec.msgpack.Encoder()


def fingerprint(spec: RequestSpec) -> bytes:
    """A hash of what makes the engine do the same again: prompt ids and parameters, but not the
    seed and choice, which differ each time the same request is sent."""
    params = msgspec.structs.replace(spec.params, seed=0, choice=0)
    digest = hashlib.blake2b(array("q", spec.prompt_ids).tobytes(), digest_size=16)
    digest.update(_ENCODER.encode(params))
    return digest.digest()


@dataclass(slots=True)
class _Record:
    crashes: int
    until_s: float  # when it is forgotten
    is_refused: bool = False


class Quarantine:
    """Crashes by fingerprint, for a day and RECORDS_MAX of them. Times: seconds, one clock."""

    def __init__(self) -> None:
        self._records: dict[bytes, _Record] = {}  # the least recent first

    def count(self, now: float) -> int:
        """Fingerprints that are refused."""
        self._expire(now)
        return sum(r.is_refused for r in self._records.values())

    def on_crash(self, prints: Collection[bytes], now: float, *, is_alone: bool) -> bytes | None:
        """An engine died in a step of these. Returns the fingerprint that is refused from now on:
        in its second crash, where `is_alone` says that only one can have done it."""
        self._expire(now)
        for suspect in prints:
            record = self._records.pop(suspect, None) or _Record(0, 0.0)
            record.crashes += 1
            record.until_s = now + QUARANTINE_S
            self._records[suspect] = record
        while len(self._records) > RECORDS_MAX:
            del self._records[next(iter(self._records))]
        if not is_alone:
            return None
        (only,) = prints
        self._records[only].is_refused |= self._records[only].crashes >= CRASHES_MAX
        return only if self._records[only].is_refused else None

    def are_known(self, prints: Iterable[bytes]) -> bool:
        """Whether one of these was in a crash that has not turned out to be another's doing."""
        return any(found in self._records for found in prints)

    def on_cleared(self, cleared: bytes) -> None:
        """It was tried alone and the engine lived: its crashes were not its own."""
        record = self._records.get(cleared)
        if record is not None and not record.is_refused:
            del self._records[cleared]

    def on_acquitted(self, prints: Iterable[bytes]) -> None:
        """What was held against them was the doing of a mode."""
        for found in prints:
            self._records.pop(found, None)

    def check(self, spec: RequestSpec, now: float) -> None:
        """Raises RejectedError for a request that is refused."""
        if not self.count(now):
            return  # the rule: no request pays for the hash
        record = self._records.get(fingerprint(spec))
        if record is not None and record.is_refused:
            raise RejectedError(
                ErrorKind.INVALID_REQUEST,
                CODE,
                f"this request ended the engine {record.crashes} times and is refused for another"
                f" {max(record.until_s - now, 60.0) / 3600:.1f} h",
            )

    def verdict(self, guilty: bytes, cause: str) -> Failed:
        """What a request with the refused fingerprint `guilty` is answered."""
        crashes = self._records[guilty].crashes
        return Failed(
            ErrorKind.INVALID_REQUEST,
            CODE,
            f"this request ended the engine {crashes} times, the last time alone, and is refused"
            f" for {QUARANTINE_S / 3600:.0f} h: {cause}",
        )

    def _expire(self, now: float) -> None:
        for key, record in list(self._records.items()):
            if record.until_s > now:
                return  # ordered by time
            del self._records[key]


class Trials:
    """Which suspects are still to be tried, by request id."""

    def __init__(self) -> None:
        self._queue: deque[int] = deque()
        self.current: int | None = None
        self.held: list[int] = []  # passed; they wait for the others

    @property
    def is_on(self) -> bool:
        """Whether only the one on trial may run."""
        return self.current is not None or bool(self._queue)

    def on_lost(self, suspects: Iterable[int]) -> None:
        """The engine died; `suspects` were in the step, none where it was ended from outside."""
        again = [] if self.current is None else [self.current]
        self.current = None
        self.held.clear()
        suspects = list(suspects)
        self._queue.extendleft(rid for rid in again if rid not in suspects)
        # Those not tried yet go first: who has died once more is the more likely one.
        self._queue.extend(rid for rid in suspects if rid not in self._queue)

    def next(self) -> int | None:
        """Begins the next trial where none is under way; its request, or None."""
        if self.current is not None or not self._queue:
            return None
        self.current = self._queue.popleft()
        return self.current

    def clear(self) -> None:
        """The one on trial has passed and waits for the others."""
        if self.current is not None:
            self.held.append(self.current)
            self.current = None

    def begin(self, rid: int) -> None:
        """One that runs alone though it has not been in a crash. None may be under way."""
        self.current = rid

    def forget(self, rid: int) -> bool:
        """A request has ended; whether it was on trial."""
        was_current = self.current == rid
        if was_current:
            self.current = None
        elif rid in self.held:
            self.held.remove(rid)
        elif rid in self._queue:
            self._queue.remove(rid)
        return was_current

    def release(self) -> list[int]:
        """Those that may go on now that nobody is left to be tried."""
        if self.is_on:
            return []
        released, self.held = self.held, []
        return released
