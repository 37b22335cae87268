"""What a body asks of the engine beyond the parameters of sampling: fields and parts of messages
that name a feature of `strata_protocol.features`, and the values of theirs that ask for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any, Final

from strata_protocol.features import Feature

from strata.api.errors import unsupported
from strata.api.schemas import ChatRequest, Message, Request
from strata.serving.needs import Need

# field -> the feature it asks for, and the values that ask for nothing, besides null
_FIELDS: Final[MappingProxyType[str, tuple[Feature, tuple[object, ...]]]] = MappingProxyType(
    {
        "guided_json": (Feature.GRAMMAR, ()),
        "guided_regex": (Feature.GRAMMAR, ()),
        "guided_choice": (Feature.GRAMMAR, ()),
        "guided_grammar": (Feature.GRAMMAR, ("",)),
        "structured_outputs": (Feature.GRAMMAR, ()),
        "json_schema": (Feature.GRAMMAR, ()),
        "grammar": (Feature.GRAMMAR, ("",)),
        "allowed_token_ids": (Feature.ALLOWED_TOKENS, ()),
        "bad_words": (Feature.BAD_WORDS, ([],)),
        "mirostat": (Feature.MIROSTAT, (0,)),
        "dry_multiplier": (Feature.DRY, (0,)),
        "xtc_probability": (Feature.XTC, (0,)),
        "top_n_sigma": (Feature.TOP_N_SIGMA, (0, -1)),
        "dynatemp_range": (Feature.DYNAMIC_TEMPERATURE, (0,)),
        "use_beam_search": (Feature.BEAM_SEARCH, (False,)),
        "lora": (Feature.LORA, ([],)),
        "audio": (Feature.AUDIO, ()),
    }
)
_FORMATS: Final = MappingProxyType(
    {"text": None, "json_object": Feature.GRAMMAR, "json_schema": Feature.GRAMMAR}
)
_MODALITIES: Final = MappingProxyType({"text": None, "audio": Feature.AUDIO})
# Parts of messages, under the names of OpenAI and vLLM.
_PARTS: Final = MappingProxyType(
    {
        "image_url": Feature.IMAGES,
        "image": Feature.IMAGES,
        "input_image": Feature.IMAGES,
        "input_audio": Feature.AUDIO,
        "audio_url": Feature.AUDIO,
    }
)


def body_needs(request: Request) -> tuple[Need, ...]:
    """Of the body's fields, but for its messages. Raises ApiError for a kind of answer that is not
    in any dialect."""
    needs = []
    if request.response_format is not None:
        kind = _tag(request.response_format)
        if kind not in _FORMATS:
            raise unsupported("response_format", f"response_format of type {str(kind)[:40]!r}")
        if feature := _FORMATS[kind]:
            needs.append(Need(feature, f"response_format {kind}", "response_format"))
    for field, (feature, neutral) in _FIELDS.items():
        value = getattr(request, field, None)
        if value is not None and value not in neutral:
            needs.append(Need(feature, field, field))
    if isinstance(request, ChatRequest) and request.modalities is not None:
        needs += _modalities(request.modalities)
    return _distinct(needs)


def message_needs(messages: Sequence[Message]) -> tuple[Need, ...]:
    """Of what messages hold besides text; takes as long as they are many."""
    needs = []
    for i, message in enumerate(messages):
        if message.audio:
            needs.append(Need(Feature.AUDIO, f"messages[{i}].audio", f"messages[{i}].audio"))
        if isinstance(message.content, list):
            for j, part in enumerate(message.content):
                if feature := _PARTS.get(part.type):
                    where = f"messages[{i}].content[{j}]"
                    needs.append(Need(feature, f"{where} {part.type}", where))
    return _distinct(needs)


def _modalities(value: Any) -> list[Need]:
    needs = []
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str) or name not in _MODALITIES:
            raise unsupported("modalities", f"modalities with {str(name)[:40]!r}")
        if feature := _MODALITIES[name]:
            needs.append(Need(feature, f"modalities {name}", "modalities"))
    return needs


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else value
    return kind if isinstance(kind, str) else repr(kind)


def _distinct(needs: Iterable[Need]) -> tuple[Need, ...]:
    """The first need of each feature: one reason is enough."""
    return tuple({need.feature: need for need in reversed(list(needs))}.values())[::-1]
