"""The owner with real processes: the ladder, what is kept on disk, making room, hangs, orphans."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from strata.engines.exits import ExitClass
from strata.engines.owner_view import EngineState
from strata.engines.restart_store import FILE_NAME
from strata.serving.request import Finished

from tests.supervisor.conftest import EAGER, Rig, RigMaker, collect, tokens_of

NO_WAIT = "strata.engines.restart.DELAY_MAX_S"
DIES_IN_STEP = {"die_at": "tokens", "signal": signal.SIGSEGV}


def codes(rig: Rig) -> list[str]:
    return [entry.code for entry in rig.owner.view.decisions.entries()]


async def test_three_crashes_lead_one_rung_down_and_the_table_says_why(
    make_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NO_WAIT, 0.0)
    boots = {"die_at": "progress", "signal": signal.SIGSEGV}
    async with make_rig(boots, boots, boots, {}, batch=4) as rig:
        await rig.ready(starts=4)
        assert rig.service.facts is not None
        assert rig.service.facts.plan.batch == 1
        seen = rig.owner.restarts()
        assert (seen.rung, seen.rung_index, seen.is_pinned) == ("batch-1", 1, False)
        epoch = rig.owner.view.epoch
        assert epoch is not None
        (row,) = [row for row in epoch.handshake.rows if row.name == "batch"]
        assert (row.runs, [reason.code for reason in row.because]) == ("1", ["mode.stepped_down"])
        assert "3 crashes of one signature" in row.because[0].text
        assert tokens_of(await collect(await rig.submit([5], max_tokens=2))) == [5, 5]
        assert codes(rig).count("restart.stepped_down") == 1
        assert codes(rig)[-1] == "engine.ready"
    assert not [c for c in codes(rig) if c.startswith("engine.exited.signal")][3:]


async def test_lack_of_memory_goes_to_the_next_smaller_rung_at_once(make_rig: RigMaker) -> None:
    async with make_rig({"die_at": "progress", "exit": 71}, {}, batch=4) as rig:
        await rig.ready(starts=2)
        assert rig.observer.exits[0].exit_class is ExitClass.OOM
        assert rig.service.facts is not None
        assert rig.service.facts.plan.batch == 1


async def test_strict_never_runs_a_lower_rung(
    make_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NO_WAIT, 0.0)
    async with make_rig({"die_at": "progress", "exit": 71}, batch=4, is_strict=True) as rig:
        await rig.state(EngineState.HOLD)
        assert rig.observer.starts == 3
        assert rig.owner.restarts().rung_count == 1


async def test_next_supervisor_keeps_rung_and_counts(
    make_rig: RigMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NO_WAIT, 0.0)
    boots = {"die_at": "progress", "signal": signal.SIGSEGV}
    async with make_rig(boots, boots, boots, {}, batch=4) as rig:
        await rig.ready(starts=4)
    assert (tmp_path / "run" / FILE_NAME).exists()
    async with make_rig({}, batch=4) as rig:
        await rig.ready()
        assert rig.owner.restarts().rung == "batch-1"
        assert rig.owner.restarts().starts_in_hour == 4  # a stop that was asked for counts not
    async with make_rig({}, batch=2) as rig:  # other modes are asked for: nothing is kept
        await rig.ready()
        assert rig.owner.restarts().rung == "full"
        assert "restart.forgotten" in codes(rig)


def looks_of(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[bool]:
    """What each look beside the engine finds: whether it is time for a step up."""
    looks: asyncio.Queue[bool] = asyncio.Queue()
    restarts = rig.owner._restarts
    look = restarts.look

    def counted() -> bool:
        looks.put_nowait(found := look())
        return found

    monkeypatch.setattr(restarts, "look", counted)
    return looks


async def test_idle_engine_makes_room_for_a_higher_rung(
    make_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NO_WAIT, 0.0)
    boots = {"die_at": "progress", "exit": 71}
    async with make_rig(boots, {}, batch=4) as rig:
        await rig.ready(starts=2)
        assert rig.owner.restarts().rung == "batch-1"
    monkeypatch.setattr("strata.engines.owner.STEP_UP_LOOK_S", 0.02)
    async with make_rig({"tokens_max": 1}, batch=4) as rig:
        await rig.ready()
        assert rig.owner.restarts().rung == "batch-1"
        looks = looks_of(rig, monkeypatch)
        busy = await rig.submit([3], max_tokens=2)
        await anext(aiter(busy))
        # From here on: how long the engines before were ready must not count.
        monkeypatch.setattr("strata.engines.restart.CLEAN_S", 0.05)
        monkeypatch.setattr("strata.engines.restart.STEP_UP_EVERY_S", 0.05)
        async with asyncio.timeout(20):
            while not await looks.get():
                pass
            for _ in range(5):  # it is time, but none ends an engine that works
                assert await looks.get()
        assert not rig.observer.exits
        busy.cancel()
        assert isinstance((await collect(busy))[-1], Finished)
        await rig.ready(starts=2)
        assert rig.owner.restarts().rung == "full"
        assert rig.owner.view.crashes == 0
        assert "restart.makes_room" in codes(rig)
        assert "restart.stepped_up" in codes(rig)


async def test_kills_from_outside_are_no_reason_to_wait(make_rig: RigMaker) -> None:
    async with make_rig() as rig:
        for starts in range(1, 15):
            await rig.ready(starts)
            os.kill(rig.pid, signal.SIGKILL)
        await rig.ready(starts=15)
        assert rig.owner.restarts().starts_in_hour == 1
        assert rig.owner.view.crashes == 0


async def test_hang_is_dumped_then_aborted_and_the_signal_is_not_taken_for_a_crash(
    make_rig: RigMaker,
) -> None:
    async with make_rig({"stuck_at": "tokens"}, {}, patience=EAGER) as rig:
        await rig.ready()
        assert tokens_of(await collect(await rig.submit([1], max_tokens=2))) == [1, 1]
        (exited,) = rig.observer.exits
        assert exited.exit_class is ExitClass.HANG
        assert exited.signal == signal.SIGABRT
        assert exited.beacon is not None
        assert exited.beacon.dump is not None
        (entry,) = [e for e in rig.owner.view.decisions.entries() if e.code == "hang.ended"]
        assert entry.sentence.startswith("The engine hangs and is ended: no movement for")


async def test_engine_that_goes_on_when_it_is_asked_is_left_alone(make_rig: RigMaker) -> None:
    patience = EAGER
    async with make_rig({"wakes_on_dump": True, "stuck_at": "tokens"}, patience=patience) as rig:
        await rig.ready()
        assert tokens_of(await collect(await rig.submit([1], max_tokens=3))) == [1, 1, 1]
        assert not rig.observer.exits
        assert codes(rig)[-2:] == ["hang.ended", "hang.went_on"]
