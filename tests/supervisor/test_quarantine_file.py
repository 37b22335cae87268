"""The quarantine on disk, and the command line that looks at it and clears it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import msgspec
import pytest
from strata import cli
from strata.engines import quarantine_file
from strata.engines.quarantine import Place, QuarantineRecord, QuarantineState
from strata.engines.quarantine_file import FILE_NAME, QuarantineFile, UnreadableError

PLACE = Place(build="1", device="cpu", path="/m.gguf", size=5, mtime_ns=6, header="ab")


def record(mode: str = "batch", **changes: object) -> QuarantineRecord:
    facts: dict[str, object] = {
        "mode": mode, "place": PLACE, "signature": "abc", "sentence": "SIGSEGV (11) in kernel k",
        "state": QuarantineState.QUARANTINED, "count": 2, "first": 1.0, "last": 2.0,
    }  # fmt: skip
    return QuarantineRecord(**{**facts, **changes})  # type: ignore[arg-type]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    records = [record(), record("prefill", state=QuarantineState.SUSPECTED)]
    assert quarantine_file.read(tmp_path) is None
    quarantine_file.write(tmp_path, records)
    assert quarantine_file.read(tmp_path) == records
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"\xff\x00", "malformed"),
        (b"[]", "Expected `object`"),
        (b'{"records": []}', "version"),
        (b'{"version": 2, "records": "of another shape"}', "version 2, this supervisor reads 1"),
        (b'{"version": 1, "records": [{"mode": 3}]}', "Expected `str`"),
        (b'{"version": 1, "x": ' + b"[" * 200_000, "recursion"),
    ],
)
def test_a_file_that_cannot_be_understood_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, why: str
) -> None:
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(UnreadableError, match=why):
        quarantine_file.read(tmp_path)
    synced = QuarantineFile(tmp_path).sync([record()])
    assert (list(synced.records), synced.cleared, synced.problem) == ([], frozenset(), "")
    assert quarantine_file.read(tmp_path) == [record()]
    assert (tmp_path / quarantine_file.ASIDE_NAME).read_bytes() == data
    assert "set aside as quarantine.json.unreadable" in caplog.text


@pytest.mark.parametrize(
    "mode", ["nonsense", "", "batch\n\x1b[2J", "x" * 100_000, "max_context=0", "batch=", "=4"]
)
def test_a_mode_that_is_none_is_set_aside(tmp_path: Path, mode: str) -> None:
    quarantine_file.write(tmp_path, [record(), record(mode)])
    with pytest.raises(UnreadableError, match="which is none") as raised:
        quarantine_file.read(tmp_path)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 200


def test_a_damaged_file_never_raises_anything_else(tmp_path: Path) -> None:
    quarantine_file.write(tmp_path, [record()])
    whole = (tmp_path / FILE_NAME).read_bytes()
    for at in range(len(whole)):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :]):
            (tmp_path / FILE_NAME).write_bytes(data)
            assert QuarantineFile(tmp_path).sync([]).problem == ""


def test_sync_takes_over_what_a_former_supervisor_left(tmp_path: Path) -> None:
    quarantine_file.write(tmp_path, [record()])
    file = QuarantineFile(tmp_path)
    assert list(file.sync([]).records) == [record()]
    assert list(file.sync([record()]).records) == []
    assert quarantine_file.read(tmp_path) == [record()]


def test_sync_finds_what_was_cleared_and_does_not_write_it_again(tmp_path: Path) -> None:
    file = QuarantineFile(tmp_path)
    batch, prefill = record(), record("prefill")
    file.sync([batch, prefill])
    quarantine_file.write(tmp_path, [prefill])
    synced = file.sync([batch, prefill, record("mtp")])
    assert synced.cleared == {batch.id}
    assert quarantine_file.read(tmp_path) == [prefill, record("mtp")]
    assert file.sync([prefill, record("mtp")]).cleared == frozenset()


def test_sync_removes_what_we_removed_ourselves(tmp_path: Path) -> None:
    file = QuarantineFile(tmp_path)
    file.sync([record(), record("mtp")])
    assert list(file.sync([record("mtp")]).records) == []
    assert quarantine_file.read(tmp_path) == [record("mtp")]


def test_a_file_that_is_gone_is_written_again(tmp_path: Path) -> None:
    file = QuarantineFile(tmp_path)
    file.sync([record()])
    (tmp_path / FILE_NAME).unlink()
    assert file.sync([record()]).cleared == frozenset()
    assert quarantine_file.read(tmp_path) == [record()]


def test_a_full_disk_is_a_problem_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    file = QuarantineFile(tmp_path)
    file.sync([record()])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        problem = file.sync([record(), record("mtp")]).problem
        assert problem == f"{tmp_path / FILE_NAME} cannot be written: No space left on device"
    assert quarantine_file.read(tmp_path) == [record()], "the old file is whole"
    assert file.sync([record(), record("mtp")]).problem == ""
    assert quarantine_file.read(tmp_path) == [record(), record("mtp")]


def test_nothing_to_write_needs_no_disk(tmp_path: Path) -> None:
    gone, occupied = tmp_path / "gone", tmp_path / "occupied"
    occupied.write_text("")
    for run_dir in (gone, occupied):
        assert QuarantineFile(run_dir).sync([]).problem == ""
    assert not gone.exists()
    assert "cannot be written" in QuarantineFile(occupied).sync([record()]).problem
    assert QuarantineFile(gone).sync([record()]).problem == ""
    assert quarantine_file.read(gone) == [record()]


def test_the_lock_keeps_others_out(tmp_path: Path) -> None:
    entered, left = threading.Event(), []

    def other() -> None:
        entered.set()
        QuarantineFile(tmp_path).sync([record("mtp")])
        left.append(quarantine_file.read(tmp_path))

    with quarantine_file.locked(tmp_path):
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(10)
        assert quarantine_file.read(tmp_path) is None
        quarantine_file.write(tmp_path, [record()])
    thread.join(10)
    assert left == [[record("mtp"), record()]]


def run(tmp_path: Path, *words: str) -> int:
    return cli.main(["quarantine", *words, "--run-dir", str(tmp_path)])


def test_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    assert "nothing is in quarantine" in capsys.readouterr().out
    quarantine_file.write(tmp_path, [record(), record("mtp", state=QuarantineState.TRIAL)])
    assert run(tmp_path, "list") == 0
    out = capsys.readouterr().out
    assert f"{record().id}  batch  quarantined" in out
    assert "SIGSEGV (11) in kernel k" in out
    assert "2 crashes, the last" in out
    assert "offered again, on trial, at an engine start from now on" in out
    assert f"{record('mtp').id}  mtp  trial" in out
    assert run(tmp_path, "list", "--quarantine-trial-s", "0") == 0
    assert "not offered again until it is cleared" in capsys.readouterr().out


def test_list_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    quarantine_file.write(tmp_path, [record()])
    assert run(tmp_path, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["id"] == record().id
    assert (row["mode"], row["state"], row["count"]) == ("batch", "quarantined", 2)
    assert (row["build"], row["device"], row["model"]) == ("1", "cpu", "/m.gguf")
    assert row["trial_from"] == 2.0 + 6 * 3600


def test_clear_one_and_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [record(), record("mtp"), record("prefill")]
    quarantine_file.write(tmp_path, records)
    assert run(tmp_path, "clear", records[1].id) == 0
    out = capsys.readouterr().out
    assert f"cleared {records[1].id}  mtp" in out
    assert "at its next engine start" in out
    assert quarantine_file.read(tmp_path) == [records[0], records[2]]
    assert run(tmp_path, "clear", "--all", "--json") == 0
    assert [row["mode"] for row in json.loads(capsys.readouterr().out)] == ["batch", "prefill"]
    assert quarantine_file.read(tmp_path) == []
    assert run(tmp_path, "clear", "--all") == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("clear",), "takes the ID of a record, or --all"),
        (("clear", "abc", "--all"), "takes the ID of a record, or --all"),
        (("list", "abc"), "takes neither ID nor --all"),
        (("drop",), "choose from 'list', 'clear'"),
        (("clear", "abc"), "no record abc in"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    quarantine_file.write(tmp_path, [record()])
    assert run(tmp_path, *words) == 78
    assert says in capsys.readouterr().err
    assert quarantine_file.read(tmp_path) == [record()]


def test_the_command_and_a_file_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    for words in (("list",), ("clear", "abc")):
        assert run(tmp_path, *words) == 73
        assert "clear --all` sets it aside" in capsys.readouterr().err
    assert run(tmp_path, "clear", "--all") == 0
    assert (tmp_path / quarantine_file.ASIDE_NAME).read_text() == "{"
    assert run(tmp_path, "list") == 0


def test_the_command_without_a_run_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "none", "list") == 0
    assert run(tmp_path / "none", "clear", "--all") == 0
    assert run(tmp_path / "none", "clear", "abc") == 78
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file", "list") == 73
    assert not (tmp_path / "none").exists()
    assert "is not a directory" in capsys.readouterr().err


def test_records_of_a_future_field_are_read(tmp_path: Path) -> None:
    quarantine_file.write(tmp_path, [record()])
    contents = json.loads((tmp_path / FILE_NAME).read_text())
    contents["records"][0]["colour"] = "red"
    (tmp_path / FILE_NAME).write_bytes(msgspec.json.encode(contents))
    assert quarantine_file.read(tmp_path) == [record()]
