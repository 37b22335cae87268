"""Memory that runs out on the last rung: the engine is asked for less, step by step, then HOLD."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from strata.engines.exits import ExitClass
from strata.engines.less import CONTEXT_LEAST, Less, less_than
from strata.engines.modes import Rung
from strata.engines.owner_view import EngineState
from strata.engines.restart import CLEAN_S, Ended, Hold, RestartPolicy, StartAfter
from strata.engines.restart_state import RestartState
from strata.engines.restart_store import FILE_NAME
from strata.engines.rungs import Ladder
from strata_protocol.messages import ModePlan, WantedModes

from tests.supervisor.conftest import RigMaker
from tests.supervisor.crash_facts import plan

OOM = Ended(ExitClass.OOM)
HOUR = 3600.0


def ran(less: Less | None) -> ModePlan:
    """As an engine plans within bounds: the pool holds every sequence in full where it may."""
    most = less or Less()
    batch = most.batch or 8
    context = most.max_context or 8192
    return plan(batch=batch, max_context=context, kv_tokens=most.kv_tokens or batch * context)


def one_rung(less: Less | None) -> Ladder:
    return Ladder((Rung("full", ran(less)),), (1,))


def test_tokens_of_kv_go_first_then_context_then_batch_and_then_nothing() -> None:
    less, seen = None, []
    while (less := less_than(ran(less), less)) is not None:
        seen.append((less.kv_tokens, less.max_context, less.batch))
    assert seen == [
        (32768, 0, 0), (16384, 0, 0), (8192, 0, 0),
        (4096, 4096, 0), (2048, 2048, 0), (1024, 1024, 0), (512, 512, 0), (256, 256, 0),
        (256, 256, 4), (256, 256, 2), (256, 256, 1),
    ]  # fmt: skip
    assert min(context for _, context, _ in seen if context) == CONTEXT_LEAST


def test_what_is_asked_keeps_within_the_bounds() -> None:
    less = Less(kv_tokens=4096, max_context=2048)
    assert less.of(WantedModes()) == WantedModes(kv_tokens=4096, max_context=2048)
    small = WantedModes(max_context=512, batch=2)
    assert less.of(small) == WantedModes(max_context=512, batch=2, kv_tokens=4096)
    assert less.text == "kv_tokens 4096, max_context 2048"


def start(policy: RestartPolicy, now: float) -> ModePlan:
    policy.on_started(now)
    ladder = one_rung(policy.state.less)
    index, _ = policy.choose(ladder, now)
    return ladder.rungs[index].plan


def test_every_start_is_asked_for_less_until_hold_and_none_is_tried_twice() -> None:
    policy, now = RestartPolicy(lambda: 1.0), 0.0
    policy.on_place("here", now)
    tried: list[ModePlan] = []
    while True:
        tried.append(start(policy, now))
        policy.on_ready(now)
        decision = policy.on_exited(OOM, now)
        if policy.state.is_held:
            break
        assert isinstance(decision, StartAfter)
        is_last = decision.step is None
        assert is_last == (less_than(tried[-1], policy.state.less) is None)
        now += 1.0 if is_last else HOUR  # starts of an hour are bounded
    assert isinstance(decision, Hold)
    assert len(tried) == 12 + 2  # the plainest has three tries, as where there is no lower rung
    assert len({repr(found) for found in tried}) == 12
    assert tried[-1].batch == 1


def test_a_long_clean_time_asks_for_all_again() -> None:
    policy = RestartPolicy(lambda: 1.0, RestartState(less=Less(kv_tokens=512)))
    start(policy, 0)
    policy.on_ready(0)
    assert not policy.is_step_up_due(CLEAN_S - 1)
    assert policy.is_step_up_due(CLEAN_S)
    policy.on_made_room(CLEAN_S)
    assert start(policy, CLEAN_S) == ran(None)


def test_strict_is_never_asked_for_less() -> None:
    policy = RestartPolicy(lambda: 1.0, is_strict=True)
    start(policy, 0)
    assert policy.on_exited(OOM, 0) == StartAfter(0.0)
    assert policy.state.less is None


async def test_the_engine_is_offered_less_and_the_table_says_why(
    make_rig: RigMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.engines.restart.DELAY_MAX_S", 0.0)
    roomy: dict[str, object] = {"max_context": 1024}
    dies = {"die_at": "progress", "exit": 71, **roomy}
    async with make_rig(dies, dies, dies, roomy, batch=4) as rig:
        await rig.ready(starts=4)
        assert rig.owner.view.state is EngineState.READY
        epoch = rig.owner.view.epoch
        assert epoch is not None
        rows = {row.name: row for row in epoch.handshake.rows}
        codes = [e.code for e in rig.owner.view.decisions.entries()]
        assert codes.count("restart.stepped_down") == 3
        kept = json.loads((tmp_path / "run" / FILE_NAME).read_text())["state"]["less"]
        assert (kept["kv_tokens"], kept["max_context"]) == (256, 256)  # 1024, 512, 256
        for name in ("kv_tokens", "max_context"):
            assert rows[name].runs == "256"
            assert [reason.code for reason in rows[name].because] == ["mem.host"]
