"""Whether a request may be accepted now, and when a refused client should come back. Pure.

A request is refused before anything is computed when it can never run (empty, longer than the
context, needs that the running mode does not have), when the service takes nothing (draining,
engine not coming back), or when the line has reached its bounds in requests or prompt tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strata_protocol.messages import ErrorKind

from strata.serving.needs import MODE_UNSUPPORTED, misfit, needs_of
from strata.serving.request import EngineFacts, Failed, RejectedError, RequestSpec

QUEUE_TOKENS_UNKNOWN = 1 << 20  # bound of waiting prompt tokens until the KV pool is known
RETRY_AFTER_MAX_S = 55.0


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    queue_requests: int
    queue_tokens: int  # 0: four times the KV pool
    request_timeout_s: float  # 0: none
    journal_bytes: int = 512 << 20  # for what is needed to go on with another engine
    park_s: float = 330.0  # that a request which has begun waits for an engine that is held


@dataclass(frozen=True, slots=True)
class Closure:
    """Why nothing is accepted; answered as 503."""

    code: str  # "draining", "engine_hold", "engine_refused"
    text: str
    retry_after_s: float

    def failed(self) -> Failed:
        """The same for what had been accepted."""
        return Failed(ErrorKind.OVERLOADED, self.code, self.text)

    def error(self) -> RejectedError:
        retry_after_s = min(max(self.retry_after_s, 1.0), RETRY_AFTER_MAX_S)
        return RejectedError(
            ErrorKind.OVERLOADED, self.code, self.text, retry_after_s=retry_after_s
        )


class Admission:
    """`jitter` returns a number in [0, 1); it spreads the return of refused clients."""

    def __init__(self, limits: SchedulerLimits, jitter: Callable[[], float]) -> None:
        self._limits = limits
        self._jitter = jitter
        self._service_s = 2.0  # moving average of a request's time in the engine
        self.facts: EngineFacts | None = None
        self.draining: Closure | None = None  # final
        self.closed: Closure | None = None  # until the next READY

    def on_finished(self, service_s: float) -> None:
        self._service_s += 0.1 * (service_s - self._service_s)

    def check(self, spec: RequestSpec, waiting: int, waiting_tokens: int, *, fits: bool) -> None:
        """Raises RejectedError. `fits`: it would not have to wait at all."""
        closure = self.draining or self.closed
        if closure is not None:
            raise closure.error()
        if not spec.prompt_ids:
            raise RejectedError(ErrorKind.INVALID_REQUEST, "empty_prompt", "the prompt is empty")
        error = self.refusal(spec)
        if error is not None:
            raise error
        if fits:
            return
        tokens_max = self._queue_tokens()
        # One prompt may always wait, however long, or it could never be served.
        is_long = waiting > 0 and waiting_tokens + len(spec.prompt_ids) > tokens_max
        if waiting >= self._limits.queue_requests or is_long:
            raise RejectedError(
                ErrorKind.OVERLOADED,
                "queue_full",
                f"{waiting} requests with {waiting_tokens} prompt tokens are waiting; the limits"
                f" are queue_requests = {self._limits.queue_requests} and"
                f" queue_tokens = {tokens_max}",
                retry_after_s=self._retry_after_s(waiting),
            )

    def refusal(self, spec: RequestSpec) -> RejectedError | None:
        """The refusal of what the running mode cannot serve, or None: needs it does not have, a
        prompt that leaves no room for an answer. What is not known yet is checked at READY."""
        found = misfit(needs_of(spec.params), self.facts.mode if self.facts else None)
        if found is not None:
            return RejectedError(
                ErrorKind.UNSUPPORTED, MODE_UNSUPPORTED, found.text, param=found.param
            )
        if self.facts is None:
            return None
        context = self.facts.plan.max_context
        if len(spec.prompt_ids) + min(spec.params.max_tokens, 1) <= context:
            return None
        return RejectedError(
            ErrorKind.INVALID_REQUEST,
            "context_length_exceeded",
            f"the prompt has {len(spec.prompt_ids)} tokens, but a sequence may reach"
            f" {context} tokens with its answer",
        )

    def fit_error(self, spec: RequestSpec, generated: int) -> RejectedError | None:
        """Why the engine that is ready now cannot take a request accepted earlier, of which
        `generated` tokens exist; None where it can."""
        error = self.refusal(spec)
        if error is not None or not generated or self.facts is None:
            return error
        context = self.facts.plan.max_context
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

    def _queue_tokens(self) -> int:
        if self._limits.queue_tokens:
            return self._limits.queue_tokens
        return 4 * self.facts.plan.kv_tokens if self.facts else QUEUE_TOKENS_UNKNOWN

    def _retry_after_s(self, waiting: int) -> float:
        batch = self.facts.plan.batch if self.facts else 1
        eta_s = self._service_s * (waiting + 1) / max(batch, 1)
        return min(max(eta_s * (0.8 + 0.4 * self._jitter()), 1.0), RETRY_AFTER_MAX_S)
