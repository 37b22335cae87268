"""What happens to a generating request before its body is read: a place in the queue is taken, and
its own time limit is read from the headers. What is known of a request from its arrival on is kept
under the keys of this file.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from strata.api.errors import invalid
from strata.serving.deadline import TIMEOUT_HEADER
from strata.serving.request import Place, Service

TIMEOUT_MS_MAX = 86_400_000
_WHOLE = re.compile(r"[0-9]{1,8}")


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """What the client allows, from the arrival of its request."""

    timeout_ms: int  # 0: no limit of its own
    arrived_s: float  # on the event loop's clock

    def spent_s(self) -> float:
        return asyncio.get_running_loop().time() - self.arrived_s


REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
CLIENT_KEY: web.RequestKey[str] = web.RequestKey("client_key", str)
TIME_LIMIT: web.RequestKey[TimeLimit] = web.RequestKey("time_limit", TimeLimit)
PLACE: web.RequestKey[Place] = web.RequestKey("place", Place)


def admitted(service: Service, handler: Handler) -> Handler:
    """`handler` behind the queue's bounds. A refusal reads nothing of the body.

    The place is held while the request is read and prepared; `Generation.submit` gives it up.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        place = service.reserve(request[CLIENT_KEY])
        try:
            request[TIME_LIMIT] = TimeLimit(
                read_timeout(request.headers.get(TIMEOUT_HEADER)),
                asyncio.get_running_loop().time(),
            )
            request[PLACE] = place
            return await handler(request)
        finally:
            place.release()

    return handle


def read_timeout(value: str | None) -> int:
    """The header's milliseconds; 0 without one. Raises ApiError (400) naming the range."""
    if value is None:
        return 0
    text = value.strip()
    if not _WHOLE.fullmatch(text) or not 1 <= int(text) <= TIMEOUT_MS_MAX:
        raise invalid(
            f"{TIMEOUT_HEADER} is {value[:40]!r}; allowed: a whole number from 1 to"
            f" {TIMEOUT_MS_MAX}",
            TIMEOUT_HEADER,
            "invalid_header",
        )
    return int(text)
