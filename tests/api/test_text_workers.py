"""Work on text that does not come back costs its own request, and nothing waits for it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import NoReturn

import pytest
from aiohttp import web
from strata.api.app import WORKERS
from strata.api.text_workers import TextWorkers, read_text
from strata.cli_http import serve_http
from strata.errors import TextStuckError
from strata.text.model import TextModel

from tests.api.conftest import StartServer
from tests.text.small_models import small_model

SHORT_S = 0.05


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What stuck work waits for; opened at the end, so that no thread is left."""
    opened = threading.Event()
    yield opened
    opened.set()


async def test_results_and_errors_are_the_works_own() -> None:
    workers = TextWorkers()
    assert await workers.run(lambda: 7) == 7
    with pytest.raises(KeyError, match="no such"):
        await workers.run(lambda: {}["no such"])
    assert await asyncio.gather(*(workers.run(lambda i=i: i) for i in range(50))) == [*range(50)]
    assert workers.stuck == 0
    workers.close()


async def test_stuck_work_is_given_up_and_its_thread_replaced(gate: threading.Event) -> None:
    workers = TextWorkers(count=1, job_s=SHORT_S)
    with pytest.raises(TextStuckError, match="took longer than"):
        await workers.run(gate.wait)
    assert workers.stuck == 1
    assert await workers.run(lambda: "served") == "served"
    assert not workers.failed.is_set()
    workers.close()


async def test_a_thread_that_comes_back_after_all_ends_and_counts_no_more() -> None:
    workers = TextWorkers(count=1, job_s=SHORT_S, stuck_max=2)
    names = set()
    for _ in range(5):
        gate = threading.Event()
        ended = threading.Event()

        def work(gate: threading.Event = gate, ended: threading.Event = ended) -> None:
            names.add(threading.current_thread().name)
            gate.wait()
            ended.set()

        with pytest.raises(TextStuckError):
            await workers.run(work)
        gate.set()
        ended.wait(10)
        for thread in threading.enumerate():
            if thread.name in names:
                thread.join(10)
        assert workers.stuck == 0
    assert len(names) == 5
    assert not workers.failed.is_set()
    workers.close()


async def test_when_the_loop_stood_still_nothing_is_held_against_threads(
    gate: threading.Event,
) -> None:
    """Nor is what they say of themselves written over: they may be done meanwhile."""
    workers = TextWorkers(count=1, job_s=5)
    begun = threading.Event()
    work = asyncio.create_task(workers.run(lambda: (begun.set(), gate.wait(), "done")[-1]))
    await asyncio.to_thread(begun.wait, 10)
    loop, (worker,) = asyncio.get_running_loop(), workers._workers
    worker.since = early = (worker.since[0], worker.since[1] - 10)
    workers._look(loop, loop.time() - 10)
    assert workers.stuck == 0
    assert worker.since is early
    gate.set()
    assert await work == "done"
    workers.close()


async def test_work_whose_caller_has_gone_is_not_begun(gate: threading.Event) -> None:
    workers = TextWorkers(count=1)
    begun = threading.Event()
    first = asyncio.create_task(workers.run(lambda: (begun.set(), gate.wait())))
    await asyncio.to_thread(begun.wait, 10)
    ran = []
    waiting = asyncio.create_task(workers.run(lambda: ran.append("gone")))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    await first
    assert await workers.run(lambda: "next") == "next"
    assert ran == []
    workers.close()


async def test_so_many_stuck_that_the_service_has_to_end(gate: threading.Event) -> None:
    workers = TextWorkers(count=2, job_s=SHORT_S, stuck_max=2)
    found = await asyncio.gather(
        *(workers.run(gate.wait) for _ in range(2)), return_exceptions=True
    )
    assert all(isinstance(error, TextStuckError) for error in found)
    async with asyncio.timeout(10):
        await workers.failed.wait()
    assert workers.stuck == 2
    workers.close()


async def test_the_service_ends_for_it_after_its_requests(gate: threading.Event) -> None:
    workers = TextWorkers(count=1, job_s=SHORT_S, stuck_max=1)
    told = []

    async def build(_: Sequence[web.RouteDef]) -> web.Application:
        application = web.Application()
        application[WORKERS] = workers
        return application

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.setblocking(False)
        serving = asyncio.create_task(
            serve_http(
                listener,
                boot_status,
                lambda _: b"",
                build,
                backlog=8,
                api_keys=[],
                on_whole=lambda: None,
                on_stuck=lambda: told.append("requests"),
            )
        )
        with pytest.raises(TextStuckError):
            await workers.run(gate.wait)
        async with asyncio.timeout(10):
            with pytest.raises(TextStuckError, match="1 of the threads") as caught:
                await serving
    assert caught.value.exit_code == 71
    assert told == ["requests"]
    workers.close()


def boot_status() -> NoReturn:
    raise AssertionError("nobody asks")


class StuckText:
    """The text part of a model whose tokeniser does not come back from some texts."""

    def __init__(self, text: TextModel, gate: threading.Event) -> None:
        self._text = text
        self._gate = gate

    def __getattr__(self, name: str) -> object:
        return getattr(self._text, name)

    def encode_prompt(self, text: str, **options: bool) -> list[int]:
        if "stuck" in text:
            self._gate.wait()
        return self._text.encode_prompt(text, **options)


async def test_a_stuck_request_is_told_and_others_are_served(
    start_server: StartServer, gate: threading.Event
) -> None:
    text = StuckText(small_model(), gate)
    server = await start_server(text=text, workers=TextWorkers(count=1, job_s=SHORT_S))
    async with server.http.post(
        server.url + "/v1/completions", json={"prompt": "stuck", "max_tokens": 1}
    ) as response:
        assert response.status == 500
        assert response.headers["x-should-retry"] == "false"
        assert (await response.json())["error"]["code"] == "text_stuck"
    status, _ = await server.complete(max_tokens=1)
    assert status == 200


async def test_reading_a_models_text_is_bounded(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await read_text(lambda: "text") == "text"
    monkeypatch.setattr("strata.api.text_workers.READ_S", SHORT_S)
    with pytest.raises(TextStuckError):
        await read_text(gate.wait)


def test_a_process_ends_though_work_is_stuck() -> None:
    """An executor's threads would be joined at the interpreter's end, for ever."""
    program = (
        "import asyncio, threading\n"
        "from strata.api.text_workers import TextWorkers\n"
        "async def main():\n"
        "    workers, begun = TextWorkers(), threading.Event()\n"
        "    work = lambda: (begun.set(), threading.Event().wait())\n"
        "    task = asyncio.create_task(workers.run(work))\n"
        "    await asyncio.to_thread(begun.wait)\n"
        "    task.cancel()\n"
        "    workers.close()\n"
        "asyncio.run(main())\n"
        "print('ended')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr
