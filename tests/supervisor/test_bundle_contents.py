"""The contents of one bundle: its bounds, what is taken out of it, and the words of its fields."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from strata.engines.crash_memory import Verdict
from strata.engines.crash_report import Counters, Crash
from strata.engines.engine_log import FILE_BYTES_MAX, log_path
from strata.engines.exits import EngineExit, ExitClass
from strata.engines.frame_ring import FRAMES_KEPT, FrameRing, RecordedPeer
from strata.engines.restart import Decision, Hold, StartAfter, StayDown, Stopped
from strata.observe import bundle
from strata.observe.bundle import BundleMeta, Scene, bundle_files
from strata.observe.redaction import Redactor
from strata.observe.status import Status
from strata.serving.request_facts import RequestFacts
from strata_protocol.errors import ProtocolFault
from strata_protocol.framing import encode_frame
from strata_protocol.messages import Hello, WantedModes

from tests.supervisor.crash_facts import crash, exited, plan, view

SECRET = "sk-canary-1234"


def scene(
    run_dir: Path, ended: EngineExit, requests: int = 0, status: Status | None = None
) -> Scene:
    facts = Crash(
        exited=ended, verdict=Verdict("ab" * 6, ("batch",)), plan=plan(), wanted=WantedModes(),
        hello=None, caps=None, frames=(), output=("the last line",), command=("engine",),
        model=Path("m.gguf"), run_dir=run_dir, counters=Counters(3, 2, 1),
    )  # fmt: skip
    row = RequestFacts(rid=1, state="streaming", prompt_tokens=1, output_tokens=2)
    return Scene(facts, datetime.now(UTC), time.monotonic(), [row] * requests, status)


def contents(
    found: Scene, decision: Decision | None = None, secrets: tuple[str, ...] = (SECRET,)
) -> tuple[dict[str, bytes], BundleMeta]:
    files = bundle_files(
        found, "id", decision or StayDown(), config={}, version="1", redactor=Redactor(secrets)
    )
    return files, msgspec.json.decode(files[bundle.META], type=BundleMeta)


def huge_status() -> Status:
    """As a service has it whose engine gave a megabyte of reasons."""
    return msgspec.convert(
        {
            "state": "ready", "reason": "", "model": {"name": "m", "path": "p"}, "engine": None,
            "restarts": {"starts": 1, "crashes": 1}, "load": {},
            "modes": [{
                "name": "batch", "state": "ready", "requested": "1", "runs": "1",
                "because": [{"code": "mem.kv", "text": "x" * 1000}] * 2500,
            }],
            "supervisor": {"pid": 1, "version": "1", "uptime_s": 1, "url": "", "run_dir": ""},
        },
        Status,
    )  # fmt: skip


def test_a_bundle_is_bounded_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    log_path(tmp_path, 3).write_bytes(b"\xff" * (1 << 20))  # three bytes each once they are text
    begin_s = time.monotonic()
    files, meta = contents(scene(tmp_path, exited(view()), 320, huge_status()))
    assert time.monotonic() - begin_s < 5
    assert sum(map(len, files.values())) <= bundle.BUNDLE_BYTES_MAX
    assert bundle.STATUS not in files
    assert any(name.startswith("status.json: ") for name in meta.left_out)
    assert len(json.loads(files[bundle.SUSPECTS])) == 320
    for name in (bundle.HEAD, bundle.TAIL, bundle.MEMORY, bundle.CONFIG, bundle.BEACON):
        assert name in files


@pytest.mark.parametrize("size", [0, 100, (64 << 10) + 5, 1 << 20])
def test_the_beginning_and_the_end_of_the_output_do_not_overlap(tmp_path: Path, size: int) -> None:
    text = b"".join(b"x%06x\n" % i for i in range(size // 8 + 1))[:size]
    log_path(tmp_path, 3).write_bytes(text)
    files, _ = contents(scene(tmp_path, exited(view())))
    assert files[bundle.HEAD] == text[: 64 << 10]
    assert files[bundle.TAIL] == text[max(64 << 10, size - (256 << 10)) :]


def test_of_output_that_its_file_does_not_hold_the_last_lines_are_kept(tmp_path: Path) -> None:
    files, meta = contents(scene(tmp_path, exited(view())))
    assert files[bundle.TAIL] == b"the last line"
    assert any("engine-3.log: No such file" in name for name in meta.left_out)
    with log_path(tmp_path, 3).open("wb") as file:
        file.truncate(FILE_BYTES_MAX)
    files, meta = contents(scene(tmp_path, exited(view())))
    assert files[bundle.TAIL].endswith(b"\n[...]\nthe last line")


def test_numbers_in_a_row_and_secrets_are_taken_out_wherever_an_engine_can_write(
    tmp_path: Path,
) -> None:
    row = "1 22 333 4444 5 66 777 8888 9"
    log_path(tmp_path, 3).write_text(f"bad ids {row} and {SECRET}\n")
    ended = exited(view(assert_text=f"a.cpp:1: {row}"))
    ended = EngineExit(3, 9, ExitClass.SIGNAL, f"said {row}", "running", 1.0, beacon=ended.beacon)
    files, meta = contents(scene(tmp_path, ended))
    for name, data in files.items():
        assert b"4444" not in data, name
        assert SECRET.encode() not in data, name
    assert files[bundle.HEAD] == b"bad ids [9 numbers removed] and [hidden]\n"
    assert meta.text == "said [9 numbers removed]"
    assert bundle.BEACON_BIN not in files


def test_a_file_that_holds_a_secret_all_the_same_is_left_out(tmp_path: Path) -> None:
    status = msgspec.structs.replace(huge_status(), reason=SECRET, modes=[])
    files, meta = contents(scene(tmp_path, exited(None), status=status))
    assert bundle.STATUS not in files
    assert "status.json: it held a secret of the configuration" in meta.left_out


@pytest.mark.parametrize(
    ("decision", "name", "delay_s"),
    [
        (StartAfter(2.5), "start", 2.5), (Hold(300.0, "why"), "hold", 300.0),
        (StayDown(), "stay_down", 0.0), (Stopped(), "stopped", 0.0),
    ],
)  # fmt: skip
def test_decisions(tmp_path: Path, decision: Decision, name: str, delay_s: float) -> None:
    _, meta = contents(scene(tmp_path, exited(None)), decision)
    assert (meta.decision, meta.delay_s) == (name, delay_s)
    assert meta.reason == ("why" if name == "hold" else "")


def test_facts_of_a_fault(tmp_path: Path) -> None:
    fault = crash(code=2, address=0xDEAD, thread="worker-1", kernel="k")
    seen = view(
        phase="decode", sequences=2, crash=fault, build_id="ff", moved_ns=time.monotonic_ns()
    )
    _, meta = contents(scene(tmp_path, exited(seen)))
    assert (meta.si_code, meta.address, meta.thread) == (2, "0xdead", "worker-1")
    assert (meta.build_id, meta.blamed_mode, meta.taken_out) == ("ff", "batch", ["batch"])
    assert (meta.starts, meta.crashes, meta.boot_attempts) == (3, 2, 1)
    assert meta.still_s is not None
    assert 0 <= meta.still_s < 5
    assert meta.signature == "ab" * 6
    _, later = contents(scene(tmp_path, exited(view(moved_ns=1 << 63))))
    assert later.still_s is None, "the beacon is of another boot, or damaged"


# --- frames -----------------------------------------------------------------------------------


def test_a_ring_keeps_each_direction_and_no_payload() -> None:
    ring = FrameRing()
    ring.sent("SUBMIT", 100)
    for _ in range(FRAMES_KEPT * 2):
        ring.received("TOKENS", 9)
    notes = ring.notes()
    assert len(notes) == FRAMES_KEPT + 1
    assert (notes[0].type, notes[0].to_engine, notes[0].bytes) == ("SUBMIT", True, 100)
    assert set(FrameRing.__slots__) == {"_received", "_sent"}


def test_frames_that_cannot_be_decoded_are_noted_too() -> None:
    peer = RecordedPeer()
    hello = Hello(proto_min=1, proto_max=1, build="b", backend="cpu", device="d", pid=1)
    frame = encode_frame(hello)
    assert peer.feed(frame) == [hello]
    with pytest.raises(ProtocolFault):
        peer.feed(encode_frame(WantedModes()))
    assert [(n.type, n.to_engine) for n in peer.frames.notes()] == [("HELLO", False), ("?", False)]
    assert peer.frames.notes()[0].bytes == len(frame) - 12
