"""Reads and decodes request bodies: bounded in size, in time and in what they may contain."""

from __future__ import annotations

import asyncio
import gc
import re
from typing import TypeVar

import msgspec
from aiohttp import ClientPayloadError, web
from aiohttp.http_exceptions import HttpProcessingError

from strata.api.errors import ApiError, invalid

T = TypeVar("T")

LOOP_BYTES_MAX = 64 * 1024  # a body beyond this is decoded off the event loop

_PATH = re.compile(r"^(?P<what>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)
_BYTE = re.compile(r"^JSON is malformed: (?P<what>.*) \(byte (?P<at>\d+)\)$", re.DOTALL)


async def read_body(request: web.Request, *, bytes_max: int, idle_s: float) -> bytes:
    """The whole body, decompressed.

    Raises ApiError: 413 beyond `bytes_max` (before reading, where the length is announced), 408
    when nothing comes for `idle_s`, 400 for broken framing or compression.
    """
    announced = request.content_length
    if announced is not None and announced > bytes_max:
        raise _too_large(bytes_max)
    body = bytearray()
    try:
        while True:
            async with asyncio.timeout(idle_s):
                chunk = await request.content.readany()
            if not chunk:
                return bytes(body)
            body += chunk
            if len(body) > bytes_max:
                raise _too_large(bytes_max)
    except TimeoutError:
        raise ApiError(
            408,
            f"the request body made no progress for {idle_s:g} s",
            code="request_timeout",
            closes=True,
        ) from None
    except (ClientPayloadError, HttpProcessingError, web.RequestPayloadError) as error:
        raise ApiError(
            400, f"the request body cannot be read: {error}", code="bad_body", closes=True
        ) from error


def decode_body(body: bytes, schema: type[T]) -> T:
    """The body as `schema`. Raises ApiError (400) with the position of a syntax error, or the
    path, the expected and the given type of a wrong field."""
    try:
        return msgspec.json.decode(body, type=schema)
    except msgspec.ValidationError as error:
        text = str(error)
        match = _PATH.match(text)
        if match is None:
            raise invalid(f"the request body: {text}", code="invalid_type") from None
        path = match["path"].removeprefix("$").removeprefix(".")
        raise invalid(
            f"{path or 'the request body'}: {match['what']}", path or None, "invalid_type"
        ) from None
    except msgspec.DecodeError as error:
        raise invalid(_syntax_error(body, str(error)), code="invalid_json") from None
    except RecursionError:
        raise invalid("the request body is nested too deeply", code="invalid_json") from None


def decode_large_body(body: bytes, schema: type[T]) -> T:
    """`decode_body` for a worker thread.

    The decoder holds the interpreter's lock, so its time matters in a thread, too. The garbage
    collector would walk the growing lists again and again (5 million lists: 2.3 s, without it
    0.3 s); it is off for this call, in which no other thread runs.
    """
    gc.disable()
    try:
        return decode_body(body, schema)
    finally:
        gc.enable()


def _syntax_error(body: bytes, text: str) -> str:
    if not body.strip():
        return "the request body is empty; JSON is expected"
    match = _BYTE.match(text)
    if match is None:
        return f"the request body is not valid JSON: {text} (byte {len(body)})"
    at = int(match["at"])
    line = body.count(b"\n", 0, at) + 1
    column = at - (body.rfind(b"\n", 0, at) + 1) + 1
    return (
        f"the request body is not valid JSON: {match['what']}"
        f" at byte {at} (line {line}, column {column})"
    )


def _too_large(bytes_max: int) -> ApiError:
    return ApiError(
        413,
        f"the request body is larger than {bytes_max} bytes",
        code="body_too_large",
        closes=True,
    )
