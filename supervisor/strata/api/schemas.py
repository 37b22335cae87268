"""The bodies of the OpenAI dialect: what clients send and what they get.

Unknown fields are ignored, as OpenAI's own clients send ever new ones. Fields that are known, would
change the meaning of the request and cannot be honoured are declared here only to be refused, the
service's own by `refuse_unsupported` and those that need something of the engine by
`body_needs.py`; their types are open, since any value of theirs is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from strata.api.errors import unsupported
from strata.text.chat_template import TemplateValue


class Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=False):
    """What both generating endpoints share. None means: not said."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    user: str | None = None
    priority: int | None = None  # vLLM's: lower goes first
    # refused unless they ask for nothing
    best_of: int | None = None
    prompt_logprobs: Any = None
    n_probs: Any = None  # llama.cpp's; `logprobs` and `top_logprobs` here
    # features of the engine that no mode has so far: body_needs.py
    use_beam_search: Any = None
    response_format: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    json_schema: Any = None
    grammar: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    mirostat: Any = None
    dry_multiplier: Any = None
    xtc_probability: Any = None
    top_n_sigma: Any = None
    dynatemp_range: Any = None
    lora: Any = None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=False):
    include_usage: bool | None = None


class ContentPart(msgspec.Struct, forbid_unknown_fields=False):
    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct, forbid_unknown_fields=False):
    name: str
    arguments: str | dict[str, Any] | None = None  # JSON as text; some clients send the object


class MessageCall(msgspec.Struct, forbid_unknown_fields=False):
    function: CalledFunction
    id: str | None = None


class Message(msgspec.Struct, forbid_unknown_fields=False):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # vLLM's newer word for the same
    function_call: Any = None
    audio: Any = None


class ChatRequest(Request, kw_only=True):
    messages: list[Message]
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, TemplateValue] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None  # the same as in chat_template_kwargs
    reasoning_format: str | None = None  # llama.cpp's: "none" leaves reasoning in the content
    include_reasoning: bool | None = None  # vLLM's: false leaves it out
    tools: Any = None  # chat_tools.py
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    # refused unless they ask for nothing
    thinking_budget: Any = None
    thinking_token_budget: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None
    continue_final_message: Any = None
    add_generation_prompt: Any = None
    chat_template: Any = None
    # features of the engine: body_needs.py
    modalities: Any = None
    audio: Any = None


class CompletionRequest(Request, kw_only=True):
    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    logprobs: int | None = None
    parse_special: bool | None = None  # ours: control tokens in the prompt's text count
    # refused unless they ask for nothing
    suffix: Any = None


# field -> the values that ask for nothing, besides null
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "prompt_logprobs": (),
    "n_probs": (0,),
    "thinking_budget": (-1,),
    "thinking_token_budget": (-1,),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "web_search_options": (),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "chat_template": (),
    "suffix": ("",),
}


def refuse_unsupported(request: Request) -> None:
    """Raises ApiError for a field that this server knows and cannot honour, whatever the engine
    has."""
    for field, neutral in _NEUTRAL.items():
        value = getattr(request, field, None)
        if value is not None and value not in neutral:
            raise unsupported(field, field)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise unsupported("best_of", "best_of other than n")


# --- answers


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int | msgspec.UnsetType = msgspec.UNSET  # of models that think
    # where drafts were verified: how many were right, and were not
    accepted_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET
    rejected_prediction_tokens: int | msgspec.UnsetType = msgspec.UNSET


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


class RunTimings(msgspec.Struct, frozen=True):
    """Ours, beside `usage`: where the time went. Added up over the choices, which run side by side,
    so the rates are those of one choice; a rate is null where nothing was computed."""

    queue_ms: float
    prefill_ms: float
    decode_ms: float
    prompt_per_second: float | None
    predicted_per_second: float | None
    # where drafts were verified, under llama.cpp's names: how many, and how many were right
    draft_n: int | msgspec.UnsetType = msgspec.UNSET
    draft_n_accepted: int | msgspec.UnsetType = msgspec.UNSET


class TopToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenEntry(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopToken]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenEntry]
    refusal: None = None


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    function: FunctionCall
    type: str = "function"


class AssistantMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | None  # null where there is reasoning or a call and nothing else
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: RunTimings
    object: str = "chat.completion"


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first of a call has its id, type and name; the pieces of its arguments follow."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, frozen=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    timings: RunTimings | msgspec.UnsetType = msgspec.UNSET  # with usage only
    object: str = "chat.completion.chunk"


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists; the first token of a prompt has no logprob."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, frozen=True):
    """Whole answers and chunks of a stream have the same shape."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    timings: RunTimings | msgspec.UnsetType = msgspec.UNSET  # with usage only
    object: str = "text_completion"
