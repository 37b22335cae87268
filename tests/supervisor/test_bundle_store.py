"""Bundles on disk: their names and number, what is damaged, and that rendering never raises."""

from __future__ import annotations

import json
import os
import random
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strata.engines.frame_ring import FrameNote
from strata.observe.beacon_text import crash_lines, doing_lines, step_lines
from strata.observe.bundle import BundleMeta
from strata.observe.bundle_store import (
    BUNDLES_KEPT,
    bundle_ids,
    crashes_path,
    new_id,
    read_bundle,
    read_meta,
    write_bundle,
)
from strata.observe.bundle_text import bundle_text, list_line
from strata.observe.machine_memory import machine_memory
from strata.observe.redaction import Redactor
from strata.serving.request_facts import RequestFacts
from strata_protocol import beacon
from strata_protocol import beacon_layout as layout
from strata_protocol.beacon import StepRecord
from strata_protocol.messages import HostFacts

from tests.supervisor.crash_facts import crash, plan, view

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NOW = WHEN + timedelta(hours=1)
SIGNATURE = "0123456789ab"


def put(run_dir: Path, number: int, **files: bytes) -> str:
    name = new_id(run_dir, WHEN + timedelta(seconds=number), SIGNATURE)
    meta = msgspec.json.encode(BundleMeta(version=1, id=name, signature=SIGNATURE))
    write_bundle(run_dir, name, {"meta.json": meta, **files})
    return name


def test_names_sort_by_time_and_never_collide(tmp_path: Path) -> None:
    names = [put(tmp_path, 0) for _ in range(12)]
    assert names[0] == "20260102T030405Z-01234567"
    assert names[11] == "20260102T030405Z-01234567-12"
    later = put(tmp_path, 1)
    assert bundle_ids(tmp_path) == [later, *reversed(names)]


def test_the_newest_twenty_are_kept(tmp_path: Path) -> None:
    names = [put(tmp_path, n) for n in range(BUNDLES_KEPT + 5)]
    foreign = crashes_path(tmp_path) / "notes of the operator"
    foreign.mkdir()
    stale = crashes_path(tmp_path) / ".partial-20260102T030405Z-01234567"
    stale.mkdir()
    names.append(put(tmp_path, BUNDLES_KEPT + 5))
    assert bundle_ids(tmp_path) == list(reversed(names))[:BUNDLES_KEPT]
    assert foreign.exists(), "what is no bundle is not ours to remove"
    assert not stale.exists()


def test_a_clock_that_was_set_back_does_not_cost_the_bundle_just_written(tmp_path: Path) -> None:
    for n in range(BUNDLES_KEPT):
        put(tmp_path, 100 + n)
    name = put(tmp_path, 0)
    assert name in bundle_ids(tmp_path)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (None, "is missing"),
        (b"", "is empty"),
        (b"{", "truncated"),
        (b"\xff\xfe\x00", "malformed"),
        (b"[1]", "Expected `object`"),
        (b'{"version": 1}', "required field `id`"),
        (b'{"version": 1, "id": "another"}', "it is of bundle another"),
        (b'{"plan":' + b'{"x":[' * 100_000, "recursion"),
        (b" " * (3 << 20), "3145728 bytes"),
    ],
)
def test_a_damaged_bundle_is_listed_as_such(tmp_path: Path, data: bytes | None, why: str) -> None:
    name = put(tmp_path, 0)
    path = crashes_path(tmp_path) / name / "meta.json"
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    found = read_meta(tmp_path, name)
    assert found.meta is None
    assert why in list_line(found, NOW)
    assert f"{name}  damaged: meta.json: " in list_line(found, NOW)
    assert why in bundle_text(read_bundle(tmp_path, name), NOW)


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    name = put(tmp_path, 0)
    path = crashes_path(tmp_path) / name / "stderr_head.txt"
    if kind == "link":
        (tmp_path / "secret").write_text("not to be followed")
        path.symlink_to(tmp_path / "secret")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    found = read_bundle(tmp_path, name)
    assert found.head == ""
    assert any(problem.startswith("stderr_head.txt: ") for problem in found.problems)


def test_a_damaged_decoded_beacon_is_decoded_again(tmp_path: Path) -> None:
    page = bytearray(layout.PAGE_BYTES)
    offsets = layout.PAGE.offsets
    page[offsets["magic"] : offsets["magic"] + 8] = layout.MAGIC.to_bytes(8, "little")
    page[offsets["version"]] = layout.VERSION
    page[offsets["step"]] = 77
    name = put(tmp_path, 0, **{"beacon.json": b"{", "beacon.bin": bytes(page)})
    found = read_bundle(tmp_path, name)
    assert found.beacon is not None
    assert found.beacon.step == 77
    assert "77 steps begun" in bundle_text(found, NOW)


def beacon_bytes(seed: int, *, is_plausible: bool) -> bytes:
    data = bytearray(random.Random(seed).randbytes(layout.PAGE_BYTES))
    if is_plausible:
        offsets = layout.PAGE.offsets
        data[offsets["magic"] : offsets["magic"] + 8] = layout.MAGIC.to_bytes(8, "little")
        data[offsets["version"] : offsets["version"] + 4] = (layout.VERSION).to_bytes(4, "little")
    return bytes(data)


@given(st.integers(0, 1 << 32), st.booleans(), st.integers(0, layout.PAGE_BYTES))
@settings(max_examples=60, deadline=None)
def test_any_bytes_of_a_beacon_are_told(seed: int, is_plausible: bool, count: int) -> None:
    data = beacon_bytes(seed, is_plausible=is_plausible)
    for part in (data, data[:count]):
        found, problem = beacon.read(part)
        assert (found is None) == bool(problem)
        if found is not None:
            lines = [*doing_lines(found), *step_lines(found.steps, 600)]
            for record in (found.crash, found.dump):
                lines += crash_lines(record) if record is not None else []
            assert all(line.isprintable() for line in lines)
            msgspec.json.encode(found)


WORDS = (
    "",
    "x" * 5000,
    "\x1b[2J\r\n",
    "\N{GREEK SMALL LETTER ALPHA}",
    "0x12",
    "start",
    "hold",
    "oom",
)
NUMBERS = (0, 1, -1, 11, 7, 10**6, -(2**31), 2**63 - 1)
REALS = (0.0, -0.0, -1.5, 1e308, -1e308, 5e-324, 12.25)


def sample_parts() -> dict[str, object]:
    """One of each part of a bundle, with nothing empty."""
    step = {"step": 1, "begin_ns": 2, "ms": 1.5, "rows": 2, "sequences": 1, "phase": "decode"}
    full = view(
        phase="decode", mode="batch", kernel="k", op=3, layer=2, rids=(1, 2), rid_count=99,
        plan="p", rss_bytes=5, assert_text="a", exit_called=True, dump=crash(), is_torn=True,
        steps=(msgspec.convert(step, StepRecord),),
    )  # fmt: skip
    meta = BundleMeta(
        version=1, id="x", when=WHEN.isoformat(), exit_class="signal", text="killed", status=1,
        signal=11, still_s=1.0, blamed_mode="batch", taken_out=["batch"], decision="start",
        plan=plan(spec=2), host=HostFacts(cpu="c"), command=["e"], left_out=["f: g"],
    )  # fmt: skip
    facts = RequestFacts(
        rid=1, state="s", prompt_tokens=2, output_tokens=3, params={"a": 1}, fingerprint="f"
    )
    parts = {
        "meta.json": meta, "beacon.json": full, "memory.json": machine_memory(1),
        "suspects.json": [facts] * 9, "frames.json": [FrameNote(-1.0, True, "SUBMIT", 3)],
        "config.json": {"batch": "4"},
    }  # fmt: skip
    return {name: msgspec.to_builtins(part) for name, part in parts.items()}


def varied(value: object, draw: random.Random) -> object:
    """The same shape with other values of the same types."""
    match value:
        case dict():
            return {key: varied(item, draw) for key, item in value.items()}
        case list() | tuple():
            return [varied(item, draw) for item in value for _ in range(draw.choice((0, 1, 1, 40)))]
        case bool() | None:
            return draw.random() < 0.5 if value is not None else None
        case str():
            return draw.choice((value, *WORDS))
        case int():
            return draw.choice((value, *NUMBERS))
        case float():
            return draw.choice((value, *REALS))
    raise AssertionError(value)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """As it is, cut off, with a byte changed, or noise."""
    at = draw.randrange(len(data))
    noise = data[:at] + draw.randbytes(1) + data[at + 1 :]
    return draw.choice((data, data, data[:at], noise, draw.randbytes(50)))


@given(st.integers(0, 1 << 32))
@settings(max_examples=400, deadline=None)
def test_rendering_never_raises(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    draw = random.Random(seed)
    run_dir = tmp_path_factory.getbasetemp() / "rendered"
    name = new_id(run_dir, WHEN, SIGNATURE)
    files = {}
    for part, value in sample_parts().items():
        if draw.random() < 0.85:
            content = varied(value, draw)
            if isinstance(content, dict) and part == "meta.json":
                content["id"] = name
            files[part] = damaged(json.dumps(content).encode(), draw)
    for part in ("stderr_head.txt", "stderr_tail.txt", "status.json"):
        files[part] = draw.randbytes(200)
    if draw.random() < 0.5:
        files["beacon.bin"] = beacon_bytes(seed, is_plausible=True)
    write_bundle(run_dir, name, files)
    found = read_bundle(run_dir, name)
    text = bundle_text(found, NOW) + list_line(found, NOW)
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.count("\nWhat ") == 4
    shutil.rmtree(run_dir)


def test_the_parts_that_rendering_is_tried_with_are_whole(tmp_path: Path) -> None:
    name = new_id(tmp_path, WHEN, SIGNATURE)
    parts = sample_parts()
    parts["meta.json"] = {**parts["meta.json"], "id": name}  # type: ignore[dict-item]
    write_bundle(tmp_path, name, {k: json.dumps(v).encode() for k, v in parts.items()})
    found = read_bundle(tmp_path, name)
    assert found.problems == []
    assert "fingerprint f" in bundle_text(found, NOW)
    assert "when it was asked before" in bundle_text(found, NOW)


def test_a_terminal_is_not_steered_by_what_an_engine_wrote(tmp_path: Path) -> None:
    name = put(tmp_path, 0, **{"stderr_tail.txt": b"\x1b]0;owned\x07 \x1b[2J\r\xc2\x9b1m\n"})
    text = bundle_text(read_bundle(tmp_path, name), NOW)
    assert "owned" in text
    assert not set("\x1b\x07\r\x9b") & set(text)


def test_torn_and_unfinished_records_are_told_as_such() -> None:
    found = view(is_torn=True, crash=crash(is_whole=False, frames=("a+0x1",) * 20))
    assert any("may not belong together" in line for line in doing_lines(found))
    lines = crash_lines(crash(is_whole=False, frames=("a+0x1",) * 20))
    assert "not finished" in lines[0]
    assert lines[-1] == "  and 8 more frames"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("ids 1 2 3 4 5 6 7 8 end", "ids [8 numbers removed] end"),
        ("[11, 12, 13, 14, 15, 16, 17, 18, 19]", "[[9 numbers removed]]"),
        ("1,2,3,4,5,6,7", "1,2,3,4,5,6,7"),
        ("1\n2\n3\n4\n5\n6\n7\n8.", "[8 numbers removed]."),
        ("layer 3, rows 12, step 4: 1.5 2.5 3.5 4.5 5.5 6.5 7.5 8.5", None),
        ("0x12 0x13 0x14 0x15 0x16 0x17 0x18 0x19 0x20", None),
        ("key sk-canary-123 here", "key [hidden] here"),
        ("ab", None),
    ],
)
def test_redaction(text: str, clean: str | None) -> None:
    redactor = Redactor(["sk-canary-123", "ab"])
    expected = text if clean is None else clean
    assert redactor.clean(text) == expected
    assert redactor.clean(expected) == expected
    assert not redactor.numbers_in(expected)
    assert not redactor.secret_in(expected.encode())


def test_redaction_is_quick_on_long_rows() -> None:
    text = "7" * 300_000 + " 1 2 3 4 5 6 7 " * 20_000 + "," * 300_000
    assert len(Redactor().clean(text)) < len(text)


def test_memory_of_this_machine() -> None:
    found = machine_memory(5)
    assert found.total_bytes > found.available_bytes > 0
    assert found.supervisor_rss_bytes > 1 << 20
    assert found.engine_rss_bytes == 5
    pressure = msgspec.structs.replace(found, pressure="some avg10=12.50 avg60=0.00 total=1")
    assert pressure.pressure_share == 12.5
    assert msgspec.structs.replace(found, pressure="some avg10=1.2.3").pressure_share is None
