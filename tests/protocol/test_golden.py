"""protocol/golden read by the Python side; test_cpp.py and tests/engine_unit read it in C++."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from strata_protocol.codec import decode_to_engine, decode_to_supervisor
from strata_protocol.errors import ProtocolFault
from strata_protocol.framing import IGNORABLE, FrameDecoder, encode_frame

from tests.protocol.strategies import ALL

PROTOCOL = Path(__file__).resolve().parents[2] / "protocol"
GOLDEN = PROTOCOL / "golden"
CASES = sorted(path.stem for path in GOLDEN.glob("*.bin"))


def receive(direction: str, data: bytes) -> list[msgspec.Struct]:
    decode = decode_to_engine if direction == "to_engine" else decode_to_supervisor
    decoder = FrameDecoder()
    out: list[msgspec.Struct] = []
    for frame in decoder.feed(data):
        try:
            message = decode(frame.payload)
        except ProtocolFault as fault:
            if fault.code == "proto.unknown_type" and frame.flags & IGNORABLE:
                continue
            raise
        out.append(message)
    decoder.finish()
    return out


@pytest.mark.parametrize("case", [c for c in CASES if "-bad-proto.flags-" not in c])
def test_case(case: str) -> None:
    direction, expect, rest = case.split("-", 2)
    data = (GOLDEN / f"{case}.bin").read_bytes()
    facts = json.loads((GOLDEN / f"{case}.json").read_text(encoding="utf-8"))
    if expect == "bad":
        with pytest.raises(ProtocolFault) as caught:
            receive(direction, data)
        assert caught.value.code == rest.split("-")[0] == facts["expect"]
        return
    messages = receive(direction, data)
    if expect == "ignored":
        assert messages == []
        return
    [message] = messages
    if expect == "as":
        other = GOLDEN / f"{facts['expect'].removeprefix('as ')}.bin"
        assert encode_frame(message) == other.read_bytes()
        return
    assert encode_frame(message) == data
    fields = facts["message"]
    assert str(message.__struct_config__.tag) == facts["tag"]
    for name in message.__struct_fields__:
        assert msgspec.to_builtins(getattr(message, name)) == fields[name]


def test_every_message_has_a_golden_frame() -> None:
    seen = {
        json.loads((GOLDEN / f"{case}.json").read_text(encoding="utf-8"))["tag"]
        for case in CASES
        if "-ok-" in case
    }
    assert seen == {str(cls.__struct_config__.tag) for cls in ALL}


@pytest.mark.parametrize("script", ["golden.py", "generate.py"])
def test_committed_files_are_what_the_schema_yields(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROTOCOL / "schema" / script), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
