"""Golden frames that are accepted: every message in full and with defaults alone, and the forms
a receiver must read although nobody here writes them.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import msgspec
from strata_protocol import messages as m
from strata_protocol.framing import DATA_FLAG, FRAME_VERSION, IGNORABLE, MAGIC

pack = msgspec.msgpack.encode


@dataclass(frozen=True)
class Case:
    name: str
    expect: str  # "as NAME", "ignored", or a fault code
    why: str
    data: bytes


def raw_frame(
    payload: bytes, *, flags: int = 0, magic: int = MAGIC, version: int = FRAME_VERSION
) -> bytes:
    """A frame with a right checksum around any payload."""
    head = struct.pack("<HBBI", magic, version, flags, len(payload))
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload


_SERVING = [
    m.ServingMode(drafts=3, features=["logprobs"]),
    m.ServingMode(features=["penalties", "logprobs"]),
]
_REASONS = [
    m.Reason(code="mem.kv_budget", text="KV for 8 x 8192 tokens needs 6.0 GiB, 4.5 GiB are free"),
    m.Reason(code="kernel.missing", text="no kernel for matmul q2_k × i8 — “AVX2” only"),
]
_PLAN = m.ModePlan(
    batch=8,
    max_context=8192,
    kv="f16",
    prefill=256,
    activations="int8",
    threads=16,
    kv_tokens=65536,
    prefix_cache=False,
)
_MEMORY = [
    m.MemoryPart(name="weights.mapped", bytes=91_730_000_000, text="IQ3_S, 4 parts"),
    m.MemoryPart(name="kv", bytes=0),
]
_PARAMS = m.SamplingParams(
    max_tokens=4096,
    min_tokens=1,
    temperature=0.7,
    top_k=40,
    top_p=0.95,
    min_p=0.05,
    typical_p=0.9,
    repetition_penalty=1.1,
    presence_penalty=-0.5,
    frequency_penalty=0.25,
    logit_bias=[m.LogitBias(token=50256, bias=-100.0), m.LogitBias(token=0, bias=1.5)],
    seed=0xFFFF_FFFF_FFFF_FFFF,
    choice=3,
    stop_ids=[2, 128_009, 0x7FFF_FFFF],
    ignore_eos=True,
    logprobs=20,
    prompt_logprobs=0,
    needs=["sampling", "top_k"],
)
_TOP = [m.TopLogprob(token=11, logprob=-0.25), m.TopLogprob(token=70_000, logprob=-2.5)]
_LOGPROB = m.TokenLogprob(logprob=-0.1, top=_TOP)


def good_messages() -> dict[str, msgspec.Struct]:
    """Case name -> message; between them every field and every width of integer occurs."""
    return {
        "hello": m.Hello(
            proto_min=1,
            proto_max=1,
            build="0.1.0+abc",
            backend="cpu",
            device="Arm® Neoverse™-N2",
            pid=4711,
        ),
        "offer": m.Offer(
            proto=1,
            run_id="r-01",
            epoch=3,
            model="/models/ein Modell.gguf",
            want=m.WantedModes(batch=4, kv="f32", kv_tokens=2**40),
            limits=m.Limits(control_bytes=4096, data_bytes=65536),
            quarantine=["mtp"],
            without_kernels=["*:sequences>1", "matmul*:weight=iq4_nl"],
        ),
        "offer_defaults": m.Offer(proto=1, run_id="", epoch=0, model="", want=m.WantedModes()),
        "caps": m.Caps(
            host=m.HostFacts(
                os="Linux 6.1",
                cpu="EPYC",
                isa="avx512vnni",
                cores=64,
                memory_total_bytes=2**38,
                memory_available_bytes=2**37,
            ),
            model=m.ModelFacts(
                architecture="qwen3",
                name="Qwen3 0.6B",
                file_bytes=400_000_000,
                parameters=600_000_000,
                layers=28,
                vocab=151_936,
                context=40_960,
                types=["q4_k", "q6_k", "f32"],
                sha256_head="9f" * 32,
            ),
            configurations=[
                m.Configuration(
                    plan=_PLAN,
                    missing=[1],
                    shortfalls=[m.Shortfall(axis="max_context", reason=0)],
                    memory=_MEMORY,
                    serving=[1, 0],
                ),
                m.Configuration(plan=msgspec.structs.replace(_PLAN, batch=1)),
            ],
            reasons=_REASONS,
            device=m.DeviceFacts(
                name="Arm® Neoverse™-N2",
                backend="cpu",
                memory_total_bytes=2**38,
                memory_available_bytes=2**37,
                is_assumed=True,
            ),
            serving=_SERVING,
            notes=_REASONS,
        ),
        "caps_defaults": m.Caps(host=m.HostFacts(), model=m.ModelFacts()),
        "plan": m.Plan(plan=_PLAN, rung="batch-4"),
        "progress": m.Progress(phase="map", done=2**33, total=2**34, unit="bytes"),
        "probe": m.Probe(mode="batch", ok=False, ms=12.5, reasons=_REASONS),
        "ready": m.Ready(
            plan=_PLAN,
            load_ms=1234.5,
            warm_ms=0.0,
            kv_pages=2048,
            page_tokens=32,
            memory=_MEMORY,
            limits=m.Limits(control_bytes=4096, data_bytes=65536),
            serving=_SERVING,
        ),
        "refuse": m.Refuse(reasons=_REASONS, exit_code=78),
        "submit": m.Submit(
            rid=2**63,
            prompt_tokens=6,
            ids=[0, 127, 128, 256, 65_536],
            params=_PARAMS,
            credit=512,
            priority=-33,
            mode=1,
        ),
        "submit_defaults": m.Submit(rid=0, prompt_tokens=1, ids=[1], params=m.SamplingParams()),
        "submit_long": m.Submit(
            rid=7,
            prompt_tokens=70_000,
            ids=list(range(300)),
            params=m.SamplingParams(),
            priority=-(2**31),
        ),
        "prompt": m.Prompt(rid=7, offset=60_000, ids=[5, 4, 3]),
        "resume": m.Resume(
            rid=8,
            prompt_tokens=2,
            ids=[9, 8],
            generated=[7, 6, 5],
            params=_PARAMS,
            credit=0,
            mode=128,
        ),
        "cancel": m.Cancel(rid=8),
        "credit": m.Credit(rid=8, upto=1024),
        "ping": m.Ping(nonce=0xDEAD_BEEF_CAFE),
        "drain": m.Drain(),
        "tokens": m.Tokens(
            step=918_223,
            items=[
                m.TokensItem(rid=1, offset=0, ids=[42]),
                m.TokensItem(rid=2, offset=70_000, ids=[1, 2], logprobs=[_LOGPROB, _LOGPROB]),
                m.TokensItem(rid=3, offset=5, ids=[], logprobs=[m.TokenLogprob(logprob=0.0)]),
            ],
        ),
        "tokens_none": m.Tokens(step=0, items=[]),
        "prompt_logprobs": m.PromptLogprobs(rid=2, offset=1, logprobs=[_LOGPROB]),
        "done_stop": m.Done(
            rid=1,
            reason=m.FinishReason.STOP,
            prompt_tokens=10,
            cached_tokens=32,
            output_tokens=7,
            timings=m.Timings(queue_ms=0.5, prefill_ms=20.25, decode_ms=1e6),
            stop_id=128_009,
        ),
        "done_error": m.Done(
            rid=2,
            reason=m.FinishReason.ERROR,
            prompt_tokens=10,
            cached_tokens=0,
            output_tokens=0,
            error_kind=m.ErrorKind.NUMERIC_FAULT,
            code="logits.not_finite",
            text="layer 3 gave a NaN",
        ),
        "done_cancelled": m.Done(
            rid=3,
            reason=m.FinishReason.CANCELLED,
            prompt_tokens=1,
            cached_tokens=0,
            output_tokens=1,
        ),
        "pong": m.Pong(nonce=0xDEAD_BEEF_CAFE, step=918_223, busy=True),
        "stats": m.Stats(
            step=1,
            running=2,
            waiting=3,
            kv_pages_used=4,
            kv_pages_cached=5,
            kv_pages_total=2048,
            prompt_tokens=6,
            cached_tokens=7,
            output_tokens=8,
            step_ms=9.75,
            rss_bytes=2**36,
        ),
        "dying": m.Dying(
            error_kind=m.ErrorKind.INTERNAL, code="loop.exception", text="x" * 300 + " — end"
        ),
    }


def lenient_cases() -> list[Case]:
    """Forms that a receiver reads although our encoders do not write them."""
    hello = msgspec.to_builtins(good_messages()["hello"])
    backwards = dict(reversed([(k, v) for k, v in hello.items() if k != "type"]))
    offer = {"proto": 1, "run_id": "", "epoch": 0, "model": "", "want": {}}
    extra = {"list": [1, {"a": None}], "real": 0.5, "yes": True, "raw": b"\x00\xff"}
    defaults = pack(m.SamplingParams())

    def as_(name: str, case: str, why: str, payload: bytes, flags: int = 0) -> Case:
        direction, _, message = name.partition("-ok-")
        return Case(f"{direction}-as-{message}-{case}", name, why, raw_frame(payload, flags=flags))

    return [
        as_(
            "to_engine-ok-cancel",
            "extra_value",
            "values after the last known field of an array are ignored, of whatever type",
            b"\x96\xa6CANCEL\x08" + pack(extra) + b"\xd4\x01\x02" + b"\xc7\x03\x05abc" + pack(-5),
        ),
        as_(
            "to_supervisor-ok-hello",
            "extra_field",
            "unknown fields of a map are ignored",
            pack({"type": "HELLO", "features": extra} | hello),
        ),
        as_(
            "to_supervisor-ok-hello",
            "key_bytes",
            "the name of an unknown field may be any bytes",
            pack({"type": "HELLO", "??": 1} | hello).replace(b"??", b"\xff\xfe"),
        ),
        as_(
            "to_supervisor-ok-hello",
            "tag_last",
            "the order of a map's fields does not matter, nor does that of its tag",
            pack(backwards | {"type": "HELLO"}),
        ),
        as_(
            "to_engine-ok-offer_defaults",
            "absent",
            "absent fields of a map take their defaults",
            pack({"type": "OFFER"} | offer),
        ),
        as_(
            "to_engine-ok-submit_defaults",
            "absent",
            "absent fields at the end of an array take their defaults",
            b"\x95\xa6SUBMIT\x00\x01\x91\x01" + defaults,
            DATA_FLAG,
        ),
        as_(
            "to_engine-ok-cancel",
            "wide",
            "integers and lengths may be wider than they need to be",
            b"\xdd\x00\x00\x00\x02\xda\x00\x06CANCEL\xd3\x00\x00\x00\x00\x00\x00\x00\x08",
        ),
        as_(
            "to_engine-ok-ping",
            "ignorable",
            "the ignorable flag changes nothing for a message that is known",
            pack(good_messages()["ping"]),
            IGNORABLE,
        ),
        as_(
            "to_supervisor-ok-done_cancelled",
            "float_forms",
            "a number field takes float32 and integers as well as float64",
            b"\x97\xa4DONE\x03\xa9cancelled\x01\x00\x01\x93\xca\x00\x00\x00\x00\x00" + pack(0.0),
        ),
        Case(
            "to_engine-ignored-new_message",
            "ignored",
            "an unknown message with the ignorable flag is skipped",
            raw_frame(pack(["TRACE", 1, {"deep": [1, 2, 3]}]), flags=IGNORABLE),
        ),
        Case(
            "to_supervisor-ignored-new_message",
            "ignored",
            "an unknown handshake message with the ignorable flag is skipped",
            raw_frame(pack({"type": "NOTE", "text": "hi"}), flags=IGNORABLE),
        ),
    ]
