"""What may be written down of a request: numbers, never its text, its token ids or its sender."""

from __future__ import annotations

import msgspec
from strata_protocol.messages import SamplingParams

from strata.serving.entry import Entry
from strata.serving.poison import fingerprint

# Fields of SamplingParams that hold token ids; only their number is told.
_ID_LISTS = ("logit_bias", "stop_ids")


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One request that the engine had."""

    rid: int
    state: str  # of serving.entry.RequestState
    prompt_tokens: int
    output_tokens: int  # that had come so far
    # Those of SamplingParams that differ from the neutral ones, with the length of lists of ids.
    params: dict[str, int | float | bool | list[str]] = {}
    was_in_step: bool = False  # in the step that the engine died in
    fingerprint: str = ""  # hash of what makes the engine do the same again, of suspects alone


def facts_of(entry: Entry, *, was_in_step: bool) -> RequestFacts:
    """The hash is made of suspects alone: it reads the whole prompt."""
    params: dict[str, int | float | bool | list[str]] = {}
    neutral = SamplingParams()
    for field in msgspec.structs.fields(SamplingParams):
        value = getattr(entry.spec.params, field.name)
        if value != getattr(neutral, field.name):
            params[field.name] = len(value) if field.name in _ID_LISTS else value
    return RequestFacts(
        rid=entry.rid,
        state=entry.state.value,
        prompt_tokens=entry.prompt_tokens,
        output_tokens=entry.received,
        params=params,
        was_in_step=was_in_step,
        fingerprint=fingerprint(entry.spec).hex() if was_in_step else "",
    )
