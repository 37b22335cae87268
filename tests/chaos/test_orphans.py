"""Engines that do not notice the end of their supervisor: the next one ends them by identity."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import aiohttp
import pytest

from bench.chaos.chaos_folder import ChaosFolder, is_alive, wait_gone
from bench.chaos.served import launch, served
from tests.fakes.chaos_script import EpochScript, Fault
from tests.waiting import until

pytestmark = pytest.mark.chaos
# Neither the kernel nor end-of-file ends it.
DEAF = EpochScript(
    faults=[Fault(do="no_parent_death", at="launch"), Fault(do="freeze_io", at="ready")]
)


async def test_next_supervisor_ends_a_deaf_engine_before_it_starts_its_own(
    folder_of: Callable[..., ChaosFolder],
) -> None:
    folder = folder_of(DEAF, EpochScript())
    async with served(folder) as first:
        old = first.engine()
        assert old is not None
        first.kill()
        first.process.wait()
        assert is_alive(*old)
        second = launch(folder)
        try:
            async with aiohttp.ClientSession() as session:
                await second.ready(session)
            assert not is_alive(*old)
            new = second.engine()
            assert new is not None
            assert new != old
            assert f"ended the engine {old[0]} that an earlier run left behind" in second.log()
            assert not folder.twins
        finally:
            await second.stop()


async def test_stopped_engine_is_no_orphan(folder_of: Callable[..., ChaosFolder]) -> None:
    """SIGKILL of the parent reaches a process that is stopped too."""
    async with served(folder_of(EpochScript())) as service:
        engine = service.engine()
        assert engine is not None
        os.kill(engine[0], signal.SIGSTOP)
        service.kill()
        assert await asyncio.to_thread(wait_gone, *engine, 5.0)


@pytest.mark.parametrize("victim", ["engine", "supervisor"])
async def test_kill_while_the_engine_boots(
    folder_of: Callable[..., ChaosFolder], victim: str
) -> None:
    folder = folder_of(EpochScript(load_ms=2000))
    async with served(folder, waits=False) as service:
        await until(lambda: service.engine() is not None)
        engine = service.engine()
        assert engine is not None
        if victim == "supervisor":
            service.kill()
        else:
            os.kill(engine[0], signal.SIGKILL)
        assert await asyncio.to_thread(wait_gone, *engine, 5.0)
