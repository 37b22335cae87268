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
    """The second crash alike takes the mode of prompt rows out, which is tried before the request
    is convicted; without it the request kills once more."""
    async with make_rig(DEADLY) as rig:
        await rig.ready()
        last = (await collect(await rig.submit([5, POISON], max_tokens=60)))[-1]
        assert isinstance(last, Failed)
        assert last.code == "request_quarantined"
        assert rig.owner.view.crashes == 3
        await rig.ready(starts=4)
        with pytest.raises(RejectedError, match="ended the engine 3 times"):
            await rig.submit([5, POISON], max_tokens=60)


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
