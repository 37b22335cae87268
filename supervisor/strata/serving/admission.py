"""Whether a request may be accepted now, and when a refused client should come back. Pure.

A request is judged twice. `reserve`, before its body is read, knows its key alone: the service
takes nothing (draining, engine not coming back), as many wait as may, its key has as many as it
may. So a refusal under load costs no reading and no tokenising, and what is being prepared is
bounded, too. `check` knows it whole: it can never run (empty, longer than the context, needs that
the running mode does not have), it is late already, or too many prompt tokens wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from strata_protocol.messages import ErrorKind

from strata.serving.deadline import TIMEOUT_HEADER, deadline_exceeded, deadline_s
from strata.serving.needs import MODE_UNSUPPORTED, misfit, needs_of
from strata.serving.recorder import Recorder
from strata.serving.request import EngineFacts, Failed, RejectedError, RequestSpec
from strata.serving.wait_estimate import WaitEstimate

QUEUE_TOKENS_UNKNOWN = 1 << 20  # bound of waiting prompt tokens until the KV pool is known
DRAINING = "draining"  # code of a service that ends
RETRY_AFTER_MIN_S = 1.0
RETRY_AFTER_MAX_S = 55.0


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    queue_requests: int
    queue_tokens: int  # 0: four times the KV pool
    request_timeout_s: float  # 0: none
    journal_bytes: int = 512 << 20  # for what is needed to go on with another engine
    park_s: float = 330.0  # that a request which has begun waits for an engine that is held
    key_requests: int = 0  # open requests of one key; 0: no limit


@dataclass(frozen=True, slots=True)
class Closure:
    """Why nothing is accepted; answered as 503."""

    code: str  # "draining", "engine_hold", "engine_refused"
    text: str
    retry_after_s: float | None  # None: waiting alone does not help

    def failed(self) -> Failed:
        """The same for what had been accepted."""
        return Failed(ErrorKind.OVERLOADED, self.code, self.text, retry_after_s=self._retry_s())

    def error(self) -> RejectedError:
        return RejectedError(
            ErrorKind.OVERLOADED, self.code, self.text, retry_after_s=self._retry_s()
        )

    def _retry_s(self) -> float | None:
        return None if self.retry_after_s is None else _clamped(self.retry_after_s)


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits, as the scheduler sees it."""

    waiting: int
    tokens: int  # of their prompts
    places: int  # in the engine, that are free


class Reservation:
    """`request.Place` of one request."""

    __slots__ = ("_admission", "_key")

    def __init__(self, admission: Admission, key: str) -> None:
        self._admission: Admission | None = admission
        self._key = key

    def release(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.on_released(self._key)


class Admission:
    """`jitter` returns a number in [0, 1); it spreads the return of refused clients."""

    def __init__(
        self, limits: SchedulerLimits, recorder: Recorder, jitter: Callable[[], float]
    ) -> None:
        self._limits = limits
        self._recorder = recorder
        self._jitter = jitter
        self._preparing = 0
        self._open: Counter[str] = Counter()  # by key: being prepared, waiting or running
        self.estimate = WaitEstimate()
        self.facts: EngineFacts | None = None
        self.draining: Closure | None = None  # final
        self.closed: Closure | None = None  # until the next READY

    # --- what is open

    def reserve(self, key: str, queue: Queue, now: float) -> Reservation:
        """Raises RejectedError, which is recorded. Uses the key alone."""
        try:
            self._check_open()
            self._check_key(key)
            ahead = queue.waiting + self._preparing
            if ahead >= self._limits.queue_requests + queue.places:
                raise self._queue_full(queue, self._preparing, now)
        except RejectedError as error:
            self._recorder.on_rejected(error.code)
            raise
        self._preparing += 1
        self._open[key] += 1
        return Reservation(self, key)

    def on_released(self, key: str) -> None:
        """A request is no longer being prepared."""
        self._preparing -= 1
        self.on_ended(key)

    def on_accepted(self, key: str) -> None:
        self._open[key] += 1

    def on_ended(self, key: str) -> None:
        """One that was accepted has ended."""
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]

    # --- judging

    def check(self, spec: RequestSpec, queue: Queue, now: float) -> None:
        """Raises RejectedError. Where `queue` has no one waiting and a free place, no bound of the
        queue applies."""
        self._check_open()
        if not spec.prompt_ids:
            raise RejectedError(ErrorKind.INVALID_REQUEST, "empty_prompt", "the prompt is empty")
        error = self.refusal(spec)
        if error is not None:
            raise error
        self._check_key(spec.key)
        self._check_deadline(spec, queue, now)
        if queue.places and not queue.waiting:
            return
        # One prompt may always wait, however long, or it could never be served.
        is_long = queue.waiting > 0 and queue.tokens + len(spec.prompt_ids) > self._queue_tokens()
        if queue.waiting >= self._limits.queue_requests or is_long:
            raise self._queue_full(queue, 0, now)

    def refusal(self, spec: RequestSpec, facts: EngineFacts | None = None) -> RejectedError | None:
        """The refusal of what the running mode cannot serve, or None: needs it does not have, a
        prompt that leaves no room for an answer. What is not known yet is checked at READY."""
        facts = facts or self.facts
        found = misfit(needs_of(spec.params), facts.serving if facts else ())
        if found is not None:
            return RejectedError(
                ErrorKind.UNSUPPORTED, MODE_UNSUPPORTED, found.text, param=found.param
            )
        if facts is None:
            return None
        context = facts.plan.max_context
        if len(spec.prompt_ids) + min(spec.params.max_tokens, 1) <= context:
            return None
        return RejectedError(
            ErrorKind.INVALID_REQUEST,
            "context_length_exceeded",
            f"the prompt has {len(spec.prompt_ids)} tokens, but a sequence may reach"
            f" {context} tokens with its answer",
        )

    def fit_error(
        self, spec: RequestSpec, generated: int, facts: EngineFacts | None = None
    ) -> RejectedError | None:
        """Why the engine of `facts`, or the one that is ready now, cannot take a request accepted
        earlier, of which `generated` tokens exist; None where it can."""
        facts = facts or self.facts
        error = self.refusal(spec, facts)
        if error is not None or not generated or facts is None:
            return error
        context = facts.plan.max_context
        tokens = len(spec.prompt_ids) + generated
        # All that was asked for may be there already, and only its end is missing.
        if tokens < context or generated >= spec.params.max_tokens:
            return None
        return RejectedError(
            ErrorKind.INVALID_REQUEST,
            "context_length_exceeded",
            f"the request had reached {tokens} tokens when its engine ended, but with the next one"
            f" a sequence may reach {context} tokens",
        )

    def mode_of(self, spec: RequestSpec) -> int:
        """The serving mode, by its index, in which the engine that is ready takes the request."""
        if self.facts is None:
            raise RuntimeError("a request was sent before READY")
        return self.facts.mode_of(spec.params)

    def wait_s(self, queue: Queue, now: float) -> float:
        """How long a request that comes now is expected to wait."""
        ahead = queue.waiting + self._preparing
        if queue.places > ahead:
            return 0.0
        batch = self.facts.plan.batch if self.facts else 1
        return self.estimate.wait_s(ahead - queue.places, batch, now)

    # --- inside

    def _check_open(self) -> None:
        closure = self.draining or self.closed
        if closure is not None:
            raise closure.error()

    def _check_key(self, key: str) -> None:
        most = self._limits.key_requests
        if most and self._open[key] >= most:
            raise RejectedError(
                ErrorKind.OVERLOADED,
                "rate_limit_exceeded",
                f"{self._open[key]} requests of this key wait or run; the limit is"
                f" key_requests = {most}",
                # One of its own must end, wherever the others stand.
                retry_after_s=self._jittered(self.estimate.service_s),
            )

    def _check_deadline(self, spec: RequestSpec, queue: Queue, now: float) -> None:
        left_s = deadline_s(spec, self._limits.request_timeout_s, now) - now
        retry_after_s = self._jittered(self.wait_s(queue, now))
        if left_s <= 0:
            self._recorder.on_deadline("arrival")
            late = deadline_exceeded(spec, self._limits.request_timeout_s)
            raise RejectedError(late.kind, late.code, late.text, retry_after_s=retry_after_s)
        reload_s = self.estimate.reload_left_s(now)
        if spec.timeout_ms and reload_s is not None and reload_s > left_s:
            raise RejectedError(
                ErrorKind.OVERLOADED,
                "model_loading",
                f"the engine is expected to be ready in {reload_s:.1f} s, later than"
                f" {TIMEOUT_HEADER} = {spec.timeout_ms} allows",
                retry_after_s=retry_after_s,
            )

    def _queue_full(self, queue: Queue, preparing: int, now: float) -> RejectedError:
        and_preparing = f" and {preparing} are being prepared" if preparing else ""
        return RejectedError(
            ErrorKind.OVERLOADED,
            "queue_full",
            f"{queue.waiting} requests with {queue.tokens} prompt tokens are waiting"
            f"{and_preparing}; the limits are queue_requests = {self._limits.queue_requests}"
            f" and queue_tokens = {self._queue_tokens()}",
            retry_after_s=self._jittered(self.wait_s(queue, now)),
        )

    def _queue_tokens(self) -> int:
        if self._limits.queue_tokens:
            return self._limits.queue_tokens
        return 4 * self.facts.plan.kv_tokens if self.facts else QUEUE_TOKENS_UNKNOWN

    def _jittered(self, wait_s: float) -> float:
        return _clamped(wait_s * (0.8 + 0.4 * self._jitter()))


def _clamped(wait_s: float) -> float:
    return min(max(wait_s, RETRY_AFTER_MIN_S), RETRY_AFTER_MAX_S)
