"""Decides which request goes to the engine when, and what each message of the engine means for
its request. Events in, effects out; no I/O and no clock of its own.

Invariants: every accepted request gets exactly one terminal event, at the latest CANCEL_GRACE_S
after its CANCEL; what an engine's death or drain found running stands before all others and goes on
with the next engine where recovery.py says so; after a crash its suspects run alone (poison.py); a
token is delivered once, in order, whatever the engines repeat.
"""

from __future__ import annotations

from collections.abc import Callable

from strata_protocol.errors import ProtocolFault
from strata_protocol.messages import (
    Cancel,
    Credit,
    Done,
    ErrorKind,
    PromptLogprobs,
    Tokens,
)

from strata.engines.port import ENGINE_DRAINING, EngineLost
from strata.serving.admission import Admission, Closure, Reservation, SchedulerLimits
from strata.serving.deadline import deadline_exceeded, deadline_s
from strata.serving.effects import Deliver, Doubt, Effect, Fault, Send
from strata.serving.entry import CREDIT_WINDOW, Entry, RequestState, unrepeated
from strata.serving.numeric import NumericDoubts
from strata.serving.open_requests import OpenRequests
from strata.serving.recorder import Recorder
from strata.serving.recovery import Recovery
from strata.serving.request import (
    CancelReason,
    EngineFacts,
    Failed,
    Finished,
    Paused,
    RejectedError,
    RequestSpec,
    TokensReady,
)
from strata.serving.shapes import LANE_WAIT_S

CREDIT_STEP = CREDIT_WINDOW // 2  # credit is renewed in steps of this size
CANCEL_GRACE_S = 5.0  # from CANCEL to the end without the engine's DONE


class Scheduler(OpenRequests):
    """All requests between acceptance and their terminal event. Times: seconds, one clock."""

    def __init__(
        self, limits: SchedulerLimits, recorder: Recorder, jitter: Callable[[], float]
    ) -> None:
        self._timeout_s = limits.request_timeout_s
        self._park_s = limits.park_s
        self._recorder = recorder
        super().__init__(Admission(limits, recorder, jitter), Recovery(limits.journal_bytes))
        self._doubts = NumericDoubts()
        self._closed_s: float | None = None  # since when no engine is to be expected soon
        self._next_rid = 1
        self.convicted = ""  # fingerprint that the last loss of an engine convicted

    # --- requests

    def reserve(self, key: str, now: float) -> Reservation:
        """The right to prepare one request of `key`. Raises RejectedError."""
        return self._admission.reserve(key, self._queue(), now)

    def submit(self, spec: RequestSpec, now: float) -> tuple[int, list[Effect]]:
        """Accepts a request; returns its id. Raises RejectedError."""
        try:
            self.recovery.check(spec, now)
            self._admission.check(spec, self._queue(), now)
        except RejectedError as error:
            self._recorder.on_rejected(error.code)
            raise
        self._admission.on_accepted(spec.key)
        entry = Entry(self._next_rid, spec, now, deadline_s(spec, self._timeout_s, now))
        self._next_rid += 1
        self._entries[entry.rid] = entry
        self._line.push(entry)
        self._recorder.on_accepted()
        return entry.rid, self._dispatch(now)

    def cancel(self, rid: int, now: float, why: CancelReason = CancelReason.CLIENT) -> list[Effect]:
        entry = self._entries.get(rid)
        if entry is None or entry.is_cancelled:
            return []
        entry.is_cancelled = True
        self._recorder.on_cancelled(why)
        if entry.state is not RequestState.WAITING:
            entry.cancelled_s = min(entry.cancelled_s, now)
            return [Send(Cancel(rid=rid))]
        self._line.remove(entry)
        return [self._end(entry, entry.cancelled(), now), *self._dispatch(now)]

    def on_consumed(self, rid: int, count: int) -> list[Effect]:
        """The reader took `count` tokens: the engine may run further ahead again."""
        entry = self._entries.get(rid)
        if entry is None:
            return []
        entry.consumed += count
        upto = entry.consumed + CREDIT_WINDOW
        is_known = entry.state is not RequestState.WAITING and entry.held_at is None
        if not is_known or upto - entry.granted < CREDIT_STEP:
            return []
        entry.granted = upto
        return [Send(Credit(rid=rid, upto=upto))]

    def on_tick(self, now: float) -> list[Effect]:
        """Ends what has passed its deadline, and what a CANCEL of the engine did not end."""
        effects: list[Effect] = []
        self._admission.estimate.on_time(now)
        late = [e for e in self._entries.values() if e.deadline_s <= now and e.ending is None]
        for entry in late:
            if entry.state is RequestState.WAITING:
                self._line.remove(entry)
                effects.append(self._expire(entry, now))
            else:
                self._recorder.on_deadline("engine")
                self._recorder.on_cancelled(CancelReason.DEADLINE)
                entry.ending = deadline_exceeded(entry.spec, self._timeout_s)
                if not entry.is_cancelled:
                    effects.append(Send(Cancel(rid=entry.rid)))
                entry.cancelled_s = min(entry.cancelled_s, now)
        for entry in list(self._in_flight.values()):
            if now - entry.cancelled_s >= CANCEL_GRACE_S:
                self._abandoned.add(entry.rid)
                effects.append(self._end(entry, entry.ending or entry.cancelled(), now))
        closure, closed_s = self._admission.closed, self._closed_s
        if closure is not None and closed_s is not None and now - closed_s >= self._park_s:
            effects += self._end_waiting(closure.failed(), now)
        return effects + self._dispatch(now) if effects else effects

    # --- the engine's life

    def on_ready(self, facts: EngineFacts, now: float) -> list[Effect]:
        self._admission.facts = facts
        self.recovery.on_build(facts.build)
        self._admission.estimate.on_ready(now, was_held=self._admission.closed is not None)
        self._admission.closed = None
        self._closed_s = None
        self._is_up = True
        self._is_writable = True
        self._is_solo = False
        effects: list[Effect] = []
        for entry in list(self._line):
            # Accepted before the first READY, or when the engine could do more.
            error = self._admission.fit_error(entry.spec, entry.received)
            if error is not None:
                self._line.remove(entry)
                failed = Failed(error.kind, error.code, error.text, error.param)
                effects.append(self._end(entry, failed, now))
        return effects + self._dispatch(now)

    def on_lost(self, lost: EngineLost, now: float) -> list[Effect]:
        """The engine is gone: what it ran goes back to the front of the line."""
        self._is_up = False
        self._doubts.clear()
        self._admission.estimate.on_away(now)
        effects: list[Effect] = []
        running = list(self._in_flight.values())
        loss = self.recovery.on_lost(lost, running, now, has_others=bool(self._abandoned))
        for entry, failed in loss.ended:
            event = failed or (None if entry.is_cancelled else entry.ending)
            effects.append(self._end(entry, event or entry.cancelled(), now))
        self._in_flight.clear()
        self._abandoned.clear()
        for entry in loss.again:
            entry.park(now)
            if not entry.has_begun:
                self._recorder.on_requeued()
            effects.append(Deliver(entry.rid, Paused("the engine restarts, the request goes on")))
        self._line.push_front(list(loss.again))
        self.convicted = "" if loss.guilty is None else loss.guilty.hex()
        if loss.guilty is not None:
            self._recorder.on_quarantined()
            failed = self.recovery.quarantine.verdict(loss.guilty, lost.cause)
            for entry in self.recovery.sharing(loss.guilty, list(self._line)):
                self._line.remove(entry)
                effects.append(self._end(entry, failed, now))
        return effects

    def on_shared_steps_out(self) -> None:
        """The mode of shared steps is out: the engine that runs is sent one request at a time."""
        self._is_solo = True

    def on_closed(self, closure: Closure, now: float) -> list[Effect]:
        """The engine does not come back soon: new requests are refused until the next READY, and
        what waits is answered, but what has begun waits on for `park_s`, unless the next engine
        starts later than that: it would wait in vain."""
        self._admission.closed = closure
        self._closed_s = now if self._closed_s is None else self._closed_s
        left_s = self._closed_s + self._park_s - now
        # A refusal ends when a person mends something: when that is nobody knows.
        is_late = closure.retry_after_s is not None and closure.retry_after_s >= left_s
        return self._end_waiting(closure.failed(), now, begun=is_late)

    def on_draining(self, closure: Closure) -> None:
        """Accepts nothing more; what was accepted goes on."""
        self._admission.draining = closure

    def end_all(self, failed: Failed, now: float) -> list[Effect]:
        """Answers everything left, for the end of a drain."""
        effects = self._end_waiting(failed, now)
        for entry in list(self._in_flight.values()):
            self._abandoned.add(entry.rid)
            self._recorder.on_cancelled(CancelReason.SHUTDOWN)
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
        if entry.has_begun:
            text = f"the engine ended while the request ran, and it cannot be resumed: {text}"
            failed = Failed(ErrorKind.INTERNAL, "engine_restarted", text)
        return [self._end(entry, failed, now), *self._dispatch(now)]

    # --- the engine's messages

    def on_tokens(self, message: Tokens, now: float) -> list[Effect]:
        effects: list[Effect] = []
        first_s: list[float] = []
        gaps_s: list[float] = []
        served: dict[tuple[str, bool], tuple[Entry, int]] = {}  # by key and class
        has_place = False
        for item in message.items:
            entry = self._in_flight.get(item.rid)
            if entry is None:
                if item.rid in self._abandoned:
                    continue
                return [*effects, Fault(f"TOKENS for request {item.rid}, which is not running")]
            event = TokensReady(item.ids, item.logprobs)
            if item.offset != entry.received:
                try:
                    event = unrepeated(item, entry.received)
                except ProtocolFault as fault:
                    return [*effects, Fault(f"request {item.rid}: {fault.text}")]
            if not (count := len(event.ids)):
                continue
            if (received := entry.received + count) > entry.granted:
                text = f"{received} tokens, but credit reaches to {entry.granted}"
                return [*effects, Fault(f"request {item.rid} got {text}")]
            entry.received = received
            if entry.state is RequestState.SUBMITTED:
                entry.state = RequestState.STREAMING
                first_s.append(now - entry.arrived_s)
            else:
                gaps_s.append((now - entry.last_token_s) / count)
            entry.first_token_s = entry.first_token_s or now
            entry.last_token_s = now
            payer = (entry.spec.key, entry.spec.priority > 0)
            served[payer] = (entry, count + served.get(payer, (entry, 0))[1])
            effects.append(Deliver(item.rid, event))
            is_over = self.recovery.on_tokens(entry, event.ids, now)
            if is_over:
                effects += self._on_fine(entry)
            has_place |= is_over or entry.is_stalled
        for entry, tokens in served.values():
            self._line.on_served(entry, tokens)
        self._recorder.on_tokens(now, first_s, gaps_s, sum(n for _, n in served.values()))
        return effects + self._dispatch(now) if has_place else effects

    def on_prompt_logprobs(self, message: PromptLogprobs) -> list[Effect]:
        entry = self._in_flight.get(message.rid)
        if message.rid in self._abandoned:
            return []
        if entry is None:
            return [Fault(f"PROMPT_LOGPROBS for request {message.rid}, which is not running")]
        try:
            scored = entry.take_scores(message)
        except ProtocolFault as fault:
            return [Fault(f"request {message.rid}: {fault.text}")]
        return [] if scored is None else [Deliver(message.rid, scored)]

    def on_done(self, message: Done, now: float) -> list[Effect]:
        if message.code == ENGINE_DRAINING:
            self._is_up = False
            self._admission.estimate.on_away(now)
        entry = self._in_flight.get(message.rid)
        if message.rid in self._abandoned:
            self._abandoned.remove(message.rid)
            return self._dispatch(now)
        if entry is None:
            return [Fault(f"DONE for request {message.rid}, which is not running")]
        if self._doubts.retries(entry, message, self._shared_mode()) and self.recovery.keeps(entry):
            return self._retry_alone(entry, now)
        fine = self._on_fine(entry) if entry.outcome_is_fine(message) else []
        event: Failed | Finished
        if entry.ending is not None:
            event = entry.ending
        elif message.code == ENGINE_DRAINING:
            return self._on_engine_draining(entry, now)
        else:
            event = entry.outcome(message)
        self._admission.estimate.on_finished(
            now - entry.submitted_s, now, others_wait=len(self._line) > 0
        )
        is_survived = not entry.is_cancelled and entry.ending is None
        ended = self._end(entry, event, now, is_survived=is_survived)
        return [ended, *fine, *self._dispatch(now)]

    # --- inside

    def _retry_alone(self, entry: Entry, now: float) -> list[Effect]:
        """Nothing is lost of it: it goes on alone, once nothing else runs."""
        del self._in_flight[entry.rid]
        self.recovery.trials.forget(entry.rid)
        entry.park(now)
        entry.aside_s = now
        self._line.set_aside(entry)
        self._recorder.on_requeued()
        return self._dispatch(now)

    def _on_fine(self, entry: Entry) -> list[Effect]:
        """It ran alone and gave results."""
        mode = "" if entry.was_shared else self._doubts.on_fine(entry.rid)
        return [Doubt(mode)] if mode else []

    def _shared_mode(self) -> str:
        facts = self._admission.facts
        return "batch_mtp" if facts is not None and facts.plan.spec else "batch"

    def _on_engine_draining(self, entry: Entry, now: float) -> list[Effect]:
        """The engine was told to end and computed nothing: the request waits for the next one.
        That is not the request's doing, so it does not count as one of its losses."""
        if entry.is_cancelled:
            return [self._end(entry, entry.cancelled(), now)]
        del self._in_flight[entry.rid]
        entry.park(now)
        self._line.push_returned(entry)
        self._recorder.on_requeued()
        return []

    def _dispatch(self, now: float) -> list[Effect]:
        """Sends what has a place; while suspects are tried, the next of them alone."""
        trials = self.recovery.trials
        if trials.is_on:
            rid = trials.next() if self._can_send() else None
            if rid is None:
                return []
            self._line.remove(self._entries[rid])
            return [self._start(self._entries[rid], now)]
        effects = [self._release(self._entries[rid]) for rid in trials.release()]
        while self._places():
            if (alone := self._line.aside) is not None and self._is_idle():
                self._line.remove(alone)
                if alone.deadline_s <= now:
                    effects.append(self._expire(alone, now))
                    continue
                trials.begin(alone.rid)
                return [*effects, self._start(alone, now)]
            entry = None
            if alone is None or now - alone.aside_s < LANE_WAIT_S:
                entry = self._line.pop()
            if entry is None:
                break
            if entry.deadline_s <= now:
                effects.append(self._expire(entry, now))
            elif self.recovery.shapes.is_apart(entry.spec, now):
                entry.aside_s = now
                self._line.set_aside(entry)
            else:
                effects.append(self._start(entry, now))
        return effects

    def _is_idle(self) -> bool:
        """Whether the engine runs nothing: what is stalled stands still."""
        return not self._abandoned and all(e.is_stalled for e in self._in_flight.values())

    def _start(self, entry: Entry, now: float) -> Effect:
        if entry.has_begun:
            self._recorder.on_resumed(now - (entry.lost_s or now))
        elif entry.lost_s is None:
            self._recorder.on_submitted(now - entry.arrived_s)
        entry.start(now)
        if self._in_flight:  # what is stalled may go on at any time
            for other in (entry, *self._in_flight.values()):
                other.was_shared = True
        self._in_flight[entry.rid] = entry
        return Send(self.recovery.message(entry, self._admission.mode_of(entry.spec)))

    def _expire(self, entry: Entry, now: float) -> Effect:
        """It is late and no engine has it: nothing more is computed for it."""
        self._recorder.on_deadline("queue")
        return self._end(entry, deadline_exceeded(entry.spec, self._timeout_s), now)

    @staticmethod
    def _release(entry: Entry) -> Effect:
        """It has passed its trial, and so have all others: it runs on."""
        entry.held_at = None
        entry.granted = max(entry.granted, entry.consumed + CREDIT_WINDOW)
        return Send(Credit(rid=entry.rid, upto=entry.granted))

    def _end_waiting(self, failed: Failed, now: float, *, begun: bool = True) -> list[Effect]:
        """Answers what waits; with `begun`, also what had begun with an engine that is gone."""
        effects: list[Effect] = []
        for entry in list(self._line):
            if begun or not entry.has_begun:
                self._line.remove(entry)
                effects.append(self._end(entry, failed, now))
        return effects

    def _end(
        self, entry: Entry, event: Failed | Finished, now: float, *, is_survived: bool = False
    ) -> Deliver:
        """The one place where a request ends."""
        del self._entries[entry.rid]
        self._in_flight.pop(entry.rid, None)
        self._doubts.forget(entry.rid)
        self._admission.on_ended(entry.spec.key)
        self.recovery.on_ended(entry, now, is_survived=is_survived)
        if isinstance(event, Finished):
            outcome, prompt, cached = event.reason.value, event.prompt_tokens, event.cached_tokens
        else:
            outcome, prompt, cached = event.code, 0, 0
        self._recorder.on_ended(outcome, now - entry.arrived_s, prompt, cached)
        return Deliver(entry.rid, event)
