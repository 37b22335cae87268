"""When a request must have ended: the service's own limit, and the client's where it gave one.

Both run from the arrival of the HTTP request, so reading and tokenising count.
"""

from __future__ import annotations

import math

from strata_protocol.messages import ErrorKind

from strata.serving.request import Failed, RequestSpec

TIMEOUT_HEADER = "x-request-timeout-ms"


def deadline_s(spec: RequestSpec, request_timeout_s: float, now: float) -> float:
    """On the clock of `now`; infinity where nothing limits it. May be in the past."""
    return now - spec.spent_s + _limit_s(spec, request_timeout_s)


def deadline_exceeded(spec: RequestSpec, request_timeout_s: float) -> Failed:
    """The end of a request that is late; it names the limit that was the shorter one."""
    if spec.timeout_ms and spec.timeout_ms / 1000 <= _limit_s(spec, request_timeout_s):
        limit = f"{TIMEOUT_HEADER} = {spec.timeout_ms}"
    else:
        limit = f"request_timeout_s = {request_timeout_s:g} s"
    text = f"the request did not finish within {limit}"
    return Failed(ErrorKind.OVERLOADED, "deadline_exceeded", text)


def _limit_s(spec: RequestSpec, request_timeout_s: float) -> float:
    return min(request_timeout_s or math.inf, spec.timeout_ms / 1000 or math.inf)
