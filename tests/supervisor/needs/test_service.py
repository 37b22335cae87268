"""Needs from a request to an engine that lacks one: refused, before READY and after, or told by
the engine itself; a request that needs less is served.
"""

from __future__ import annotations

import asyncio

import pytest
from strata.serving.request import Failed, Finished, Paused, RejectedError
from strata_protocol.features import FIELDS, Feature
from strata_protocol.messages import ErrorKind

from tests.supervisor.conftest import RigMaker, collect

WITHOUT_PENALTIES = [f.value for f in FIELDS if f is not Feature.PENALTIES]
TEXT = "presence_penalty needs penalties, which the running mode (batch 4, no drafts) does not have"


async def test_served_or_refused(make_rig: RigMaker) -> None:
    async with make_rig({"features": WITHOUT_PENALTIES}) as rig:
        await rig.ready()
        facts = rig.service.facts
        assert facts is not None
        assert facts.features == FIELDS.keys() - {Feature.PENALTIES}
        with pytest.raises(RejectedError, match=r"presence_penalty needs penalties") as refused:
            await rig.submit([1, 2], presence_penalty=0.5)
        error = refused.value
        assert (error.kind, error.code) == (ErrorKind.UNSUPPORTED, "mode_unsupported")
        assert (error.text, error.param) == (TEXT, "presence_penalty")
        events = await collect(await rig.submit([1, 2], top_k=5, logprobs=1))
        assert isinstance(events[-1], Finished)


async def test_what_waits_for_ready_is_judged_then(make_rig: RigMaker) -> None:
    async with make_rig({"features": WITHOUT_PENALTIES}) as rig:
        assert rig.service.facts is None
        penalised = await rig.submit([1, 2], presence_penalty=0.5)
        plain = await rig.submit([1, 2])
        assert await collect(penalised) == [
            Failed(ErrorKind.UNSUPPORTED, "mode_unsupported", TEXT, "presence_penalty")
        ]
        assert isinstance((await collect(plain))[-1], Finished)


async def test_a_restart_into_a_mode_that_has_less(make_rig: RigMaker) -> None:
    async with make_rig({"die_at": "submit"}, {"features": WITHOUT_PENALTIES}) as rig:
        await rig.ready()
        both = [await rig.submit([1, 2], presence_penalty=0.5), await rig.submit([1, 2])]
        penalised, plain = await asyncio.gather(*(collect(handle) for handle in both))
        (paused, failed) = penalised
        assert isinstance(paused, Paused)
        assert failed == Failed(ErrorKind.UNSUPPORTED, "mode_unsupported", TEXT, "presence_penalty")
        assert isinstance(plain[-1], Finished)


async def test_an_engine_that_differs_from_what_it_said(make_rig: RigMaker) -> None:
    async with make_rig({"lacks": ["top_k"]}) as rig:
        await rig.ready()
        events = await collect(await rig.submit([1, 2], top_k=5))
        text = "the request needs top_k, which this engine does not have"
        assert events == [Failed(ErrorKind.UNSUPPORTED, "mode_unsupported", text)]
        assert isinstance((await collect(await rig.submit([1, 2])))[-1], Finished)
        assert rig.observer.exits == []


async def test_an_engine_that_states_nothing_decodes_greedily(make_rig: RigMaker) -> None:
    async with make_rig({"features": []}) as rig:
        await rig.ready()
        with pytest.raises(RejectedError, match="temperature needs sampling"):
            await rig.submit([1, 2])
        events = await collect(await rig.submit([1, 2], temperature=0.0, stop_ids=[99]))
        assert isinstance(events[-1], Finished)
