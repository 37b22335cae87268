"""The application that answers before the model's text part is there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import msgspec
import pytest
from aiohttp import web
from strata.api.app import make_runner
from strata.api.operations import boot_app, operations_routes
from strata.observe.status import Status

from tests.api.test_errors import check_shape

PATHS = ("/v1/status", "/metrics", "/v1/models", "/v1/chat/completions", "/nothing")
KEY = {"Authorization": "Bearer secret"}
OPEN = ("/health", "/health/live", "/health/ready")


def loading(state: str = "loading", reason: str = "reading the model") -> Status:
    return msgspec.convert(
        {
            "state": state,
            "reason": reason,
            "model": {"name": "tiny", "path": "tiny.gguf"},
            "modes": [],
            "engine": None,
            "restarts": {"starts": 0, "crashes": 0},
            "load": {},
            "supervisor": {"pid": 1, "version": "0", "uptime_s": 0, "url": "", "run_dir": ""},
        },
        Status,
    )


@pytest.fixture
async def boot() -> AsyncIterator[tuple[str, list[Status]]]:
    """The address of a boot application with the key `secret`, and the status it shows last."""
    shown = [loading()]
    routes = operations_routes(lambda: shown[-1], lambda _: b"metrics")
    runner = make_runner(boot_app(routes, lambda: shown[-1], api_keys=["secret"]), shutdown_s=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield f"http://{host}:{port}", shown
    await runner.cleanup()


async def test_keys_count_during_boot(boot: tuple[str, list[Status]]) -> None:
    base, _ = boot
    async with aiohttp.ClientSession() as http:
        for path in PATHS:
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                async with http.get(base + path, headers=headers) as response:
                    assert response.status == 401
                    assert check_shape(await response.json())["code"] == "invalid_api_key"
        for path in OPEN:
            async with http.get(base + path) as response:
                assert response.status in {200, 503}
        for path in PATHS[:2]:
            async with http.get(base + path, headers=KEY) as response:
                assert response.status == 200
                assert response.headers["Connection"] == "close"


async def test_requests_during_boot_are_told_to_come_back(boot: tuple[str, list[Status]]) -> None:
    base, shown = boot
    async with aiohttp.ClientSession() as http:
        for state, seconds in (("loading", 2), ("hold", 2), ("refused", None)):
            shown.append(loading(state))
            headers = {**KEY, "x-request-id": "mine"}
            async with http.post(base + "/v1/completions", json={}, headers=headers) as response:
                assert response.status == 503
                error = check_shape(await response.json())
                names = ("x-request-id", "x-should-retry", "Retry-After", "retry-after-ms")
                found = [response.headers.get(name) for name in names]
            assert error["message"].endswith(": reading the model")
            if seconds is None:  # a person has to mend something
                assert error["code"] == "engine_refused"
                assert found == ["mine", "false", None, None]
            else:
                assert error["code"] == "model_loading"
                assert found == ["mine", "true", str(seconds), f"{seconds}000"]
