"""The control socket: who may command, what `drain` does; the decision log and its file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from strata import control_server
from strata.control_client import NobodyError, ask
from strata.control_protocol import Answer, Command, DrainCommand
from strata.control_server import close_control, serve_control
from strata.engines.decision_log import ENTRIES_MAX, DecisionLog, Entry
from strata.errors import RunDirError
from strata.observe import decision_file
from strata.observe.decision_file import DecisionFile, append
from strata.observe.decision_read import FILE_NAME, merged, now_lines, read_decisions, why_lines
from strata.observe.words import LINE_WIDTH

from tests.supervisor.test_serve import command, served


def answers(run_dir: Path) -> list[Answer]:
    return list(ask(run_dir, DrainCommand(), silence_s=10))


@contextlib.asynccontextmanager
async def controlled(run_dir: Path, *said: Answer) -> AsyncIterator[list[Command]]:
    heard: list[Command] = []

    async def handle(found: Command) -> AsyncIterator[Answer]:
        heard.append(found)
        for answer in said:
            yield answer

    server = await serve_control(run_dir, handle)
    try:
        yield heard
    finally:
        await close_control(server, run_dir)


async def test_answers_come_until_the_final_one(tmp_path: Path) -> None:
    said = [Answer(text="begun"), Answer(text="done", is_final=True)]
    async with controlled(tmp_path, *said) as heard:
        found = await asyncio.to_thread(answers, tmp_path)
    assert heard == [DrainCommand()]
    assert [(a.text, a.pid) for a in found] == [("begun", os.getpid()), ("done", os.getpid())]
    assert not (tmp_path / "control.sock").exists()


async def test_the_socket_is_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with controlled(tmp_path, Answer(text="done", is_final=True)) as heard:
        assert (tmp_path / "control.sock").stat().st_mode & 0o777 == 0o600
        monkeypatch.setattr(control_server, "peer_uid", lambda _: os.getuid() + 1)
        (found,) = await asyncio.to_thread(answers, tmp_path)
    assert (found.code, found.status, heard) == ("denied", 77, [])
    assert f"user {os.getuid() + 1} may not command" in found.text


async def test_what_is_no_command_is_said_so(tmp_path: Path) -> None:
    async with controlled(tmp_path) as heard:
        for line in (b'{"command": "reboot"}\n', b"\xff\n", b"", b"x" * 100_000 + b"\n"):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "control.sock")
            writer.write(line)
            writer.write_eof()
            said = json.loads(await reader.readline())
            assert (said["code"], said["is_final"]) == ("unknown_command", True)
            writer.close()
    assert heard == []


async def test_an_answer_that_does_not_come(tmp_path: Path) -> None:
    with pytest.raises(NobodyError):
        answers(tmp_path)
    async with controlled(tmp_path):
        with pytest.raises(RunDirError, match="ended without an answer"):
            await asyncio.to_thread(answers, tmp_path)


async def test_drain_finishes_what_runs_and_ends_with_0(tmp_path: Path) -> None:
    async with served(tmp_path, behaviours=[{"max_context": 40_000}]) as s:
        # More than the buffers between take: it runs until it is read.
        body = {"model": "default", "prompt": [5], "max_tokens": 30_000, "stream": True}
        async with s.session.post(s.base + "/v1/completions", json=body) as stream:
            assert (await stream.content.readline()).startswith(b"data: ")
            waiting = asyncio.create_task(command("drain", "--wait", "--run-dir", str(s.run_dir)))
            status = 200
            while status == 200:
                async with s.session.get(s.base + "/health/ready") as response:
                    status, closes = response.status, response.headers.get("Connection")
            assert (status, closes) == (503, "close")
            async with await s.complete() as response:
                assert response.status == 503
                assert response.headers["Connection"] == "close"
                assert (await response.json())["error"]["code"] == "draining"
            assert b"data: [DONE]" in await stream.content.read()
        code, text = await waiting
        assert (code, await s.process.wait()) == (0, 0)
        assert "the service drains: 1 running" in text
        assert text.endswith("the service has ended\n")
        code, text = await command("status", "--why", "--run-dir", str(s.run_dir))
        assert code == 4
        lines = text.splitlines()
        assert "The service was told to end: 1 running" in text
        assert lines.index(next(x for x in lines if "is ready" in x)) < lines.index(
            next(x for x in lines if "told to end" in x)
        )
        assert any(line.startswith("now: down: no supervisor is running") for line in lines)
        code, text = await command("drain", "--run-dir", str(s.run_dir))
        assert (code, text) == (4, f"no supervisor is running for the run directory {s.run_dir}\n")


# --- decisions


def entry(when: float, text: str = "It is so.") -> Entry:
    return Entry(when=when, sentence=text, code="engine.ready")


async def test_decisions_are_kept_in_a_file(tmp_path: Path) -> None:
    times = iter(range(1000))
    log = DecisionLog(lambda: float(next(times)))
    file = DecisionFile(tmp_path, log)
    await file.write()
    assert not (tmp_path / FILE_NAME).exists()
    log.add("engine.ready", "First.")
    await file.write()
    log.add("engine.ready", "Second.")
    await file.write()
    await file.write()
    assert [e.sentence for e in read_decisions(tmp_path)] == ["First.", "Second."]
    for index in range(ENTRIES_MAX + 5):
        log.add("engine.ready", f"{index}.")
    await file.write()
    assert len(read_decisions(tmp_path)) == 2 + ENTRIES_MAX


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_file, "BYTES_MAX", 2000)
    for index in range(100):
        append(tmp_path, [entry(index)])
        assert (tmp_path / FILE_NAME).stat().st_size <= 2000
    found = read_decisions(tmp_path)
    assert [e.when for e in found] == [float(i) for i in range(100 - len(found), 100)]


def test_a_line_cut_off_costs_itself_alone(tmp_path: Path) -> None:
    append(tmp_path, [entry(1), entry(2)])
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes()[:-5])
    append(tmp_path, [entry(3)])
    assert [e.when for e in read_decisions(tmp_path)] == [1, 3]


async def test_a_full_disk_costs_lines_and_they_come_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = DecisionLog(lambda: 1.0)
    away = tmp_path / "run"
    file = DecisionFile(away, log)
    log.add("engine.ready", "First.")
    await file.write()
    await file.write()
    assert caplog.text.count("cannot be written") == 1
    away.mkdir()
    await file.write()
    assert [e.sentence for e in read_decisions(away)] == ["First."]


def test_decisions_are_shown_newest_last_and_once() -> None:
    found = merged([entry(1, "A."), entry(3, "C\x1b[2J.")], [entry(3, "C\x1b[2J."), entry(2, "B.")])
    assert [e.when for e in found] == [1, 2, 3]
    lines = why_lines(found)
    assert [line.partition("  ")[2] for line in lines] == [
        "A.",
        "B.",
        "C\N{REPLACEMENT CHARACTER}[2J.",
    ]
    assert why_lines([]) == ["nothing has been decided yet"]


def test_long_reasons_are_wrapped_and_bounded_as_decisions_and_as_the_state_now() -> None:
    reason = " ".join(["kernel"] * 1000)
    for lines in (why_lines([entry(1, reason)]), now_lines("refused", reason)):
        assert 1 < len(lines) < 10
        assert all(len(line) <= LINE_WIDTH for line in lines)
        assert all(line.startswith("     ") for line in lines[1:])
        assert lines[-1].endswith(" characters more)")
    assert now_lines("ready", "") == ["now: ready"]
    assert now_lines("degraded", "no such type") == ["now: degraded: no such type"]
