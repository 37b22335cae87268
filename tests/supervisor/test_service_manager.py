"""What a service manager is told, over a socket that stands for systemd's, and the files for it."""

from __future__ import annotations

import asyncio
import configparser
import os
import plistlib
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from strata.config import NotifyEnvironment, take_notify_environment
from strata.errors import HeldError
from strata.observe.status import Status
from strata.service_notify import STATUS_CHARACTERS, ServiceNotifier, status_line

from tests.supervisor.test_serve import served, start
from tests.supervisor.test_status_broken import record

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.settimeout(20)
        yield found


def notifier(
    manager: socket.socket, states: list[Status], watchdog_s: float = 0
) -> ServiceNotifier:
    environment = NotifyEnvironment(manager.getsockname(), int(watchdog_s * 1e6))
    return ServiceNotifier(environment, lambda: states[0])


def told(manager: socket.socket) -> list[str]:
    return manager.recv(65536).decode().split("\n")


def all_told(manager: socket.socket) -> list[str]:
    """What is there already."""
    lines: list[str] = []
    manager.setblocking(False)
    try:
        while True:
            lines += told(manager)
    except BlockingIOError:
        return lines
    finally:
        manager.settimeout(20)


async def test_ready_is_said_once_and_time_is_asked_for_until_then(manager: socket.socket) -> None:
    states = [msgspec.structs.replace(record("loading"), reason="the model is loading: map 5 %")]
    found = notifier(manager, states)
    found.pulse()
    assert told(manager) == [
        "EXTEND_TIMEOUT_USEC=60000000",
        "STATUS=loading: the model is loading: map 5 %",
    ]
    found.pulse()
    assert told(manager) == ["EXTEND_TIMEOUT_USEC=60000000"]
    states[0] = record("ready")
    found.pulse()
    assert told(manager) == [
        "READY=1",
        "STATUS=ready: m, http://127.0.0.1:1; 0 running, 0 waiting",
    ]
    found.pulse()  # nothing is new, so nothing is sent
    states[0] = record("draining")
    found.on_stopping()
    assert told(manager) == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=60000000"]
    found.pulse()
    assert told(manager) == ["EXTEND_TIMEOUT_USEC=60000000", "STATUS=draining"]
    found.close()


@pytest.mark.parametrize("state", ["ready", "degraded", "hold", "refused"])
async def test_a_start_that_is_decided_is_ready(manager: socket.socket, state: str) -> None:
    found = notifier(manager, [record(state)])
    found.pulse()
    assert "READY=1" in told(manager)
    found.close()


async def test_watchdog_comes_from_the_loop(manager: socket.socket) -> None:
    found = notifier(manager, [record("ready")], watchdog_s=0.02)
    assert found.pulse_s == pytest.approx(0.01)
    task = asyncio.create_task(found.run())
    try:
        for _ in range(3):
            assert "WATCHDOG=1" in await asyncio.to_thread(told, manager)
    finally:
        task.cancel()
        found.close()


async def test_a_full_socket_costs_nothing_but_a_message(manager: socket.socket) -> None:
    states = [record("loading")]
    found = notifier(manager, states)
    for _ in range(5000):
        found.pulse()  # loading: each pulse is a message
    states[0] = record("ready")
    found.pulse()  # has no room
    assert "READY=1" not in all_told(manager)
    found.pulse()  # says it again
    assert "READY=1" in told(manager)
    found.close()


async def test_abstract_addresses() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0strata-test-{os.getpid()}")
        manager.settimeout(20)
        found = ServiceNotifier(
            NotifyEnvironment(f"@strata-test-{os.getpid()}"), lambda: record("ready")
        )
        found.pulse()
        assert "READY=1" in told(manager)
        found.close()


async def test_without_a_manager_nothing_is_sent(tmp_path: Path) -> None:
    assert not ServiceNotifier(NotifyEnvironment(), record).is_on
    gone = ServiceNotifier(NotifyEnvironment(str(tmp_path / "none")), record)
    assert not gone.is_on
    gone.pulse()
    await gone.run()  # has nothing to do


def test_the_environment_is_taken_and_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(**found: str) -> NotifyEnvironment:
        for key, value in found.items():
            monkeypatch.setenv(key, value)
        result = take_notify_environment()
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()
        return result

    assert taken() == NotifyEnvironment()
    mine = str(os.getpid())
    both = taken(NOTIFY_SOCKET="/run/n", WATCHDOG_USEC="60000000", WATCHDOG_PID=mine)
    assert both == NotifyEnvironment("/run/n", 60_000_000)
    assert taken(WATCHDOG_USEC="5", WATCHDOG_PID="1").watchdog_usec == 0  # another process's
    assert taken(WATCHDOG_USEC="soon").watchdog_usec == 0


def test_status_is_one_short_line() -> None:
    long = msgspec.structs.replace(record("hold"), reason="crashed\n" * 100)
    line = status_line(long)
    assert line.startswith("hold: crashed crashed")
    assert len(line) == STATUS_CHARACTERS
    assert "\n" not in line


# --- the whole service


async def test_serve_under_a_manager(
    tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    async with served(tmp_path) as s:
        assert "NOTIFY_SOCKET" not in psutil.Process(await s.engine_pid()).environ()
        lines: list[str] = []
        while "READY=1" not in lines:
            lines += await asyncio.to_thread(told, manager)
        assert "EXTEND_TIMEOUT_USEC=60000000" in lines
        assert "WATCHDOG=1" in await asyncio.to_thread(told, manager)
        s.process.send_signal(signal.SIGTERM)
        assert await s.process.wait() == 0
        assert "STOPPING=1" in all_told(manager)


async def test_exit_on_hold_is_a_status_of_its_own(tmp_path: Path) -> None:
    process = await start(
        tmp_path, "--exit-on-hold", behaviours=[{"die_at": "hello", "signal": 11}]
    )
    async with asyncio.timeout(120):
        _, err = await process.communicate()
    assert process.returncode == HeldError.exit_code == 75
    assert err.decode().splitlines()[-1].startswith("strata-supervisor: ")


# --- the files


def unit() -> configparser.RawConfigParser:
    found = configparser.RawConfigParser(strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read(REPOSITORY / "packaging" / "strata.service.in")
    return found


def test_unit_restarts_what_a_restart_can_help() -> None:
    service = unit()["Service"]
    never = {int(status) for status in service["RestartPreventExitStatus"].split()}
    assert {78, 64, 66} <= never
    assert not {0, 70, HeldError.exit_code} & never
    assert service["Restart"] == "on-failure"
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert (service["KillMode"], service["OOMPolicy"]) == ("mixed", "continue")
    assert service["LimitMEMLOCK"] == "infinity"


def test_service_files_are_filled_in(tmp_path: Path) -> None:
    subprocess.run(
        ["make", "-s", "install-service", f"DESTDIR={tmp_path}", "SUPERVISOR=/opt/s",
         "CONFIG=/etc/s.toml", "SERVICE_FILE=/unit"],
        cwd=REPOSITORY, check=True, capture_output=True,
    )  # fmt: skip
    text = (tmp_path / "unit").read_text()
    assert not re.search(r"@[A-Z]+@", text)
    assert "/opt/s serve --config /etc/s.toml" in text


def test_agent_is_a_property_list() -> None:
    with (REPOSITORY / "packaging" / "strata.plist.in").open("rb") as file:
        agent = plistlib.load(file)
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["ProgramArguments"][1:3] == ["serve", "--config"]
