"""The messages between supervisor and engine: the single source of the schema.

`protocol/schema/generate.py` derives `schema/messages.json` and the C++ side from these Structs.
Rules of evolution: new fields go last and have a default; a field is never renamed or reused;
unknown fields are ignored. Handshake messages are maps, run-time messages are arrays
(`array_like`), both tagged with the message's name.

Direction is part of a message's base class: `ToEngine` or `ToSupervisor`.
"""

# mypy: disable-error-code="misc"
# (mypy does not know that `frozen` is inherited from a msgspec base class)

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

PROTO_MIN = 1
PROTO_MAX = 1

U8 = Annotated[int, Meta(ge=0, le=0xFF)]
U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
I32 = Annotated[int, Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]
U64 = Annotated[int, Meta(ge=0)]  # msgspec cannot bound at 2^64 - 1; the wire format does
TokenId = Annotated[int, Meta(ge=0, le=0x7FFF_FFFF)]


class ErrorKind(enum.StrEnum):
    """Closed set; each kind implies the reaction (protocol/README.md, "Error kinds")."""

    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED = "unsupported"
    OVERLOADED = "overloaded"
    CANCELLED = "cancelled"
    NUMERIC_FAULT = "numeric_fault"
    DEVICE_LOST = "device_lost"
    OUT_OF_MEMORY = "out_of_memory"
    INTERNAL = "internal"


class FinishReason(enum.StrEnum):
    STOP = "stop"  # a stop id was sampled
    LENGTH = "length"  # max_tokens or the context limit
    CANCELLED = "cancelled"
    ERROR = "error"  # `error_kind`, `code` and `text` say which


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A nested record: a map on the wire."""


class Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=False):
    """A nested record of the hot path: an array on the wire."""


class ToEngine(Struct, tag_field="type"):
    """Handshake, supervisor to engine."""


class ToSupervisor(Struct, tag_field="type"):
    """Handshake, engine to supervisor."""


class ToEngineRow(Row, tag_field="type"):
    """Run time, supervisor to engine."""


class ToSupervisorRow(Row, tag_field="type"):
    """Run time, engine to supervisor."""


# --- records ------------------------------------------------------------------------------


class Reason(Struct):
    code: str  # stable, dotted: "kernel.missing", "mem.kv_budget"
    text: str  # one sentence with names and numbers


class Limits(Struct):
    control_bytes: U32 = 64 * 1024
    data_bytes: U32 = 1024 * 1024
    absolute_bytes: U32 = 16 * 1024 * 1024


class WantedModes(Struct):
    """What the operator asked for; 0 and "auto" leave the choice to the engine."""

    batch: U32 = 8  # sequences that may share a step
    max_context: U32 = 0  # tokens a sequence may reach; 0 = the model's own
    kv: str = "auto"  # auto | f32 | f16 | bf16 | int8 | q4_0
    prefill: U32 = 256  # rows of a step that may be prompt tokens
    activations: str = "auto"  # auto | int8 | f32
    threads: U32 = 0  # compute threads; 0 = one per usable core
    kv_tokens: U64 = 0  # size of the KV pool; 0 = from batch, context and memory
    prefix_cache: bool = True
    mtp: str = "auto"  # auto: the model file's own draft layers | off | path of a drafter's file
    spec: U32 = 0  # drafts a sequence may verify per step; 0 = auto
    spec_min_p: float = 0.0  # a draft less probable than this ends drafting
    batch_mtp: str = "auto"  # auto | on | off: drafts while sequences share a step
    device: str = "auto"  # auto | a device's name or index
    device_memory: U64 = 0  # bytes of it that may be used; 0 = what is free
    mmap: bool = True  # weights that kernels read as they are stay in the mapped file
    mlock: bool = False  # keep the weights from being paged out
    expert_cache: str = "auto"  # auto | off | number of experts kept in device memory
    kv_resident: U64 = 0  # tokens of KV kept in device memory; 0 = all
    mtp_hidden_norm: str = "auto"  # of drafters of residual streams: auto | stream | whole


class ModePlan(Struct):
    """The configuration that runs, in the terms of WantedModes with every value chosen."""

    batch: U32
    max_context: U32
    kv: str
    prefill: U32
    activations: str
    threads: U32
    kv_tokens: U64
    prefix_cache: bool = True
    mtp: str = "off"  # off | model: the model file's own draft layers | path of a drafter's file
    spec: U32 = 0  # 0 = no drafts
    spec_min_p: float = 0.0
    batch_mtp: bool = False
    mmap: bool = True
    mlock: bool = False
    expert_cache: str = "off"
    kv_resident: U64 = 0
    mtp_hidden_norm: str = "auto"  # auto: what the drafter's file says, else stream


class MemoryPart(Struct):
    name: str  # "weights.mapped" or "weights.copied", "weights.packed", "kv", "activations", ...
    bytes: U64
    text: str = ""
    on_demand_bytes: U64 = 0  # of a file, read as they are needed; none has to be in memory


class Shortfall(Struct):
    """A value of a configuration that is less than was asked, for `Caps.reasons[reason]`."""

    axis: str  # a field of ModePlan: "max_context", "threads"
    reason: U32


class ServingMode(Struct):
    """One way in which a configuration serves a request beside others."""

    drafts: U32 = 0  # that a sequence verifies per step at most; 0: it runs without drafts
    features: list[str] = []  # what a request may ask for: "penalties", "logprobs", ...


class Configuration(Struct):
    """One point of the modes near what was asked, planned as itself."""

    plan: ModePlan
    missing: list[U32] = []  # of Caps.reasons; empty: the engine can run it
    shortfalls: list[Shortfall] = []
    memory: list[MemoryPart] = []  # of this configuration, before anything is allocated
    serving: list[U32] = []  # of Caps.serving: its ways to serve, the preferred first


class DeviceFacts(Struct):
    name: str = ""  # the device's own name
    backend: str = ""
    memory_total_bytes: U64 = 0
    memory_available_bytes: U64 = 0
    is_assumed: bool = False  # facts given by a person, for a device that is not here


class HostFacts(Struct):
    os: str = ""
    cpu: str = ""  # the processor's own name
    isa: str = ""  # code path chosen: "avx512vnni", "avx2", "neon", "portable"
    cores: U32 = 0
    memory_total_bytes: U64 = 0
    memory_available_bytes: U64 = 0


class ModelFacts(Struct):
    architecture: str = ""
    name: str = ""
    file_bytes: U64 = 0  # of all files of the model
    parameters: U64 = 0
    layers: U32 = 0
    vocab: U32 = 0
    context: U32 = 0  # the context length the model was made for
    types: list[str] = []  # tensor types in the file, most bytes first
    sha256_head: str = ""  # of the files' headers (metadata and tensor index)


class SamplingParams(Struct):
    """How tokens are chosen. Neutral defaults: what is left out changes nothing."""

    max_tokens: U32 = 16
    min_tokens: U32 = 0
    temperature: float = 1.0  # 0 = greedy
    top_k: U32 = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0  # over prompt and generated tokens
    presence_penalty: float = 0.0  # over generated tokens
    frequency_penalty: float = 0.0  # over generated tokens
    logit_bias: list[LogitBias] = []
    seed: U64 = 0
    choice: U32 = 0  # index among n choices; part of the random counter
    stop_ids: list[TokenId] = []  # sampling one ends the sequence
    ignore_eos: bool = False  # do not end at stop_ids
    logprobs: I32 = -1  # -1 = none, else how many alternatives besides the chosen token
    prompt_logprobs: I32 = -1  # the same for the prompt's own tokens
    needs: list[str] = []  # features that the fields ask for: features.py


class LogitBias(Row):
    token: TokenId
    bias: float


class TopLogprob(Row):
    token: TokenId
    logprob: float


class TokenLogprob(Row):
    logprob: float  # of the token itself, natural log of the whole softmax before sampling
    top: list[TopLogprob] = []  # best first


class TokensItem(Row):
    rid: U64
    offset: U32  # index of ids[0] among the request's generated tokens, absolute
    ids: list[TokenId]
    logprobs: list[TokenLogprob] = []  # one per id where asked for, else empty


class Timings(Row):
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


# --- handshake -----------------------------------------------------------------------------


class Hello(ToSupervisor, tag="HELLO"):
    proto_min: U32
    proto_max: U32
    build: str  # version and build id of the engine
    backend: str  # "cpu", "cuda", "metal"
    device: str  # the device by its real name
    pid: U32


class Offer(ToEngine, tag="OFFER"):
    proto: U32
    run_id: str
    epoch: U32  # counts the engine starts of this run
    model: str  # path of the GGUF file; of a split model the first part
    want: WantedModes
    limits: Limits = Limits()
    quarantine: list[str] = []  # modes that must not be offered
    without_kernels: list[str] = []
    ple: str = ""  # path of the file with the per-layer embedding table; empty: in the model


class Caps(ToSupervisor, tag="CAPS"):
    host: HostFacts
    model: ModelFacts
    # What was asked comes first, then all others that differ from it on fewer axes first.
    configurations: list[Configuration] = []
    reasons: list[Reason] = []  # that configurations refer to by index
    device: DeviceFacts = DeviceFacts()
    serving: list[ServingMode] = []  # that configurations refer to by index
    notes: list[Reason] = []  # what of the offer had no effect: a mask that hides no kernel
    kv_types: list[str] = []  # of the KV cache, that the backend's kernels serve for the model


class Plan(ToEngine, tag="PLAN"):
    plan: ModePlan
    rung: str = "full"


class Progress(ToSupervisor, tag="PROGRESS"):
    phase: str  # "map", "pack", "copy", "allocate", "lock", "warm"
    done: U64
    total: U64
    unit: str = "bytes"


class Probe(ToSupervisor, tag="PROBE"):
    mode: str
    ok: bool
    ms: float
    reasons: list[Reason] = []


class Ready(ToSupervisor, tag="READY"):
    plan: ModePlan  # what really runs
    load_ms: float
    warm_ms: float
    kv_pages: U32
    page_tokens: U32
    memory: list[MemoryPart] = []
    limits: Limits = Limits()
    serving: list[ServingMode] = []  # of `plan`, preferred first; none: greedy only


class Refuse(ToSupervisor, tag="REFUSE"):
    """Deterministic: no restart helps until file, build or configuration change."""

    reasons: list[Reason]
    exit_code: U8


# --- run time ------------------------------------------------------------------------------


class Submit(ToEngineRow, tag="SUBMIT"):
    rid: U64
    prompt_tokens: U32  # length of the whole prompt
    ids: list[TokenId]  # its first tokens; the rest follows in PROMPT messages
    params: SamplingParams
    credit: U32 = 0xFFFF_FFFF  # output tokens that may be produced before CREDIT
    priority: I32 = 0  # higher is admitted first
    mode: U32 = 0  # of Ready.serving, in which it is served


class Prompt(ToEngineRow, tag="PROMPT"):
    rid: U64
    offset: U32
    ids: list[TokenId]


class Resume(ToEngineRow, tag="RESUME"):
    """A request begun by an earlier engine: prompt and generated ids stay apart."""

    rid: U64
    prompt_tokens: U32
    ids: list[TokenId]
    generated: list[TokenId]
    params: SamplingParams
    credit: U32 = 0xFFFF_FFFF
    mode: U32 = 0  # of Ready.serving, in which it is served


class Cancel(ToEngineRow, tag="CANCEL"):
    rid: U64


class Credit(ToEngineRow, tag="CREDIT"):
    rid: U64
    upto: U32  # absolute count of output tokens that may be produced


class Ping(ToEngineRow, tag="PING"):
    nonce: U64


class Drain(ToEngineRow, tag="DRAIN"):
    """Take no new requests, finish the running ones, then exit 0."""


class Tokens(ToSupervisorRow, tag="TOKENS"):
    step: U64
    items: list[TokensItem]


class PromptLogprobs(ToSupervisorRow, tag="PROMPT_LOGPROBS"):
    rid: U64
    offset: U32  # prompt index of the first entry; the prompt's first token has none
    logprobs: list[TokenLogprob]


class Done(ToSupervisorRow, tag="DONE"):
    """The one terminal message of a request."""

    rid: U64
    reason: FinishReason
    prompt_tokens: U32
    cached_tokens: U32  # prompt tokens whose KV came from the prefix cache
    output_tokens: U32
    timings: Timings = Timings()
    stop_id: I32 = -1  # the stop id that was sampled, where reason is "stop"
    error_kind: ErrorKind | None = None
    code: str = ""
    text: str = ""
    drafted_tokens: U32 = 0  # drafts that steps of this request verified
    accepted_tokens: U32 = 0  # of these the ones that were right


class Pong(ToSupervisorRow, tag="PONG"):
    nonce: U64
    step: U64  # counter of the compute thread
    busy: bool


class Stats(ToSupervisorRow, tag="STATS"):
    """Sent each second while something changed."""

    step: U64
    running: U32
    waiting: U32
    kv_pages_used: U32
    kv_pages_cached: U32
    kv_pages_total: U32
    prompt_tokens: U64  # totals since start
    cached_tokens: U64
    output_tokens: U64
    step_ms: float  # moving average of a step
    rss_bytes: U64
    draft_steps: U64 = 0  # times that a sequence's drafts were verified, total
    drafted_tokens: U64 = 0
    accepted_tokens: U64 = 0
    accepted_at: list[U64] = []  # accepted drafts by their place behind the last token


class Dying(ToSupervisorRow, tag="DYING"):
    error_kind: ErrorKind
    code: str
    text: str


TO_ENGINE = Offer | Plan
TO_ENGINE_RUN = Submit | Prompt | Resume | Cancel | Credit | Ping | Drain
TO_SUPERVISOR = Hello | Caps | Progress | Probe | Ready | Refuse
TO_SUPERVISOR_RUN = Tokens | PromptLogprobs | Done | Pong | Stats | Dying

# Messages whose length may reach `Limits.data_bytes`; every other one keeps to `control_bytes`.
# Part of the schema: the frame's data flag must agree with it.
DATA = frozenset({Submit, Prompt, Resume, Caps, Refuse, Tokens, PromptLogprobs})
