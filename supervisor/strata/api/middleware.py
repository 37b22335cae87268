"""What every request passes through: its id, the key check, and the one place where exceptions
become answers."""

from __future__ import annotations

import hmac
import logging
import re
import secrets
from collections.abc import Sequence

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from strata.api.arrival import CLIENT_KEY, REQUEST_ID
from strata.api.context import key_label
from strata.api.errors import ApiError, from_rejected
from strata.observe.log import request_id as log_request_id
from strata.serving.request import RejectedError

log = logging.getLogger(__name__)

_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


async def add_request_id(request: web.Request, response: web.StreamResponse) -> None:
    """Signal `on_response_prepare`: streams get the header, too."""
    response.headers["x-request-id"] = request.get(REQUEST_ID, "")


def build_middlewares(api_keys: Sequence[str], open_paths: Sequence[str]) -> list[Middleware]:
    """In the order in which requests pass them."""
    keys = [key.encode() for key in api_keys]
    labels = [key_label(key) for key in api_keys]
    open_set = frozenset(open_paths)

    @web.middleware
    async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        asked = request.headers.get("x-request-id", "")
        request[REQUEST_ID] = asked if _SAFE_ID.fullmatch(asked) else "req_" + secrets.token_hex(12)
        log_request_id.set(request[REQUEST_ID])
        try:
            return await handler(request)
        except ApiError as error:
            return error.response()
        except RejectedError as error:
            return from_rejected(error).response()
        except web.HTTPException as error:
            return _from_http(request, error)
        except ConnectionError:
            raise  # the client is gone; there is nobody to answer
        except Exception:
            log.exception("request %s failed", request[REQUEST_ID])
            return ApiError(500, "internal error", code="internal").response()

    @web.middleware
    async def check_key(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[CLIENT_KEY] = request.remote or ""
        if keys:
            index = _key_index(request.headers.get("Authorization", ""), keys)
            if index is not None:
                request[CLIENT_KEY] = labels[index]
            elif request.path not in open_set:
                raise ApiError(
                    401,
                    "missing or wrong API key; send it as 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                )
        return await handler(request)

    return [answer_errors, check_key]


def _key_index(header: str, keys: Sequence[bytes]) -> int | None:
    """Which key the header carries. Takes the same time whichever it is."""
    scheme, _, given = header.partition(" ")
    offered = given.strip().encode("utf-8", "surrogateescape")
    found: int | None = None
    for index, key in enumerate(keys):
        if hmac.compare_digest(offered, key) and scheme.lower() == "bearer":
            found = index
    return found


def _from_http(request: web.Request, error: web.HTTPException) -> web.Response:
    """aiohttp's own refusals (no route, wrong method, ...) in OpenAI's shape."""
    match error.status:
        case 404:
            message, code = f"no route {request.path[:200]!r}", "not_found"
        case 405:
            allowed = error.headers.get("Allow", "")
            message = f"{request.method} is not allowed on {request.path[:200]}; allowed: {allowed}"
            code = "method_not_allowed"
        case status if status < 400:
            raise error  # a redirect is no error
        case _:
            message, code = error.reason, error.reason.lower().replace(" ", "_")
    response = ApiError(error.status, message, code=code).response()
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response
