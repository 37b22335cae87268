"""Every error a client can see: its HTTP status, its headers and its body in OpenAI's shape.

One table per error kind, one encoder. `Retry-After` stays below the 60 s above which clients stop
honouring it.
"""

from __future__ import annotations

import math

import msgspec
from aiohttp import web
from strata_protocol.messages import ErrorKind

from strata.serving.admission import DRAINING
from strata.serving.request import Failed, RejectedError

RETRY_AFTER_MAX_S = 55.0
ENGINE_REFUSED = "engine_refused"
RETRY_AFTER_DEFAULT_S = 2.0


class ErrorInfo(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorInfo


class ApiError(Exception):
    """Ends a request. `retry_after_s` is set for what may work later, None for what cannot."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
        self.closes = closes  # the connection is of no use afterwards

    def body(self) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}`."""
        info = ErrorInfo(self.message, _error_type(self.status), self.param, self.code)
        return msgspec.json.encode(ErrorBody(info))

    def headers(self) -> dict[str, str]:
        headers = {"x-should-retry": "false" if self.retry_after_s is None else "true"}
        if self.retry_after_s is not None:
            wait_s = min(max(self.retry_after_s, 0.0), RETRY_AFTER_MAX_S)
            headers["Retry-After"] = str(max(1, math.ceil(wait_s)))
            headers["retry-after-ms"] = str(math.ceil(wait_s * 1000))
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return headers

    def response(self) -> web.Response:
        response = web.Response(
            status=self.status,
            body=self.body(),
            headers=self.headers(),
            content_type="application/json",
        )
        if self.closes:
            response.force_close()
        return response


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is wrong."""
    return ApiError(400, message, param=param, code=code)


def unsupported(param: str, what: str) -> ApiError:
    """400: the field would change the meaning of the request, and this server cannot do it."""
    return ApiError(400, f"{what} is not supported", param=param, code="unsupported_parameter")


def from_rejected(error: RejectedError) -> ApiError:
    """What the serving layer refused before anything was computed."""
    return _from_kind(error.kind, error.code, error.text, error.retry_after_s, error.param)


def from_failed(event: Failed) -> ApiError:
    """A request that failed after it had been accepted."""
    return _from_kind(event.kind, event.code, event.text, event.retry_after_s, event.param)


# kind -> (status, whether the same request may succeed later)
_REACTIONS: dict[ErrorKind, tuple[int, bool]] = {
    ErrorKind.INVALID_REQUEST: (400, False),
    ErrorKind.UNSUPPORTED: (400, False),
    ErrorKind.OVERLOADED: (503, True),
    ErrorKind.CANCELLED: (503, True),
    ErrorKind.NUMERIC_FAULT: (500, False),
    ErrorKind.DEVICE_LOST: (503, True),
    ErrorKind.OUT_OF_MEMORY: (503, True),
    ErrorKind.INTERNAL: (500, True),
}
_NOT_BY_WAITING = frozenset({ENGINE_REFUSED})  # a person has to mend something
# Codes whose meaning HTTP has a closer status for.
_CODE_STATUS = {"deadline_exceeded": 504, "rate_limit_exceeded": 429}


def _from_kind(
    kind: ErrorKind, code: str, text: str, retry_after_s: float | None, param: str | None
) -> ApiError:
    status, may_retry = _REACTIONS[kind]
    status = _CODE_STATUS.get(code, status)
    may_retry = may_retry and code not in _NOT_BY_WAITING
    if may_retry and retry_after_s is None:
        retry_after_s = RETRY_AFTER_DEFAULT_S
    if not may_retry:
        retry_after_s = None
    return ApiError(
        status,
        text,
        code=code,
        param=param,
        retry_after_s=retry_after_s,
        closes=code == DRAINING,  # the client's next request finds another server
    )


def _error_type(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 429:
            return "rate_limit_error"
        case _ if status >= 500:
            return "server_error"
        case _:
            return "invalid_request_error"
