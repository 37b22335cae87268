"""What a request may need of the mode that serves it: the closed list, and what asks for each.

An engine states its features in CAPS; a request's needs are derived from its parameters by one
rule on both sides. Greedy decoding, `max_tokens` and `stop_ids` are the base that every mode has.
A feature without a field in `SamplingParams` cannot be asked of an engine through this version of
the protocol: no engine states it, and a request that needs it is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

import msgspec

from strata_protocol.messages import SamplingParams


class Feature(enum.StrEnum):
    # how a token is chosen
    SAMPLING = "sampling"  # temperature above 0, with `seed`: a random choice
    TOP_K = "top_k"
    TOP_P = "top_p"
    MIN_P = "min_p"
    TYPICAL_P = "typical_p"
    PENALTIES = "penalties"  # repetition, presence and frequency
    LOGIT_BIAS = "logit_bias"
    # when a sequence ends, and how many there are
    MIN_TOKENS = "min_tokens"
    IGNORE_EOS = "ignore_eos"
    CHOICES = "choices"  # n answers of one prompt and seed
    # what is told beside the tokens
    LOGPROBS = "logprobs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    # without a field so far
    GRAMMAR = "grammar"  # only tokens that a grammar, JSON schema or pattern allows
    ALLOWED_TOKENS = "allowed_tokens"  # only tokens of a list
    BAD_WORDS = "bad_words"  # no sequence of tokens of a list
    MIROSTAT = "mirostat"
    DRY = "dry"
    XTC = "xtc"
    TOP_N_SIGMA = "top_n_sigma"
    DYNAMIC_TEMPERATURE = "dynamic_temperature"
    BEAM_SEARCH = "beam_search"
    IMAGES = "images"
    AUDIO = "audio"
    EMBEDDINGS = "embeddings"
    LORA = "lora"  # adapters chosen per request


# The fields of SamplingParams that ask for a feature, each by another value than its neutral one.
FIELDS: Final = MappingProxyType(
    {
        Feature.SAMPLING: ("temperature",),
        Feature.TOP_K: ("top_k",),
        Feature.TOP_P: ("top_p",),
        Feature.MIN_P: ("min_p",),
        Feature.TYPICAL_P: ("typical_p",),
        Feature.PENALTIES: ("repetition_penalty", "presence_penalty", "frequency_penalty"),
        Feature.LOGIT_BIAS: ("logit_bias",),
        Feature.MIN_TOKENS: ("min_tokens",),
        Feature.IGNORE_EOS: ("ignore_eos",),
        Feature.CHOICES: ("choice",),
        Feature.LOGPROBS: ("logprobs",),
        Feature.PROMPT_LOGPROBS: ("prompt_logprobs",),
    }
)
# Fields that every mode serves; `seed` changes nothing without `temperature`.
BASE_FIELDS: Final = frozenset({"max_tokens", "stop_ids", "seed", "needs"})

# What a field holds when it asks for nothing: its default, but for `temperature`.
_NEUTRAL: Final[MappingProxyType[str, object]] = MappingProxyType(
    {f.name: f.default for f in msgspec.structs.fields(SamplingParams)}
    | {"temperature": 0.0, "logit_bias": []}
)


def asked_fields(params: SamplingParams) -> dict[Feature, str]:
    """The features that `params` ask for, each with the first field that does, in the list's order.

    `params.needs` is not looked at: it is a copy of this for the engine (`declare`).
    """
    asked: dict[Feature, str] = {}
    for feature, fields in FIELDS.items():
        for field in fields:
            if getattr(params, field) != _NEUTRAL[field]:
                asked[feature] = field
                break
    return asked


def declare(params: SamplingParams) -> SamplingParams:
    """`params` with `needs` filled in, as SUBMIT and RESUME carry them: an engine that does not
    know a field of ours still learns what it would have dropped."""
    return msgspec.structs.replace(params, needs=[f.value for f in asked_fields(params)])


def known(names: Iterable[str]) -> frozenset[Feature]:
    """The features among the `names` of an engine that this side can ask for. Others, of a newer
    engine, are of no use here."""
    return frozenset(f for f in FIELDS if f.value in set(names))
