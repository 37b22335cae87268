"""What is known of the requests that are open: the line, what the engine has, and how many places
are left. `Scheduler` changes it, others read it; no events here.
"""

from __future__ import annotations

from collections.abc import Collection

from strata.serving.admission import Admission, Queue
from strata.serving.entry import Entry
from strata.serving.line import Line
from strata.serving.move import why_not_move
from strata.serving.recovery import Recovery
from strata.serving.request import EngineFacts
from strata.serving.request_facts import RequestFacts, facts_of

SUBMIT_AHEAD = 2  # requests sent beyond the batch, so that a freed place is filled at once
STALLED_MAX = 256  # requests whose reader does not read that are sent beyond these


class OpenRequests:
    """Requests between acceptance and their terminal event."""

    def __init__(self, admission: Admission, recovery: Recovery) -> None:
        self._admission = admission
        self.recovery = recovery  # others only read it
        self._line: Line[Entry] = Line()
        self._in_flight: dict[int, Entry] = {}  # known to the engine, in order of submission
        self._entries: dict[int, Entry] = {}
        self._abandoned: set[int] = set()  # ended here, but the engine has not said DONE
        self._is_up = False  # takes requests: from READY until it is lost or drains
        self._is_writable = True
        self._is_solo = False  # steps of several requests are out until the next engine

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def waiting_tokens(self) -> int:
        return self._line.tokens

    @property
    def in_flight(self) -> int:
        """Requests that take a place in the engine."""
        return len(self._in_flight) + len(self._abandoned)

    def facts(self, suspects: Collection[int]) -> list[RequestFacts]:
        """What may be written down of the requests that the engine has."""
        return [facts_of(e, was_in_step=e.rid in suspects) for e in self._in_flight.values()]

    def suspected(self, suspects: Collection[int]) -> frozenset[str]:
        """Fingerprints of the requests that may have ended the engine that has them."""
        return self.recovery.prints(suspects, list(self._in_flight.values()))

    def why_not_move(self, facts: EngineFacts) -> str:
        """Why what runs could not go on with an engine of these facts; empty where it could."""
        return why_not_move(self._in_flight.values(), self.recovery.journal, self._admission, facts)

    @property
    def parked(self) -> int:
        """Requests that have lost their engine and wait for the next one; they count as waiting."""
        return sum(e.lost_s is not None for e in self._line)

    def oldest_wait_s(self, now: float) -> float:
        return max((now - e.arrived_s for e in self._line), default=0.0)

    def wait_s(self, now: float) -> float:
        """How long a request that comes now is expected to wait."""
        return self._admission.wait_s(self._queue(), now)

    # --- for the scheduler

    def _queue(self) -> Queue:
        return Queue(len(self._line), self._line.tokens, self._places())

    def _places(self) -> int:
        """How many requests may be sent now."""
        facts = self._admission.facts
        if facts is None or not self._can_send() or self.recovery.trials.is_on:
            return 0
        # A stalled request keeps no place from others, here as in the engine.
        stalled = min(sum(e.is_stalled for e in self._in_flight.values()), STALLED_MAX)
        if self._is_solo:
            return max(1 + stalled - self.in_flight, 0)
        return max(facts.plan.batch + SUBMIT_AHEAD + stalled - self.in_flight, 0)

    def _can_send(self) -> bool:
        return self._is_up and self._is_writable
