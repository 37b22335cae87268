"""Needs from a request to an engine that lacks one: refused, before READY and after, or told by
the engine itself; a request that needs less is served.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from strata.serving.request import Failed, Finished, Paused, RejectedError
from strata_protocol.features import FIELDS, Feature
from strata_protocol.messages import ErrorKind

from tests.supervisor.conftest import RigMaker, collect

WITHOUT_PENALTIES = [f.value for f in FIELDS if f is not Feature.PENALTIES]
TEXT = "presence_penalty needs penalties, which the running mode (batch 4, no drafts) does not have"


def modes(folder: Path) -> list[int]:
    """Of each SUBMIT and RESUME that the scripted engine got."""
    (path,) = folder.rglob("script.json.modes")
    return [int(line) for line in path.read_text().split()]


async def test_served_or_refused(make_rig: RigMaker) -> None:
    async with make_rig({"features": WITHOUT_PENALTIES}) as rig:
        await rig.ready()
        facts = rig.service.facts
        assert facts is not None
        (mode,) = facts.serving
        assert mode.features == FIELDS.keys() - {Feature.PENALTIES}
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
        text = "the request needs top_k, which its mode does not have"
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


async def test_what_drafts_do_not_serve_runs_without_them_beside_what_they_do(
    make_rig: RigMaker, tmp_path: Path
) -> None:
    """Served by the first mode, routed to the second, refused: each by what it needs."""
    without = WITHOUT_PENALTIES[:-1]
    drafting = {"spec": 2, "draft_features": without, "features": list(FIELDS)[:-1]}
    async with make_rig({**drafting, "gather": 2}) as rig:
        await rig.ready()
        assert rig.service.facts is not None
        names = [mode.name for mode in rig.service.facts.serving]
        assert names == ["batch 4, up to 2 drafts", "batch 4, no drafts"]
        both = [await rig.submit([1, 2], top_k=5), await rig.submit([1, 2], presence_penalty=0.5)]
        ended = await asyncio.gather(*(collect(handle) for handle in both))
        assert all(isinstance(events[-1], Finished) for events in ended)
        assert modes(tmp_path) == [0, 1]
        with pytest.raises(RejectedError, match="echo needs prompt_logprobs, which none of the"):
            await rig.submit([1, 2], prompt_logprobs=0)


async def test_a_resumed_request_is_placed_by_the_engine_that_goes_on_with_it(
    make_rig: RigMaker, tmp_path: Path
) -> None:
    drafting = {"spec": 2, "draft_features": WITHOUT_PENALTIES}
    dies = {"die_at": "tokens", "die_after": 2}
    async with make_rig(dies, drafting) as rig:
        await rig.ready()
        events = await collect(await rig.submit([1, 2], presence_penalty=0.5, max_tokens=8))
        assert isinstance(events[-1], Finished)
        assert modes(tmp_path) == [0, 1]


async def test_a_mode_that_an_engine_did_not_state(make_rig: RigMaker) -> None:
    """READY decides, not CAPS: what was planned with drafts may run without."""
    drafting = {"spec": 2, "draft_features": WITHOUT_PENALTIES, "runs": {"spec": 0, "mtp": "off"}}
    async with make_rig(drafting) as rig:
        await rig.ready()
        assert rig.service.facts is not None
        assert [mode.name for mode in rig.service.facts.serving] == ["batch 4, no drafts"]
        events = await collect(await rig.submit([1, 2], presence_penalty=0.5))
        assert isinstance(events[-1], Finished)
