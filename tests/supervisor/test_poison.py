"""Requests that kill engines: found, ended once, and refused; nobody else pays."""

from __future__ import annotations

import asyncio
import signal

import pytest
from strata.serving.request import Event, Failed, Finished, RejectedError
from strata_protocol.messages import ErrorKind

from tests.supervisor.conftest import RigMaker, collect, tokens_of

POISON = 666
DEADLY: dict[str, object] = {"poison": POISON, "signal": signal.SIGSEGV, "batch": 8}


@pytest.mark.parametrize("place", [0, 3, 7])
@pytest.mark.parametrize("handler", ["own", "none"])
async def test_one_among_eight(make_rig: RigMaker, place: int, handler: str) -> None:
    deadly = DEADLY | {"handler": handler}
    async with make_rig(deadly | {"gather": 8}, deadly) as rig:
        await rig.ready()
        prompts = [[n + 1, n + 2] for n in range(8)]
        prompts[place] = [5, POISON]
        handles = [await rig.submit(prompt, max_tokens=60) for prompt in prompts]
        answers: list[list[Event]] = await asyncio.gather(*(collect(h) for h in handles))
        for number, (prompt, events) in enumerate(zip(prompts, answers, strict=True)):
            if number != place:
                assert tokens_of(events) == prompt * 30
                assert isinstance(events[-1], Finished)
        victim = answers[place][-1]
        assert isinstance(victim, Failed)
        assert (victim.kind, victim.code) == (ErrorKind.INVALID_REQUEST, "request_quarantined")
        assert rig.owner.view.crashes <= 2
        with pytest.raises(RejectedError) as refused:
            await rig.submit(prompts[place], max_tokens=60)
        assert (refused.value.kind, refused.value.code) == (victim.kind, victim.code)
        assert refused.value.retry_after_s is None  # x-should-retry: false
        assert rig.service.load().quarantined == 1
        assert tokens_of(await collect(await rig.submit([1], max_tokens=2))) == [1, 1]


async def test_one_that_is_alone_from_the_start(make_rig: RigMaker) -> None:
    """What one request does twice is no second evidence against the mode of prompt rows."""
    async with make_rig(DEADLY) as rig:
        await rig.ready()
        last = (await collect(await rig.submit([5, POISON], max_tokens=60)))[-1]
        assert isinstance(last, Failed)
        assert last.code == "request_quarantined"
        assert rig.owner.view.crashes == 2
        await rig.ready(starts=3)
        assert [row.state.value for row in rig.owner.quarantine()] == ["suspected"]
        with pytest.raises(RejectedError, match="ended the engine 2 times"):
            await rig.submit([5, POISON], max_tokens=60)


async def test_what_another_request_does_is_evidence_against_a_mode(make_rig: RigMaker) -> None:
    """The mode is out at the crash of the second request, and the first is convicted no more."""
    without_prefill = {"poison": -1}
    async with make_rig(DEADLY, DEADLY, DEADLY, without_prefill) as rig:
        await rig.ready()
        last = (await collect(await rig.submit([5, POISON], max_tokens=4)))[-1]
        assert isinstance(last, Failed)
        assert rig.service.load().quarantined == 1
        await rig.ready(starts=3)
        events = await collect(await rig.submit([6, POISON], max_tokens=4))
        assert tokens_of(events) == [6, POISON] * 2
        assert [row.state.value for row in rig.owner.quarantine()] == ["quarantined"]
        assert rig.service.load().quarantined == 0
        assert tokens_of(await collect(await rig.submit([5, POISON], max_tokens=2))) == [5, POISON]


async def test_a_conviction_brings_back_the_mode_that_was_blamed(make_rig: RigMaker) -> None:
    async with make_rig(DEADLY | {"gather": 2}, DEADLY) as rig:
        await rig.ready()
        handles = [await rig.submit(prompt, max_tokens=60) for prompt in ([1, 2], [5, POISON])]
        answers = await asyncio.gather(*(collect(h) for h in handles))
        assert [type(events[-1]) for events in answers] == [Finished, Failed]
        await rig.ready(starts=3)
        assert ("batch", "acquitted") in [(r.mode, r.state.value) for r in rig.owner.quarantine()]
        said = [d.code for d in rig.owner.view.decisions.entries()]
        assert {"mode.quarantined", "mode.acquitted"} <= set(said)
        assert rig.owner.restarts().crashes_in_window == 1, "they count as one"


async def test_all_that_wait_with_the_same_prompt_are_refused(make_rig: RigMaker) -> None:
    async with make_rig(DEADLY) as rig:
        await rig.ready()
        handles = [await rig.submit([POISON], max_tokens=9) for _ in range(3)]
        for handle in handles:
            last = (await collect(handle))[-1]
            assert isinstance(last, Failed)
            assert last.code == "request_quarantined"
        assert rig.owner.view.crashes == 2


async def test_kills_from_outside_make_nobody_suspect(make_rig: RigMaker) -> None:
    killed = {"die_at": "tokens", "die_after": 2, "signal": signal.SIGKILL}
    async with make_rig(killed, killed, {}) as rig:
        await rig.ready()
        events = await collect(await rig.submit([1, 2], max_tokens=8))
        assert tokens_of(events) == [1, 2] * 4
        assert rig.service.load().quarantined == 0


async def test_what_every_request_dies_of_leads_down_and_frees_them(make_rig: RigMaker) -> None:
    """A kernel that fails in steps of one row: no mode is implicated, but the rung is."""
    dies: dict[str, object] = {"die_at": "submit", "signal": signal.SIGSEGV}
    async with make_rig(dies, dies, dies, dies, {}) as rig:
        await rig.ready()
        first = (await collect(await rig.submit([1], max_tokens=4)))[-1]
        assert isinstance(first, Failed)
        await rig.ready(starts=3)
        assert tokens_of(await collect(await rig.submit([2], max_tokens=4))) == [2] * 4
        assert rig.owner.view.crashes == 4, "three that count: those of the first are one"
        assert rig.owner.restarts().rung_index > 0
        assert rig.service.load().quarantined == 0
        assert tokens_of(await collect(await rig.submit([1], max_tokens=2))) == [1] * 2
