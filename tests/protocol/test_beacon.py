"""The beacon's reader and writer: round trip, torn reads, and bytes that nobody meant."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strata_protocol import beacon_layout as layout
from strata_protocol.beacon import BeaconFile, BeaconView, create, read
from strata_protocol.beacon_writer import BeaconWriter


@pytest.fixture
def file(tmp_path: Path) -> Iterator[BeaconFile]:
    made = create(tmp_path / "beacon")
    yield made
    made.close()


@pytest.fixture
def writer(file: BeaconFile) -> Iterator[BeaconWriter]:
    made = BeaconWriter(file.fd, build="0.1.0 (test)")
    yield made
    made.close()


def view_of(file: BeaconFile) -> BeaconView:
    view, reason = file.read()
    assert reason == ""
    assert view is not None
    return view


def test_what_is_written_is_read(file: BeaconFile, writer: BeaconWriter) -> None:
    before_ns = time.monotonic_ns()
    writer.set(
        phase="decode",
        mode="batch",
        plan="batch 8, kv f16",
        step=7,
        rows=9,
        sequences=3,
        rids=[5, 1 << 63, 9],
        rss_bytes=1 << 40,
        assert_text="assert: a.cpp:1: x: ä",
        exit_status=1,
    )
    writer.launch("matmul.q4", op=12, layer=3)
    writer.end_step(6, 8.5, 9, 3, "prefill")
    writer.end_step(5, 4.25, 1, 1, "decode")
    writer.crash(11, frames=[0x10, 0x20], kernel="rope.f32", address=0xDEAD, thread="worker-1")
    view = view_of(file)
    assert (view.phase, view.mode, view.plan) == ("decode", "batch", "batch 8, kv f16")
    assert (view.step, view.rows, view.sequences) == (7, 9, 3)
    assert view.rids == (5, 1 << 63, 9)
    assert view.rid_count == 3
    assert (view.kernel, view.op, view.layer) == ("matmul.q4", 12, 3)
    assert (view.pid, view.build) == (os.getpid(), "0.1.0 (test)")
    assert view.rss_bytes == 1 << 40
    assert view.assert_text == "assert: a.cpp:1: x: ä"
    assert (view.exit_called, view.exit_status) == (True, 1)
    assert before_ns <= view.moved_ns <= time.monotonic_ns()
    assert [(s.step, s.ms, s.phase) for s in view.steps] == [
        (5, 4.25, "decode"),
        (6, 8.5, "prefill"),
    ]
    assert view.crash is not None
    assert view.crash.signal == 11
    assert view.crash.frames == ("strata-engine-cpu+0x10", "strata-engine-cpu+0x20")
    assert (view.crash.kernel, view.crash.thread) == ("rope.f32", "worker-1")
    assert view.crash.address == 0xDEAD
    assert view.dump is None
    assert not view.is_torn


def test_a_fresh_engine_runs_nothing(file: BeaconFile, writer: BeaconWriter) -> None:
    view = view_of(file)
    assert (view.phase, view.kernel, view.op, view.layer) == ("launch", "", -1, -1)
    assert (view.crash, view.steps, view.rids) == (None, (), ())
    assert not view.exit_called
    assert view.exit_status == -1


def test_only_the_first_requests_are_named(file: BeaconFile, writer: BeaconWriter) -> None:
    writer.set(rids=range(100))
    view = view_of(file)
    assert view.rids == tuple(range(layout.RIDS_MAX))
    assert view.rid_count == 100


def test_the_ring_keeps_the_last_steps(file: BeaconFile, writer: BeaconWriter) -> None:
    for step in range(1, 2 * layout.STEPS_KEPT):
        writer.end_step(step, 1.0, 1, 1, "decode")
    steps = [record.step for record in view_of(file).steps]
    assert steps == list(range(layout.STEPS_KEPT, 2 * layout.STEPS_KEPT))


def test_a_writer_that_died_half_way_is_told(file: BeaconFile, writer: BeaconWriter) -> None:
    writer.set(phase="decode", step=3)
    os.pwrite(file.fd, struct.pack("<Q", 3), layout.PAGE.offsets["sequence"])
    view = view_of(file)
    assert view.is_torn
    assert (view.phase, view.step) == ("decode", 3)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "has 0"),
        (bytes(layout.PAGE_BYTES), "not begun"),
        (b"x" * layout.PAGE_BYTES, "no beacon"),
        (struct.pack("<QI", layout.MAGIC, 99) + bytes(layout.PAGE_BYTES - 12), "version 99"),
    ],
)
def test_what_is_no_beacon_says_why(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "beacon"
    path.write_bytes(data)
    for source in (path, data):
        view, text = read(source)
        assert view is None
        assert reason in text


def test_a_new_beacon_replaces_an_old_file(tmp_path: Path) -> None:
    old = create(tmp_path / "beacon")
    writer = BeaconWriter(old.fd)
    new = create(tmp_path / "beacon")
    writer.set(step=5)
    assert new.read()[0] is None
    assert new.path.stat().st_mode & 0o077 == 0
    for file in (old, new):
        file.close()
    writer.close()


def test_the_writer_wants_a_whole_page(tmp_path: Path) -> None:
    with (tmp_path / "short").open("w+b") as file:
        file.write(bytes(100))
        file.flush()
        with pytest.raises(ValueError, match="65536"):
            BeaconWriter(file.fileno())


HEADER = struct.pack("<QII", layout.MAGIC, layout.VERSION, layout.PAGE_BYTES)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.binary(min_size=1, max_size=64),
    patches=st.lists(st.tuples(st.integers(16, layout.PAGE.bytes - 1), st.binary(max_size=16))),
)
def test_no_bytes_make_the_reader_raise(seed: bytes, patches: list[tuple[int, bytes]]) -> None:
    page = bytearray((seed * (layout.PAGE_BYTES // len(seed) + 1))[: layout.PAGE_BYTES])
    page[: len(HEADER)] = HEADER
    for at, data in patches:
        page[at : at + len(data)] = data
    view, _ = read(bytes(page[: layout.PAGE_BYTES]))
    assert view is not None
    assert len(view.rids) <= layout.RIDS_MAX


@given(st.binary(max_size=256))
def test_short_bytes_are_no_beacon(data: bytes) -> None:
    view, reason = read(data)
    assert view is None
    assert reason
