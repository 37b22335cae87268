"""A client that behaves as the official SDKs do: the same headers, time-outs, retries and rules of
what is an error, without their weight. Both SDKs share them (they are made by one generator).

Before a response begins: two retries, on lost connections and on 408, 409, 429 and 5xx, after
`retry-after-ms` or `retry-after` up to a minute, else 0.5 s doubled up to 8 s; `x-should-retry`
overrules. A stream that has begun is not retried: an `error` event or a body that is cut is an
error that the user sees.
"""

from __future__ import annotations

import asyncio
import enum
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

RETRIES_MAX = 2
RETRY_FIRST_S = 0.5
RETRY_MOST_S = 8.0
RETRY_AFTER_MOST_S = 60.0
_RETRIED = frozenset({408, 409, 429})


class Verdict(enum.StrEnum):
    COMPLETE = "complete"
    TYPED = "typed error"  # an error object in the dialect's shape
    UNTYPED = "untyped error"  # anything else that is not a whole response


@dataclass
class Outcome:
    verdict: Verdict = Verdict.UNTYPED
    text: str = ""  # what the model said
    error: str = ""
    code: str = ""
    retries: int = 0
    terminals: int = 0  # [DONE], error event, or the one body
    comments: list[str] = field(default_factory=list)


async def call(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, object], chance: random.Random
) -> Outcome:
    """One call of `client.chat.completions.create` or `client.completions.create`."""
    outcome = Outcome()
    for attempt in range(RETRIES_MAX + 1):
        outcome.retries = attempt
        outcome.terminals = 0
        headers = {
            "accept": "application/json",
            "user-agent": "OpenAI/Python 1.50.0",
            "x-stainless-lang": "python",
            "x-stainless-retry-count": str(attempt),
        }
        wait_s = _wait_s({}, attempt)
        try:
            async with session.post(url, json=body, headers=headers) as response:
                if response.status == 200:
                    await _read(response, outcome, is_stream=bool(body.get("stream")))
                    return outcome
                should_retry = await _take_error(response, outcome)
                wait_s = _wait_s(response.headers, attempt)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            outcome.error = f"{type(error).__name__}: {error}"
            if outcome.terminals or outcome.text:
                return outcome
            should_retry = True
        if not should_retry or attempt == RETRIES_MAX:
            return outcome
        await asyncio.sleep(wait_s * (1 - 0.25 * chance.random()))
    return outcome


async def _take_error(response: aiohttp.ClientResponse, outcome: Outcome) -> bool:
    """Reads an error response; whether the SDK tries again."""
    text = await response.text()
    outcome.terminals += 1
    _judge_error(text, outcome)
    outcome.error = f"HTTP {response.status}: {text[:300]}"
    should = response.headers.get("x-should-retry")
    if should in ("true", "false"):
        return should == "true"
    return response.status in _RETRIED or response.status >= 500


def _wait_s(headers: Mapping[str, str], attempt: int) -> float:
    try:
        after_s = float(headers.get("retry-after-ms", "")) / 1000
    except ValueError:
        try:
            after_s = float(headers.get("retry-after", ""))
        except ValueError:
            after_s = 0.0
    if 0 < after_s <= RETRY_AFTER_MOST_S:
        return after_s
    return min(RETRY_FIRST_S * (1 << attempt), RETRY_MOST_S)


async def _read(response: aiohttp.ClientResponse, outcome: Outcome, *, is_stream: bool) -> None:
    if not is_stream:
        text = await response.text()
        outcome.terminals += 1
        choice = json.loads(text)["choices"][0]
        outcome.text = choice.get("text") or choice["message"]["content"]
        outcome.verdict = Verdict.COMPLETE
        return
    is_done = has_finish = False
    try:
        async for raw in response.content:
            line = raw.strip().decode()
            if line.startswith(":"):
                outcome.comments.append(line)
            if not line.startswith("data:"):
                continue
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                outcome.terminals += 1
                is_done = True
                continue
            event = json.loads(data)
            if "error" in event:
                outcome.terminals += 1
                _judge_error(data, outcome)
                outcome.error = data[:300]
                continue
            for choice in event["choices"]:
                outcome.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                has_finish = has_finish or choice.get("finish_reason") is not None
    except (aiohttp.ClientError, ConnectionError) as error:
        # A cut body behind its one error event is how such a stream has to end.
        if outcome.verdict is not Verdict.TYPED or outcome.terminals != 1:
            outcome.verdict = Verdict.UNTYPED
            outcome.error = f"{type(error).__name__}: {error}; after {outcome.error or 'no event'}"
        return
    if outcome.verdict is Verdict.TYPED:
        outcome.verdict = Verdict.UNTYPED
        outcome.error = f"the stream ended as if whole behind its error event: {outcome.error}"
    elif is_done and has_finish:
        outcome.verdict = Verdict.COMPLETE
    else:
        outcome.error = "the stream ended without [DONE] or finish_reason"


def _judge_error(text: str, outcome: Outcome) -> None:
    """Whether it is an error object as the dialect has it."""
    try:
        error = json.loads(text)["error"]
        outcome.code = str(error["code"])
        is_typed = isinstance(error["message"], str) and isinstance(error["type"], str)
    except (ValueError, KeyError, TypeError):
        is_typed = False
    outcome.verdict = Verdict.TYPED if is_typed else Verdict.UNTYPED
