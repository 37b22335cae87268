"""From the fields of a body to `SamplingParams`: ranges, defaults and OpenAI's spellings.

A value out of range is refused naming the field and the range; nothing is clamped in silence but
`max_tokens`, which clients routinely set beyond what the context leaves.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from strata_protocol.messages import LogitBias, SamplingParams

from strata.api.errors import ApiError, invalid
from strata.api.schemas import Request

CHOICES_MAX = 8
STOPS_MAX = 16
STOP_CHARS_MAX = 1000
IDS_MAX = 1024  # entries of logit_bias and of stop_token_ids
TOP_LOGPROBS_MAX = 20
PRIORITY_MAX = (1 << 31) - 1
_SEED_MASK = (1 << 64) - 1
_TOKENS_MAX = (1 << 32) - 1

# field -> (lowest, highest)
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, _TOKENS_MAX),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "repeat_penalty": (0.01, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "min_tokens": (0, _TOKENS_MAX),
    "seed": (-(1 << 63), _SEED_MASK),
}
_SMALLEST_SHARE = 1e-9  # top_p and typical_p of 0 keep the one best token


def check_range(param: str, value: float, low: float, high: float) -> None:
    """Raises ApiError naming the range."""
    if not low <= value <= high:
        raise invalid(f"{param} is {value}; allowed: {low} to {high}", param)


def choice_count(request: Request) -> int:
    """`n`. Raises ApiError for one out of range; to be asked before any work that it multiplies."""
    if request.n is None:
        return 1
    check_range("n", request.n, 1, CHOICES_MAX)
    return request.n


def queue_priority(request: Request) -> int:
    """`priority`, lower first. Raises ApiError for one out of range."""
    priority = request.priority or 0
    check_range("priority", priority, -PRIORITY_MAX, PRIORITY_MAX)
    return priority


def choose_seed(request: Request) -> int:
    """The request's seed, or a random one. Prompts that share it and their text answer alike."""
    return request.seed & _SEED_MASK if request.seed is not None else secrets.randbits(63)


def build_params(
    request: Request, *, stop_ids: Sequence[int], vocab: int, max_tokens: int, logprobs: int
) -> SamplingParams:
    """The parameters of choice 0.

    `max_tokens` is what was asked for, already clamped to what the context leaves; `logprobs` is
    -1 for none. Raises ApiError (400) for a field out of range.
    """
    for field, (low, high) in _RANGES.items():
        value = getattr(request, field)
        if value is not None:
            check_range(field, value, low, high)
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid(
            f"min_tokens is {min_tokens}; allowed: 0 to {max_tokens} (the request's token limit)",
            "min_tokens",
        )
    penalty = request.repetition_penalty
    if penalty is None:
        penalty = request.repeat_penalty
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=_or(request.temperature, 1.0),
        top_k=max(request.top_k or 0, 0),  # -1 is the other spelling of "off"
        top_p=max(_or(request.top_p, 1.0), _SMALLEST_SHARE),
        min_p=_or(request.min_p, 0.0),
        typical_p=max(_or(request.typical_p, 1.0), _SMALLEST_SHARE),
        repetition_penalty=_or(penalty, 1.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        logit_bias=_logit_bias(request.logit_bias or {}, vocab),
        seed=choose_seed(request),
        stop_ids=_stop_ids(request, stop_ids, vocab),
        ignore_eos=bool(request.ignore_eos),
        logprobs=logprobs,
    )


def stop_strings(request: Request) -> list[str]:
    """The request's stop strings. Raises ApiError (400) for too many, empty or overlong ones."""
    stops = [request.stop] if isinstance(request.stop, str) else list(request.stop or ())
    if len(stops) > STOPS_MAX:
        raise invalid(f"stop has {len(stops)} strings; at most {STOPS_MAX} are allowed", "stop")
    for i, stop in enumerate(stops):
        if not 1 <= len(stop) <= STOP_CHARS_MAX:
            raise invalid(
                f"stop[{i}] has {len(stop)} characters; allowed: 1 to {STOP_CHARS_MAX}", "stop"
            )
    return stops


def token_limit(
    request: Request,
    *,
    prompt_tokens: int,
    prompt_param: str,
    context: int,
    default: int | None,
    lowest: int = 1,
) -> int:
    """How many tokens may be generated: what was asked for, clamped to what the context leaves.

    `context` is 0 when it is not known, `lowest` the least that may be asked for. Raises ApiError:
    out of range, or
    `context_length_exceeded` when the prompt leaves no room.
    """
    for param in ("max_tokens", "max_completion_tokens"):
        value = getattr(request, param)
        if value is not None:
            check_range(param, value, lowest, _TOKENS_MAX)
    room = context - prompt_tokens if context else _TOKENS_MAX
    asked = request.max_completion_tokens
    if asked is None:
        asked = request.max_tokens
    if asked is None:
        asked = default if default is not None else max(room, 1)
    if room < min(asked, 1):
        raise context_exceeded(str(prompt_tokens), context, prompt_param)
    return min(asked, room)


def context_exceeded(prompt_tokens: str, context: int, param: str) -> ApiError:
    """400 with both numbers; `prompt_tokens` may be a bound ("at least 9000")."""
    return invalid(
        f"This model's maximum context length is {context} tokens, prompt and answer together;"
        f" the prompt has {prompt_tokens} tokens",
        param,
        "context_length_exceeded",
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _logit_bias(raw: dict[str, float], vocab: int) -> list[LogitBias]:
    if len(raw) > IDS_MAX:
        raise invalid(
            f"logit_bias has {len(raw)} entries; at most {IDS_MAX} are allowed", "logit_bias"
        )
    biases: dict[int, float] = {}
    for key, bias in raw.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab):
            raise invalid(
                f"logit_bias has key {key[:40]!r}; allowed: token ids 0 to {vocab - 1}",
                "logit_bias",
            )
        check_range(f"logit_bias[{key}]", bias, -100, 100)
        if int(key) in biases:
            raise invalid(f"logit_bias names token {int(key)} twice", "logit_bias")
        biases[int(key)] = float(bias)
    return [LogitBias(token, bias) for token, bias in biases.items()]


def _stop_ids(request: Request, model_stop_ids: Sequence[int], vocab: int) -> list[int]:
    own = request.stop_token_ids or []
    if len(own) > IDS_MAX - len(model_stop_ids):
        raise invalid(
            f"stop_token_ids has {len(own)} entries; at most {IDS_MAX - len(model_stop_ids)}"
            " are allowed",
            "stop_token_ids",
        )
    for token_id in own:
        check_range("stop_token_ids", token_id, 0, vocab - 1)
    return list(dict.fromkeys([*model_stop_ids, *own]))
