"""Decides which request goes to the engine when, and what each message of the engine means for
its request. Events in, effects out; no I/O and no clock of its own.

Invariants: every accepted request gets exactly one terminal event, at the latest CANCEL_GRACE_S
after its CANCEL; what an engine's death or drain found without a token starts over unseen, what
had begun gets one typed error; a token is delivered once, in order, whatever the engine repeats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from strata_protocol.errors import ProtocolFault
from strata_protocol.features import declare
from strata_protocol.messages import (
    Cancel,
    Credit,
    Done,
    ErrorKind,
    FinishReason,
    PromptLogprobs,
    Submit,
    Timings,
    Tokens,
)
from strata_protocol.streams import new_tokens

from strata.engines.port import ENGINE_DRAINING
from strata.serving.admission import Admission, Closure, SchedulerLimits
from strata.serving.entry import CREDIT_WINDOW, Entry, RequestState, deadline_exceeded
from strata.serving.line import Line
from strata.serving.recorder import Recorder
from strata.serving.request import (
    EngineFacts,
    Event,
    Failed,
    Finished,
    PromptScored,
    RejectedError,
    RequestSpec,
    TokensReady,
)
from strata.serving.request_facts import RequestFacts, facts_of

SUBMIT_AHEAD = 2  # requests sent beyond the batch, so that a freed place is filled at once
STALLED_MAX = 256  # requests whose reader does not read that are sent beyond these
CREDIT_STEP = CREDIT_WINDOW // 2  # credit is renewed in steps of this size
REQUEUES_MAX = 2
CANCEL_GRACE_S = 5.0  # from CANCEL to the end without the engine's DONE


@dataclass(frozen=True, slots=True)
class Send:
    message: Submit | Cancel | Credit


@dataclass(frozen=True, slots=True)
class Deliver:
    rid: int
    event: Event


@dataclass(frozen=True, slots=True)
class Fault:
    """The engine broke the protocol; it must be ended."""

    text: str


Effect = Send | Deliver | Fault


class Scheduler:
    """All requests between acceptance and their terminal event. Times: seconds, one clock."""

    def __init__(
        self, limits: SchedulerLimits, recorder: Recorder, jitter: Callable[[], float]
    ) -> None:
        self._timeout_s = limits.request_timeout_s
        self._recorder = recorder
        self._admission = Admission(limits, jitter)
        self._line: Line[Entry] = Line()
        self._in_flight: dict[int, Entry] = {}  # known to the engine, in order of submission
        self._entries: dict[int, Entry] = {}
        self._abandoned: set[int] = set()  # ended here, but the engine has not said DONE
        self._is_up = False  # takes requests: from READY until it is lost or drains
        self._is_writable = True
        self._next_rid = 1

    # --- what others may read

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

    def facts(self) -> list[RequestFacts]:
        """What may be written down of the requests that the engine has."""
        return [facts_of(e) for e in self._in_flight.values()]

    def oldest_wait_s(self, now: float) -> float:
        return max((now - e.arrived_s for e in self._line), default=0.0)

    # --- requests

    def submit(self, spec: RequestSpec, now: float) -> tuple[int, list[Effect]]:
        """Accepts a request; returns its id. Raises RejectedError."""
        try:
            fits = self._has_place() and not len(self._line)
            self._admission.check(spec, len(self._line), self._line.tokens, fits=fits)
        except RejectedError as error:
            self._recorder.on_rejected(error.code)
            raise
        deadline_s = now + self._timeout_s if self._timeout_s else math.inf
        entry = Entry(self._next_rid, spec, now, deadline_s)
        self._next_rid += 1
        self._entries[entry.rid] = entry
        self._line.push(entry)
        self._recorder.on_accepted()
        return entry.rid, self._dispatch(now)

    def cancel(self, rid: int, now: float) -> list[Effect]:
        entry = self._entries.get(rid)
        if entry is None or entry.is_cancelled:
            return []
        entry.is_cancelled = True
        if entry.state is not RequestState.WAITING:
            entry.cancelled_s = min(entry.cancelled_s, now)
            return [Send(Cancel(rid=rid))]
        self._line.remove(entry)
        return [self._end(entry, self._cancelled(entry), now)]

    def on_consumed(self, rid: int, count: int) -> list[Effect]:
        """The reader took `count` tokens: the engine may run further ahead again."""
        entry = self._entries.get(rid)
        if entry is None:
            return []
        entry.consumed += count
        upto = entry.consumed + CREDIT_WINDOW
        if upto - entry.granted < CREDIT_STEP:
            return []
        entry.granted = upto
        return [Send(Credit(rid=rid, upto=upto))]

    def on_tick(self, now: float) -> list[Effect]:
        """Ends what has passed its deadline, and what a CANCEL of the engine did not end."""
        effects: list[Effect] = []
        late = [e for e in self._entries.values() if e.deadline_s <= now and e.ending is None]
        for entry in late:
            failed = deadline_exceeded(self._timeout_s)
            if entry.state is RequestState.WAITING:
                self._line.remove(entry)
                effects.append(self._end(entry, failed, now))
            else:
                entry.ending = failed
                if not entry.is_cancelled:
                    effects.append(Send(Cancel(rid=entry.rid)))
                entry.cancelled_s = min(entry.cancelled_s, now)
        for entry in list(self._in_flight.values()):
            if now - entry.cancelled_s >= CANCEL_GRACE_S:
                self._abandoned.add(entry.rid)
                effects.append(self._end(entry, entry.ending or self._cancelled(entry), now))
        return effects

    # --- the engine's life

    def on_ready(self, facts: EngineFacts, now: float) -> list[Effect]:
        self._admission.facts = facts
        self._admission.closed = None
        self._is_up = True
        self._is_writable = True
        effects: list[Effect] = []
        for entry in list(self._line):
            # Accepted before the first READY, or when the mode had more to offer.
            error = self._admission.refusal(entry.spec)
            if error is not None:
                self._line.remove(entry)
                failed = Failed(error.kind, error.code, error.text, error.param)
                effects.append(self._end(entry, failed, now))
        return effects + self._dispatch(now)

    def on_lost(self, cause: str, now: float) -> list[Effect]:
        """The engine is gone: requests without a token go back to the front of the line."""
        self._is_up = False
        effects: list[Effect] = []
        again: list[Entry] = []
        for entry in list(self._in_flight.values()):
            event: Failed | Finished
            if entry.is_cancelled:
                event = self._cancelled(entry)
            elif entry.ending is not None:
                event = entry.ending
            elif entry.state is RequestState.SUBMITTED and entry.requeues < REQUEUES_MAX:
                entry.reset()
                entry.requeues += 1
                again.append(entry)
                self._recorder.on_requeued()
                continue
            else:
                begun = entry.state is RequestState.STREAMING
                text = f"the engine ended while the request ran: {cause}"
                if not begun:
                    text = f"the engine ended {entry.requeues + 1} times with this request: {cause}"
                event = Failed(ErrorKind.INTERNAL, "engine_restarted", text)
            effects.append(self._end(entry, event, now))
        self._in_flight.clear()
        self._abandoned.clear()
        self._line.push_front(again)
        return effects

    def on_closed(self, closure: Closure, now: float) -> list[Effect]:
        """The engine does not come back soon: what waits is answered, and new requests are
        refused until the next READY."""
        self._admission.closed = closure
        return self._end_waiting(Failed(ErrorKind.OVERLOADED, closure.code, closure.text), now)

    def on_draining(self, closure: Closure) -> None:
        """Accepts nothing more; what was accepted goes on."""
        self._admission.draining = closure

    def end_all(self, failed: Failed, now: float) -> list[Effect]:
        """Answers everything left, for the end of a drain."""
        effects = self._end_waiting(failed, now)
        for entry in list(self._in_flight.values()):
            self._abandoned.add(entry.rid)
            effects += [Send(Cancel(rid=entry.rid)), self._end(entry, failed, now)]
        self._is_up = False
        return effects

    def on_writable(self, is_writable: bool, now: float) -> list[Effect]:
        """Whether the command pipe takes more; new requests wait while it does not."""
        self._is_writable = is_writable
        return self._dispatch(now)

    def on_unsendable(self, rid: int, text: str, now: float) -> list[Effect]:
        """The protocol cannot carry the request: its parameters are out of range or too long."""
        entry = self._in_flight[rid]
        failed = Failed(ErrorKind.INVALID_REQUEST, "invalid_parameters", text)
        return [self._end(entry, failed, now), *self._dispatch(now)]

    # --- the engine's messages

    def on_tokens(self, message: Tokens, now: float) -> list[Effect]:
        effects: list[Effect] = []
        first_s: list[float] = []
        gaps_s: list[float] = []
        total = 0
        has_stalled = False
        for item in message.items:
            entry = self._in_flight.get(item.rid)
            if item.rid in self._abandoned:
                continue
            if entry is None:
                return [*effects, Fault(f"TOKENS for request {item.rid}, which is not running")]
            try:
                ids = new_tokens(entry.received, item.offset, item.ids)
            except ProtocolFault as fault:
                return [*effects, Fault(f"request {item.rid}: {fault.text}")]
            logprobs = item.logprobs[len(item.ids) - len(ids) :]
            count = len(ids)
            if not count:
                continue
            entry.received += count
            if entry.received > entry.granted:
                return [
                    *effects,
                    Fault(
                        f"request {item.rid} got {entry.received} tokens,"
                        f" but credit reaches to {entry.granted}"
                    ),
                ]
            if entry.state is RequestState.SUBMITTED:
                entry.state = RequestState.STREAMING
                first_s.append(now - entry.arrived_s)
            else:
                gaps_s.append((now - entry.last_token_s) / count)
            entry.last_token_s = now
            total += count
            self._line.on_served(entry.spec.key, count)
            effects.append(Deliver(item.rid, TokensReady(ids, logprobs)))
            has_stalled = has_stalled or entry.is_stalled
        self._recorder.on_tokens(now, first_s, gaps_s, total)
        return effects + self._dispatch(now) if has_stalled else effects

    def on_prompt_logprobs(self, message: PromptLogprobs) -> list[Effect]:
        entry = self._in_flight.get(message.rid)
        if message.rid in self._abandoned:
            return []
        if entry is None:
            return [Fault(f"PROMPT_LOGPROBS for request {message.rid}, which is not running")]
        skip = entry.scored - message.offset if entry.scored else 0
        if skip < 0:
            return [Fault(f"PROMPT_LOGPROBS of request {message.rid} have a gap")]
        logprobs = message.logprobs[skip:] if skip else message.logprobs
        if not logprobs:
            return []
        entry.scored = message.offset + len(message.logprobs)
        return [Deliver(message.rid, PromptScored(message.offset + skip, logprobs))]

    def on_done(self, message: Done, now: float) -> list[Effect]:
        if message.code == ENGINE_DRAINING:
            self._is_up = False
        entry = self._in_flight.get(message.rid)
        if message.rid in self._abandoned:
            self._abandoned.remove(message.rid)
            return self._dispatch(now)
        if entry is None:
            return [Fault(f"DONE for request {message.rid}, which is not running")]
        event: Failed | Finished
        if entry.ending is not None:
            event = entry.ending
        elif message.code == ENGINE_DRAINING and entry.state is RequestState.SUBMITTED:
            return self._on_engine_draining(entry, now)
        elif message.reason is FinishReason.ERROR:
            kind = message.error_kind or ErrorKind.INTERNAL
            event = Failed(kind, message.code or kind.value, message.text)
        else:
            waited_ms = (entry.submitted_s - entry.arrived_s) * 1000
            timings = msgspec.structs.replace(
                message.timings, queue_ms=message.timings.queue_ms + waited_ms
            )
            event = Finished(
                message.reason,
                message.prompt_tokens,
                message.cached_tokens,
                message.output_tokens,
                timings,
                message.stop_id,
            )
        self._admission.on_finished(now - entry.submitted_s)
        return [self._end(entry, event, now), *self._dispatch(now)]

    # --- inside

    def _on_engine_draining(self, entry: Entry, now: float) -> list[Effect]:
        """The engine was told to end and computed nothing: the request waits for the next one.
        That is not the request's doing, so it does not count as one of its requeues."""
        if entry.is_cancelled:
            return [self._end(entry, self._cancelled(entry), now)]
        del self._in_flight[entry.rid]
        entry.reset()
        self._line.push_returned(entry)
        self._recorder.on_requeued()
        return []

    def _has_place(self) -> bool:
        facts = self._admission.facts
        if facts is None or not (self._is_up and self._is_writable):
            return False
        # A stalled request keeps no place from others, here as in the engine.
        stalled = min(sum(e.is_stalled for e in self._in_flight.values()), STALLED_MAX)
        return self.in_flight - stalled < facts.plan.batch + SUBMIT_AHEAD

    def _dispatch(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._has_place():
            entry = self._line.pop()
            if entry is None:
                break
            entry.state = RequestState.SUBMITTED
            entry.submitted_s = now
            self._in_flight[entry.rid] = entry
            self._recorder.on_submitted(now - entry.arrived_s)
            effects.append(
                Send(
                    Submit(
                        rid=entry.rid,
                        prompt_tokens=entry.prompt_tokens,
                        ids=list(entry.spec.prompt_ids),
                        params=declare(entry.spec.params),
                        credit=entry.granted,
                    )
                )
            )
        return effects

    @staticmethod
    def _cancelled(entry: Entry) -> Finished:
        """The end of a cancelled request that no engine answers for."""
        return Finished(FinishReason.CANCELLED, entry.prompt_tokens, 0, entry.received, Timings())

    def _end_waiting(self, failed: Failed, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for entry in list(self._line):
            self._line.remove(entry)
            effects.append(self._end(entry, failed, now))
        return effects

    def _end(self, entry: Entry, event: Failed | Finished, now: float) -> Deliver:
        """The one place where a request ends."""
        del self._entries[entry.rid]
        self._in_flight.pop(entry.rid, None)
        if isinstance(event, Finished):
            outcome, prompt, cached = event.reason.value, event.prompt_tokens, event.cached_tokens
        else:
            outcome, prompt, cached = event.code, 0, 0
        self._recorder.on_ended(outcome, now - entry.arrived_s, prompt, cached)
        return Deliver(entry.rid, event)
