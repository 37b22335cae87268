"""The whole supervisor as a process of its own, with a scripted engine behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pytest
import strata
from strata.engines import stale
from strata.observe.status_client import read_state

from tests.supervisor.conftest import SOURCES, write_fake

MODEL = Path(__file__).resolve().parents[1] / "data" / "oracle" / "tiny-llama.gguf"
READY = re.compile(rb"ready: (http://\S+)/v1  model (\S+)")
PYTHONPATH = os.pathsep.join([str(Path(strata.__file__ or "").parent.parent), *SOURCES])


@dataclass
class Served:
    process: asyncio.subprocess.Process
    base: str
    run_dir: Path
    session: aiohttp.ClientSession
    shown: bytes  # on standard output until the ready line

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.base + path) as response:
            return response.status, await response.text()

    async def status(self) -> dict[str, object]:
        found: dict[str, object] = json.loads((await self.get("/v1/status"))[1])
        return found

    async def engine_pid(self) -> int:
        engine = (await self.status())["engine"]
        assert isinstance(engine, dict)
        return int(engine["pid"])

    async def complete(self, max_tokens: int = 2) -> aiohttp.ClientResponse:
        body = {"model": "default", "prompt": [5, 6], "max_tokens": max_tokens}
        return await self.session.post(self.base + "/v1/completions", json=body)


async def start(
    folder: Path,
    *flags: str,
    behaviours: list[dict[str, object]] | None = None,
    limits: str = ":",  # a shell command that sets limits of the process
    verb: str = "serve",
) -> asyncio.subprocess.Process:
    engine = write_fake(folder, behaviours or [{}])
    return await asyncio.create_subprocess_exec(
        "sh", "-c", f'{limits}; exec "$@"', "sh", sys.executable, "-m", "strata", verb,
        "--model", str(MODEL), "--engine", str(engine),
        *(("--port", "0", "--run-dir", str(folder / "run")) if verb == "serve" else ()), *flags,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": PYTHONPATH}, cwd=folder,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def served(
    folder: Path,
    *flags: str,
    behaviours: list[dict[str, object]] | None = None,
    limits: str = ":",
) -> AsyncIterator[Served]:
    process = await start(folder, *flags, behaviours=behaviours, limits=limits)
    assert process.stdout is not None
    shown = b""
    try:
        async with asyncio.timeout(30), aiohttp.ClientSession() as session:
            while not (found := READY.search(shown)):
                line = await process.stdout.readline()
                if not line:
                    assert process.stderr is not None
                    pytest.fail((await process.stderr.read()).decode())
                shown += line
            yield Served(process, found.group(1).decode(), folder / "run", session, shown)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.communicate()


async def command(*argv: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "strata", *argv,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def gone(pid: int) -> None:
    """Waits until a process that is not our child has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        await asyncio.to_thread(psutil.Process(pid).wait, 10)


async def test_serves_shows_and_drains(tmp_path: Path) -> None:
    async with served(tmp_path, "--log-format", "json") as s:
        assert b"mode" in s.shown
        assert b"batch" in s.shown
        assert await s.get("/health/live") == (200, '{"status":"live"}')
        assert (await s.get("/health/ready"))[0] == 200
        assert (await s.get("/health"))[0] == 200
        async with await s.complete() as response:
            assert response.status == 200
            assert (await response.json())["usage"]["completion_tokens"] == 2
        status, metrics = await s.get("/metrics")
        assert status == 200
        for line in (
            "strata_engine_up 1.0",
            'strata_engine_state{state="ready"} 1.0',
            "strata_engine_starts_total 1.0",
            'strata_requests_total{outcome="length"} 1.0',
            "strata_generated_tokens_total 2.0",
            "strata_time_to_first_token_seconds_count 1.0",
            "vllm:generation_tokens_total 2.0",
            "vllm:num_requests_running 0.0",
            'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 1.0',
        ):
            assert line in metrics
        run_dir = str(s.run_dir)
        code, text = await command("status", "--run-dir", run_dir)
        assert code == 0
        assert "READY" in text
        assert "1 start, 0 crashes" in text
        assert " tok/s over the last 10 s" in text
        assert "prefix cache 50 % of" in text
        assert f"pid {await s.engine_pid()}" in text
        code, text = await command("status", "--run-dir", run_dir, "--json")
        assert json.loads(text)["state"] == "ready"
        assert (s.run_dir / "status.sock").stat().st_mode & 0o777 == 0o600
        s.process.send_signal(signal.SIGTERM)
        assert await s.process.wait() == 0
        assert s.process.stderr is not None
        for logged in (await s.process.stderr.read()).splitlines():
            assert {"ts", "lvl", "ev", "pid", "msg"} <= json.loads(logged).keys()
        code, text = await command("status", "--run-dir", run_dir)
        assert code == 4
        assert "no supervisor is running" in text
        left = read_state(s.run_dir)
        assert left is not None
        assert left.status.state == "stopped"


async def test_engine_killed_service_stays(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        first = await s.engine_pid()
        os.kill(first, signal.SIGKILL)
        async with await s.complete() as response:  # waits for the next engine
            assert response.status == 200
        status = await s.status()
        assert await s.engine_pid() != first
        restarts = status["restarts"]
        assert isinstance(restarts, dict)
        assert (restarts["starts"], restarts["crashes"]) == (2, 0)  # killed from outside
        assert "killed by SIGKILL (9)" in restarts["last"]["text"]


async def test_killed_supervisor_leaves_no_engine(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        pid = await s.engine_pid()
        s.process.kill()
        await s.process.wait()
        await gone(pid)
        assert not psutil.pid_exists(pid)


async def test_next_supervisor_ends_an_engine_left_behind(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    orphan = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    stale.write_record(run_dir, orphan.pid, 3, "an earlier run")
    async with served(tmp_path):
        assert await orphan.wait() == -signal.SIGKILL


async def test_recycled_pid_is_not_touched(tmp_path: Path) -> None:
    bystander = await asyncio.create_subprocess_exec("sleep", "1000", start_new_session=True)
    try:
        stale.write_record(tmp_path, bystander.pid, 3, "an earlier run")
        record = json.loads((tmp_path / stale.RECORD_NAME).read_text())
        record["start_time"] = "1"
        (tmp_path / stale.RECORD_NAME).write_text(json.dumps(record))
        assert stale.end_stale_engine(tmp_path) is None
        assert bystander.returncode is None
        assert stale.read_record(tmp_path) is None
    finally:
        bystander.kill()
        await bystander.wait()


async def test_one_supervisor_per_run_directory_and_port(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        second = await start(tmp_path)
        _, err = await second.communicate()
        assert second.returncode == 73
        assert f"in use by another supervisor (pid {s.process.pid})".encode() in err
        other = tmp_path / "other"
        other.mkdir()
        third = await start(other, "--port", s.base.rpartition(":")[2])
        _, err = await third.communicate()
        assert third.returncode == 69
        assert b"choose another with --port" in err


async def test_start_on_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """A limit of file size stands for the disk: the first byte written fails the same way."""
    process = await start(tmp_path, limits="ulimit -f 0")
    _, err = await process.communicate()
    assert process.returncode == 73
    assert err.decode().splitlines() == [
        f"strata-supervisor: run directory {tmp_path / 'run'} cannot be written: File too large"
    ]


async def test_run_directory_replaced_by_a_file_ends_cleanly(tmp_path: Path) -> None:
    async with served(tmp_path) as s:
        s.run_dir.rename(tmp_path / "moved")
        s.run_dir.write_text("not a directory")
        s.process.send_signal(signal.SIGTERM)
        assert await s.process.wait() == 0


async def test_descriptors_and_backlog_carry_many_clients(tmp_path: Path) -> None:
    """While the supervisor stands still the kernel alone takes connections, as in a burst."""
    async with served(tmp_path, limits="ulimit -Sn 64") as s:
        soft, hard = psutil.Process(s.process.pid).rlimit(psutil.RLIMIT_NOFILE)
        assert soft == hard > 64
        host, _, port = s.base.removeprefix("http://").rpartition(":")
        s.process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(10):
            burst = await asyncio.gather(
                *(asyncio.open_connection(host, int(port)) for _ in range(400))
            )
        s.process.send_signal(signal.SIGCONT)
        for _, writer in burst:
            writer.close()
        assert (await s.get("/health/live"))[0] == 200


async def test_http_answers_while_the_engine_loads_and_when_it_refuses(tmp_path: Path) -> None:
    refuse: dict[str, object] = {
        "refuse": [{"code": "kernel.missing", "text": "no kernel for iq9_z"}]
    }
    process = await start(tmp_path, behaviours=[refuse])
    try:
        base = await listening(process, tmp_path / "run")
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            async with session.get(base + "/health/live") as response:
                assert response.status == 200
            body: dict[str, object] = {}
            while body.get("status") != "refused":
                async with session.get(base + "/health/ready") as response:
                    assert response.status == 503
                    assert 1 <= int(response.headers["Retry-After"]) <= 55
                    body = await response.json()
            assert "no kernel for iq9_z [kernel.missing]" in str(body["reason"])
            answer = ""
            while "iq9_z" not in answer:
                ask = session.post(
                    base + "/v1/completions", json={"model": "default", "prompt": [5]}
                )
                async with ask as response:
                    assert response.status == 503
                    answer = (await response.json())["error"]["message"]
        code, text = await command("status", "--run-dir", str(tmp_path / "run"))
        assert code == 3
        assert "REFUSED" in text
        closing = f"the service stays up, answers 503 and tries again when {MODEL} or the engine"
        shown, log = "", process.stderr
        assert log is not None
        async with asyncio.timeout(20):  # it is said once the file's text part is known to serve
            while closing not in shown:
                shown += (await log.readline()).decode()
        process.send_signal(signal.SIGTERM)
        _, rest = await process.communicate()
        assert process.returncode == 0
        assert closing not in rest.decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def until_cut(response: aiohttp.ClientResponse) -> bytes:
    """The body of a response that is cut, not ended: a client must not take it for whole."""
    body = b""
    try:
        async for chunk in response.content.iter_any():
            body += chunk
    except aiohttp.ClientPayloadError:
        return body
    pytest.fail("the body ended as if it were whole")


async def listening(process: asyncio.subprocess.Process, run_dir: Path) -> str:
    """The address the supervisor logs when it starts."""
    assert process.stderr is not None
    async with asyncio.timeout(20):
        while line := await process.stderr.readline():
            if found := re.search(rb"(http://\S+)", line):
                return found.group(1).decode()
    pytest.fail("the supervisor ended before it listened")


async def test_drain_finishes_streams_and_refuses_new_requests(tmp_path: Path) -> None:
    async with served(tmp_path, behaviours=[{"max_context": 3000, "tokens_max": 1}]) as s:
        body = {"model": "default", "prompt": [5], "max_tokens": 50, "stream": True}
        async with s.session.post(s.base + "/v1/completions", json=body) as stuck:
            assert (await stuck.content.readline()).startswith(b"data: ")
            s.process.send_signal(signal.SIGTERM)
            ready = 200
            while ready == 200:
                ready, _ = await s.get("/health/ready")
            async with await s.complete() as refused:
                assert refused.status == 503
                assert (await refused.json())["error"]["code"] == "draining"
            s.process.send_signal(signal.SIGINT)  # a second one: now
            rest = await until_cut(stuck)
            assert rest.count(b"shutting_down") == 1
            assert b"[DONE]" not in rest
        assert await s.process.wait() == 0


async def test_hurried_end_with_an_engine_that_goes_on_is_no_fault(tmp_path: Path) -> None:
    """The engine sends TOKENS for requests that the end of the drain has answered, and dies."""
    behaviours: list[dict[str, object]] = [
        {"max_context": 100_000, "ignore_cancel": True, "ignore_drain": True}
    ]
    async with served(tmp_path, "--drain-s", "0.1", behaviours=behaviours) as s:
        host, _, port = s.base.removeprefix("http://").rpartition(":")
        # A request that is still on its way keeps HTTP from ending at once.
        _, halfway = await asyncio.open_connection(host, int(port))
        halfway.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        body = {"model": "default", "prompt": [5], "max_tokens": 90_000, "stream": True}
        async with s.session.post(s.base + "/v1/completions", json=body) as stream:
            assert (await stream.content.readline()).startswith(b"data: ")
            pid = await s.engine_pid()
            s.process.send_signal(signal.SIGTERM)
            assert b"shutting_down" in await until_cut(stream)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        assert s.process.stderr is not None
        log = (await s.process.stderr.read()).decode()
        halfway.close()
        assert await s.process.wait() == 0
    assert "broke the protocol" not in log
    assert log.count("engine started: ") == 1
    assert (tmp_path / "script.json.starts").read_text() == "1"


@pytest.mark.parametrize("closed", [">&-", "<&- >&-"])
async def test_plan_without_standard_output_ends_quietly(tmp_path: Path, closed: str) -> None:
    engine = str(write_fake(tmp_path, [{"silent_at": "plan"}]))
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-c", f'exec "$@" {closed}', "sh",
        sys.executable, "-m", "strata", "plan", str(MODEL), "--engine", engine,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )  # fmt: skip
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


async def test_nobody_reads_standard_output(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "strata", "config", cwd=tmp_path,
        stdout=write, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )  # fmt: skip
    os.close(write)
    _, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")


def test_a_service_without_a_terminal_does_without_what_draws_on_one() -> None:
    """What it holds for weeks is what it needs."""
    program = (
        "import sys, strata.cli, strata.cli_serve, strata.cli_http, strata.text.model\n"
        "from strata.observe.output import Output\n"
        "from strata.observe.terminal import Terminal\n"
        "output = Output()\n"
        "terminal = Terminal(output, with_progress=True)\n"
        "terminal.show_progress('map', 1024, 2048, 'bytes')\n"
        "terminal.show_modes([], [])\n"
        "terminal.show_ready('http://host', 'name', 1.0)\n"
        "terminal.close(); output.close()\n"
        "print(sorted(m for m in sys.modules if m.partition('.')[0] in ('rich', 'pygments')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "loading: map 50 %, 1.0 KiB of 2.0 KiB\n"
    lines = done.stdout.splitlines()
    assert lines[-2:] == ["ready: http://host/v1  model name  (1.0 s)", "[]"]
