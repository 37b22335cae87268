"""Golden frames that are faults: each breaks one rule and names the code both sides must raise."""

from __future__ import annotations

import struct

import msgspec
from schema.golden_cases import Case, good_messages, raw_frame
from strata_protocol import messages as m
from strata_protocol.errors import FaultCode
from strata_protocol.framing import (
    ABSOLUTE_BYTES,
    DATA_FLAG,
    FRAME_VERSION,
    HEADER_BYTES,
    IGNORABLE,
    MAGIC,
    encode_frame,
)

pack = msgspec.msgpack.encode


def _bad(direction: str, code: FaultCode, case: str, why: str, data: bytes) -> Case:
    return Case(f"{direction}-bad-{code.value}-{case}", code.value, why, data)


def _header_only(length: int, flags: int) -> bytes:
    """Enough for a verdict: the payload must not be waited for."""
    return struct.pack("<HBBII", MAGIC, FRAME_VERSION, flags, length, 0)


def _frame_cases() -> list[Case]:
    ping = encode_frame(good_messages()["ping"])
    prompt = encode_frame(good_messages()["prompt"])
    flipped = bytearray(ping)
    flipped[-1] ^= 0x10
    length = FaultCode.LENGTH
    return [
        _bad("to_engine", FaultCode.TRUNCATED, "header", "ends inside a header", ping[:7]),
        _bad("to_engine", FaultCode.TRUNCATED, "payload", "ends inside a payload", ping[:-1]),
        _bad("to_engine", length, "control", "64 KiB + 1", _header_only(64 * 1024 + 1, 0)),
        _bad("to_engine", length, "data", "1 MiB + 1", _header_only(1024 * 1024 + 1, DATA_FLAG)),
        _bad(
            "to_supervisor",
            length,
            "absolute",
            "16 MiB + 1",
            _header_only(ABSOLUTE_BYTES + 1, DATA_FLAG),
        ),
        _bad("to_supervisor", length, "four_gib", "2^32 - 1", _header_only(0xFFFF_FFFF, 3)),
        _bad(
            "to_engine",
            FaultCode.MAGIC,
            "text",
            "a stray line of text",
            b"warning: something was printed here\n",
        ),
        _bad("to_engine", FaultCode.MAGIC, "swapped", "big-endian magic", b"\x53\x54" + ping[2:]),
        _bad(
            "to_engine",
            FaultCode.VERSION,
            "two",
            "frame version 2",
            raw_frame(ping[HEADER_BYTES:], version=2),
        ),
        _bad(
            "to_engine",
            FaultCode.FLAGS,
            "reserved",
            "a reserved flag is set",
            raw_frame(ping[HEADER_BYTES:], flags=0x80),
        ),
        _bad(
            "to_engine",
            FaultCode.FLAGS,
            "data_on_control",
            "PING with the data flag",
            raw_frame(ping[HEADER_BYTES:], flags=DATA_FLAG),
        ),
        _bad(
            "to_engine",
            FaultCode.FLAGS,
            "control_on_data",
            "PROMPT without the data flag",
            raw_frame(prompt[HEADER_BYTES:]),
        ),
        _bad("to_engine", FaultCode.CRC, "payload", "one bit of the payload", bytes(flipped)),
        _bad(
            "to_engine",
            FaultCode.CRC,
            "header",
            "the ignorable flag was set after the checksum",
            ping[:3] + bytes([IGNORABLE]) + ping[4:],
        ),
    ]


def _type_cases() -> list[Case]:
    cancel_map = pack({"type": "CANCEL", "rid": 1})
    hello = good_messages()["hello"]
    unknown = FaultCode.UNKNOWN_TYPE
    return [
        _bad("to_engine", unknown, "array", "no such message", raw_frame(pack(["TRACE", 1]))),
        _bad("to_supervisor", unknown, "map", "no such message", raw_frame(pack({"type": "NOTE"}))),
        _bad(
            "to_engine",
            unknown,
            "direction",
            "HELLO goes to the supervisor",
            encode_frame(hello),
        ),
        _bad(
            "to_engine",
            unknown,
            "form",
            "CANCEL is an array, not a map",
            raw_frame(cancel_map),
        ),
    ]


def _decode_cases() -> list[Case]:
    hello = msgspec.to_builtins(good_messages()["hello"])
    plan = msgspec.to_builtins(good_messages()["plan"])
    no_pid = {k: v for k, v in hello.items() if k != "pid"}
    to_engine = {
        "empty": (b"", "no payload"),
        "scalar": (b"\x01", "neither a map nor an array"),
        "reserved_opcode": (b"\xc1", "0xc1 is no MessagePack"),
        "empty_array": (b"\x90", "an array without a tag"),
        "tag_type": (b"\x92\x01\x08", "the tag is a number"),
        "no_tag": (pack({"rid": 1}), "a map without a tag"),
        "tag_list": (pack({"type": ["OFFER"]}), "the tag is a list"),
        "short_array": (b"\x92\xa6CREDIT\x08", "a required value is missing"),
        "truncated_value": (b"\x92\xa6CANCEL\xcf\x00", "the payload ends inside an integer"),
        "trailing": (b"\x92\xa6CANCEL\x08\x00", "a byte follows the message"),
        "string_for_int": (pack(["CANCEL", "8"]), "rid is a string"),
        "float_for_int": (pack(["CANCEL", 8.0]), "rid is a float"),
        "bool_for_int": (pack(["CANCEL", True]), "rid is a boolean"),
        "nil_for_int": (pack(["CANCEL", None]), "rid is nil"),
        "ext_for_int": (b"\x92\xa6CANCEL\xd4\x01\x08", "rid is an extension"),
        "negative": (pack(["CANCEL", -1]), "rid is negative"),
        "above_u32": (pack(["CREDIT", 1, 2**32]), "upto is above 2^32 - 1"),
        "array_count": (b"\xdd\xff\xff\xff\xff\xa6CANCEL\x08", "4 G values in 8 bytes"),
        "map_count": (b"\xdf\xff\xff\xff\xff\xa4type\xa5OFFER", "4 G pairs in 11 bytes"),
        "string_length": (b"\x92\xdb\xff\xff\xff\xffCANCEL", "a string of 4 GiB"),
        "key_type": (b"\x81\x01\x02", "a key is a number"),
        "bool_type": (
            pack({"type": "PLAN", "plan": plan["plan"] | {"prefix_cache": 1}}),
            "a boolean is a number",
        ),
    }
    to_supervisor = {
        "missing_field": (pack(no_pid), "pid is missing"),
        "not_utf8": (pack(hello).replace(b"\xa3cpu", b"\xa3c\xffu"), "backend is not UTF-8"),
        "surrogate": (pack(hello).replace(b"\xa3cpu", b"\xa3\xed\xa0\x80"), "a lone surrogate"),
        "bin_for_string": (pack(hello | {"backend": b"cpu"}), "backend is binary"),
        "struct_for_string": (pack(hello | {"backend": {}}), "backend is a map"),
        "pong_busy": (pack(["PONG", 1, 2, "yes"]), "busy is a string"),
        "enum": (pack(["DONE", 1, "finished", 1, 1, 1]), "no such finish reason"),
        "optional_enum": (pack(["DONE", 1, "stop", 1, 1, 1, [], -1, 3]), "error_kind is a number"),
        "nested_short": (pack(["DYING", "internal", "x"]), "text is missing"),
        "above_i32": (pack(["DONE", 1, "stop", 1, 1, 1, [], 2**31]), "stop_id is above 2^31 - 1"),
        "progress": (pack({"type": "PROGRESS", "phase": "", "done": -1, "total": 1}), "done < 0"),
    }
    data = {
        "token_id": (pack(["PROMPT", 1, 0, [2**31]]), "a token id above 2^31 - 1"),
        "token_negative": (pack(["PROMPT", 1, 0, [-1]]), "a negative token id"),
        "list_count": (b"\x94\xa6PROMPT\x01\x00\xdd\x7f\xff\xff\xff\x01", "2 G ids in one byte"),
        "params_type": (pack(["SUBMIT", 1, 1, [1], [1]]), "params is an array"),
        "params_value": (pack(["SUBMIT", 1, 1, [1], {"top_p": "high"}]), "top_p is a string"),
        "bias_pair": (pack(["SUBMIT", 1, 1, [1], {"logit_bias": [[1]]}]), "a bias is missing"),
    }
    decode = FaultCode.DECODE
    out = [_bad("to_engine", decode, c, why, raw_frame(p)) for c, (p, why) in to_engine.items()]
    out += [
        _bad("to_supervisor", decode, c, why, raw_frame(p)) for c, (p, why) in to_supervisor.items()
    ]
    out += [
        _bad("to_engine", decode, c, why, raw_frame(p, flags=DATA_FLAG))
        for c, (p, why) in data.items()
    ]
    refuse = pack({"type": "REFUSE", "reasons": [], "exit_code": 256})
    out.append(
        _bad(
            "to_supervisor",
            decode,
            "above_u8",
            "exit_code is above 255",
            raw_frame(refuse, flags=DATA_FLAG),
        )
    )
    ignorable = raw_frame(b"\x92\xa5TRACE\xc1", flags=IGNORABLE)
    out.append(_bad("to_engine", decode, "ignorable", "not MessagePack, though new", ignorable))
    long = pack(m.Cancel(rid=8)) + b"\xc0"
    out.append(_bad("to_engine", decode, "trailing_nil", "a value follows", raw_frame(long)))
    return out


def bad_cases() -> list[Case]:
    """Every rule broken once or more."""
    return _frame_cases() + _type_cases() + _decode_cases()
