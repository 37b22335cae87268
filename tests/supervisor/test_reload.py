"""Another engine takes over, beside the old one or in turn with it; one that fails changes
nothing."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest
from strata.engines import reload as reload_module
from strata.engines import replacer, stale
from strata.engines.course import Course
from strata.engines.epoch import EngineSetup
from strata.engines.handshake import top_rung
from strata.engines.owner_view import EngineState
from strata.engines.process import Launch
from strata.engines.reload import (
    RESERVE_BYTES,
    Reload,
    ReloadError,
    Room,
    Successor,
    Way,
    find_room,
)
from strata.serving.request import Failed, Finished, Handle, Paused

from tests.supervisor.conftest import Rig, RigMaker, collect, tokens_of
from tests.supervisor.test_serve import command, served

TOKENS = 6000  # of a stream that is under way while engines change
SLOW: dict[str, object] = {"max_context": 100_000}  # its readers set the pace


def setup_of(rig: Rig) -> EngineSetup:
    return rig.owner.course.setup


async def reload(rig: Rig, setup: EngineSetup | None = None) -> tuple[str, list[str]]:
    """The outcome and what was said before."""
    said: list[str] = []
    async with asyncio.timeout(30):
        return await rig.owner.reload(Reload(setup or setup_of(rig), said.append)), said


async def begun(rig: Rig, count: int) -> list[Handle]:
    """Streams that have begun and are not read yet: credit stops them far from their end."""
    handles = [await rig.submit([5 + i, 6, 7], TOKENS) for i in range(count)]
    async with asyncio.timeout(20):
        while rig.service.load().waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
    return handles


async def ended_as_one(handles: list[Handle]) -> None:
    """Each has all its tokens in order, whoever computed them."""
    for index, handle in enumerate(handles):
        events = await collect(handle)
        prompt = [5 + index, 6, 7]
        assert tokens_of(events) == [prompt[i % 3] for i in range(TOKENS)]
        assert isinstance(events[-1], Finished)


async def loading(rig: Rig) -> Successor:
    """The engine that is started beside, once it has said what it can run."""

    def has_said() -> bool:
        successor = rig.owner._replacer.successor
        return successor is not None and successor.epoch.handshake.caps is not None

    await rig.observer.until(has_said)
    successor = rig.owner._replacer.successor
    assert successor is not None
    return successor


def in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_room(_: Course) -> Room:
        return Room(Way.IN_TURN, "it needs 2 GiB, 1 GiB are free")

    monkeypatch.setattr(replacer, "find_room", no_room)


def codes(rig: Rig) -> list[str]:
    return [entry.code for entry in rig.owner.view.decisions.entries()]


async def test_streams_go_on_with_an_engine_beside(make_rig: RigMaker, tmp_path: Path) -> None:
    async with make_rig(SLOW) as rig:
        await rig.ready()
        old = rig.pid
        handles = await begun(rig, 3)
        text, said = await reload(rig)
        assert text.startswith("engine start 2 has taken over")
        assert any("there is room for both engines" in line for line in said)
        assert rig.pid != old
        assert rig.owner.view.state is EngineState.READY
        await ended_as_one(handles)
        await rig.observer.until(lambda: rig.observer.starts == 2)
        assert not psutil.pid_exists(old)
        assert [e.exit_class.value for e in rig.observer.exits] == ["stop"]
        view = rig.owner.view
        assert (view.starts, view.crashes) == (2, 0)
        assert "reload.done" in codes(rig)
        # What is known of the engine on disk is the new one's.
        record = await asyncio.to_thread(stale.read_record, tmp_path / "run")
        assert record is not None
        assert record.pid == rig.pid
        assert not (tmp_path / "run" / stale.NEXT_NAME).exists()
        assert len(tokens_of(await collect(await rig.submit([9], 4)))) == 4


async def test_a_file_that_is_no_engine_is_the_new_engines_fault(make_rig: RigMaker) -> None:
    async with make_rig(SLOW) as rig:
        await rig.ready()
        setup = replace(setup_of(rig), launch=Launch(Path("/bin/true"), ()))
        with pytest.raises(ReloadError, match="the new engine: ") as caught:
            await reload(rig, setup)
        assert caught.value.exit_code == 75
        assert str(caught.value).endswith("; the old engine serves on")
        assert rig.owner.view.state is EngineState.READY


async def test_a_refused_service_says_that_it_wants_a_restart(make_rig: RigMaker) -> None:
    async with make_rig({"refuse": [{"code": "kernel.missing", "text": "no kernel"}]}) as rig:
        await rig.state(EngineState.REFUSED)
        with pytest.raises(ReloadError, match="restart the service instead") as caught:
            await reload(rig)
        assert caught.value.exit_code == 75


async def test_a_second_reload_follows_the_first(make_rig: RigMaker) -> None:
    async with make_rig(SLOW) as rig:
        await rig.ready()
        handles = await begun(rig, 2)
        for number in (2, 3, 4):
            text, _ = await reload(rig)
            assert text.startswith(f"engine start {number} has taken over")
            await rig.observer.until(lambda n=number: rig.observer.starts == n)  # type: ignore[misc]
        await ended_as_one(handles)  # more engines than a request may lose
        assert rig.owner.restarts().starts_in_hour == 1


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        ({"die_at": "probe:batch"}, "the new engine killed by SIGKILL"),
        ({"die_at": "ready", "signal": 11}, "the new engine killed by SIGSEGV"),
        ({"refuse": [{"code": "kernel.missing", "text": "no kernel"}]}, "the new engine refuses"),
    ],
)
async def test_an_engine_that_fails_beside_changes_nothing(
    make_rig: RigMaker, failure: dict[str, object], says: str
) -> None:
    async with make_rig(SLOW, SLOW, failure) as rig:  # the second answers what it would need
        await rig.ready()
        old = rig.pid
        handles = await begun(rig, 3)
        with pytest.raises(ReloadError, match=says) as caught:
            await reload(rig)
        assert str(caught.value).endswith("; the old engine serves on")
        if "refuse" in failure:
            assert caught.value.reasons == ["no kernel [kernel.missing]"]
        assert rig.pid == old
        await ended_as_one(handles)
        assert (rig.owner.view.starts, rig.owner.view.crashes, rig.observer.exits) == (1, 0, [])
        assert codes(rig)[-1] == "reload.failed"


async def test_what_the_plan_refuses_is_not_started(make_rig: RigMaker) -> None:
    refusal: dict[str, object] = {"refuse": [{"code": "kernel.missing", "text": "no kernel"}]}
    async with make_rig(SLOW, refusal) as rig:
        await rig.ready()
        with pytest.raises(ReloadError, match="the new engine refuses") as caught:
            await reload(rig)
        assert caught.value.exit_code == 78
        assert caught.value.reasons == ["no kernel [kernel.missing]"]
        missing = replace(setup_of(rig), launch=Launch(Path("/nowhere/engine"), []))
        with pytest.raises(ReloadError, match="/nowhere/engine cannot be started"):
            await reload(rig, missing)


async def test_without_room_the_old_engine_ends_first(
    make_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_turn(monkeypatch)
    async with make_rig(SLOW) as rig:
        await rig.ready()
        old = rig.pid
        handles = await begun(rig, 3)
        text, said = await reload(rig)
        assert text.startswith("engine start 2 has taken over")
        assert any("the old one ends first" in line for line in said)
        assert rig.pid != old
        await ended_as_one(handles)
        assert rig.owner.restarts().starts_in_hour == 1


@pytest.mark.parametrize(
    ("failure", "reasons"),
    [
        ({"die_at": "probe:batch", "signal": 11}, []),
        (
            {"refuse": [{"code": "kernel.missing", "text": "no kernel"}]},
            ["no kernel [kernel.missing]"],
        ),
    ],
)
async def test_a_failure_in_turn_is_rolled_back(
    make_rig: RigMaker,
    monkeypatch: pytest.MonkeyPatch,
    failure: dict[str, object],
    reasons: list[str],
) -> None:
    in_turn(monkeypatch)
    async with make_rig(SLOW, failure, SLOW) as rig:
        await rig.ready()
        handles = await begun(rig, 3)
        before = setup_of(rig)
        other = replace(before, wanted=replace(before.wanted, modes=before.wanted.modes))
        with pytest.raises(ReloadError, match="former settings is started again") as caught:
            await reload(rig, other)
        assert caught.value.is_back
        assert caught.value.reasons == reasons
        await rig.ready(3)
        assert setup_of(rig).wanted.modes == before.wanted.modes
        await ended_as_one(handles)


def other_modes(rig: Rig) -> EngineSetup:
    before = setup_of(rig)
    modes = msgspec.structs.replace(before.wanted.modes, prefill=before.wanted.modes.prefill + 1)
    return replace(before, wanted=replace(before.wanted, modes=modes))


@pytest.mark.parametrize("is_in_turn", [False, True])
async def test_a_crash_soon_after_brings_the_former_settings_back(
    make_rig: RigMaker, monkeypatch: pytest.MonkeyPatch, is_in_turn: bool
) -> None:
    enquiry = [] if is_in_turn else [SLOW]
    if is_in_turn:
        in_turn(monkeypatch)
    dies = SLOW | {"die_at": "tokens", "die_after": 40, "signal": 11}
    async with make_rig(SLOW, *enquiry, dies, SLOW) as rig:
        await rig.ready()
        before = setup_of(rig).wanted.modes
        handles = await begun(rig, 3)
        wanted = other_modes(rig)
        await reload(rig, wanted)
        await rig.observer.until(lambda: rig.observer.starts >= 2)
        await ended_as_one(handles)
        assert setup_of(rig).wanted.modes == before
        assert "reload.rolled_back" in codes(rig)
        with pytest.raises(ReloadError, match="the former settings came back") as caught:
            await reload(rig, wanted)
        assert caught.value.exit_code == 78
        async with asyncio.timeout(30):
            await rig.owner.reload(Reload(wanted, lambda _: None, is_forced=True))
        await rig.observer.until(lambda: rig.observer.starts == 4)
        assert setup_of(rig).wanted.modes == wanted.wanted.modes


async def test_a_kill_from_outside_takes_no_reload_back(make_rig: RigMaker) -> None:
    async with make_rig(SLOW) as rig:
        await rig.ready()
        wanted = other_modes(rig)
        await reload(rig, wanted)
        await rig.observer.until(lambda: rig.observer.starts == 2)
        psutil.Process(rig.pid).kill()
        await rig.ready(3)
        assert setup_of(rig).wanted.modes == wanted.wanted.modes


DEADLY = SLOW | {"poison": 666, "signal": signal.SIGSEGV}


async def test_a_request_that_is_known_takes_no_reload_back(make_rig: RigMaker) -> None:
    """It ended the old engine and was given up; with the new one it dies alone and is convicted."""
    async with make_rig(DEADLY) as rig:
        await rig.ready()
        first = await rig.submit([5, 666], 60)
        async with asyncio.timeout(20):
            async for event in first:
                if isinstance(event, Paused):
                    first.cancel()
                    break
        await rig.ready(2)
        wanted = other_modes(rig)
        await reload(rig, wanted)
        last = (await collect(await rig.submit([5, 666], 60)))[-1]
        assert isinstance(last, Failed)
        assert last.code == "request_quarantined"
        assert "reload.kept" in codes(rig)
        assert "reload.rolled_back" not in codes(rig)
        await rig.observer.until(lambda: rig.owner.view.state is EngineState.READY)
        assert setup_of(rig).wanted.modes == wanted.wanted.modes


async def test_a_request_that_is_convicted_of_it_brings_the_reload_forward(
    make_rig: RigMaker,
) -> None:
    """Nobody was known, so the former settings came; the request ended their engine as well."""
    async with make_rig(DEADLY) as rig:
        await rig.ready()
        wanted = other_modes(rig)
        await reload(rig, wanted)
        await rig.observer.until(lambda: rig.observer.starts == 2)
        last = (await collect(await rig.submit([5, 666], 60)))[-1]
        assert isinstance(last, Failed)
        assert last.code == "request_quarantined"
        assert rig.owner.view.crashes == 2, "one with each of the settings"
        await rig.ready(4)
        said = codes(rig)
        assert said.index("reload.rolled_back") < said.index("reload.restored")
        assert setup_of(rig).wanted.modes == wanted.wanted.modes
        assert len(tokens_of(await collect(await rig.submit([9], 4)))) == 4


async def test_the_old_engine_dies_while_the_new_one_loads(make_rig: RigMaker) -> None:
    async with make_rig(SLOW, SLOW, {"silent_at": "progress"}, SLOW) as rig:
        await rig.ready()
        handles = await begun(rig, 2)
        said: list[str] = []
        work = asyncio.create_task(rig.owner.reload(Reload(setup_of(rig), said.append)))
        successor = await loading(rig)
        psutil.Process(rig.pid).kill()
        with pytest.raises(ReloadError, match="before the new one was ready"):
            await work
        assert successor.task.done()  # before the next start: never three
        await rig.ready(2)
        await ended_as_one(handles)


async def test_the_service_ends_while_the_new_engine_loads(make_rig: RigMaker) -> None:
    async with make_rig(SLOW, SLOW, {"silent_at": "progress"}) as rig:
        await rig.ready()
        work = asyncio.create_task(rig.owner.reload(Reload(setup_of(rig), lambda _: None)))
        successor = await loading(rig)
        rig.owner.stop()
        with pytest.raises(ReloadError):
            await work
        async with asyncio.timeout(20):
            await rig.task
        assert successor.task.done()


async def test_one_reload_at_a_time_and_only_beside_a_ready_engine(make_rig: RigMaker) -> None:
    async with make_rig({"silent_at": "progress"}) as rig:
        with pytest.raises(ReloadError, match="the engine is loading, not ready"):
            await reload(rig)
    async with make_rig(SLOW, SLOW, {"silent_at": "progress"}) as rig:
        await rig.ready()
        work = asyncio.create_task(rig.owner.reload(Reload(setup_of(rig), lambda _: None)))
        await loading(rig)
        with pytest.raises(ReloadError, match="another reload is under way"):
            await reload(rig)
        rig.owner.stop()
        with pytest.raises(ReloadError):
            await work


async def test_another_model_is_refused(make_rig: RigMaker, tmp_path: Path) -> None:
    async with make_rig(SLOW) as rig:
        await rig.ready()
        setup = setup_of(rig)
        other = replace(setup, wanted=replace(setup.wanted, model=str(tmp_path / "other.gguf")))
        with pytest.raises(ReloadError, match="a reload serves the same model file") as caught:
            await reload(rig, other)
        assert caught.value.exit_code == 78
        (tmp_path / "model.gguf").write_bytes(b"GGUF, and more")
        with pytest.raises(ReloadError, match="has changed since it was loaded"):
            await reload(rig)
        assert rig.owner.view.starts == 1


async def test_requests_that_do_not_fit_are_waited_for(
    make_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload_module, "MOVE_WAIT_S", 0.0)
    async with make_rig(SLOW, SLOW, {"max_context": 64}, SLOW) as rig:
        await rig.ready()
        handle = await rig.submit([5, 6, 7] * 40, 2000)
        with pytest.raises(ReloadError, match="1 running requests do not fit it"):
            await reload(rig)
        events = await collect(handle)
        assert len(tokens_of(events)) == 2000


async def test_room_is_judged_by_the_plan(make_rig: RigMaker) -> None:
    short: dict[str, object] = {
        "rules": [{"axis": "batch", "above": 2, "code": "mem.kv_budget", "text": "no room"}]
    }
    async with make_rig(SLOW, SLOW, SLOW, short) as rig:
        await rig.ready()
        course = Course.of(setup_of(rig), top_rung)
        beside = await find_room(course, lambda: 1 << 40)
        assert beside.way is Way.BESIDE
        tight = await find_room(course, lambda: RESERVE_BYTES)
        assert tight.way is Way.IN_TURN
        less = await find_room(course, lambda: 1 << 40)
        assert less.way is Way.IN_TURN
        assert "it would run with less: no room" in less.text


# --- the command


async def test_what_runs_with_less_than_was_asked_is_told(make_rig: RigMaker) -> None:
    """Also of an axis that nobody set; the outcome has the rows, the decision log the codes."""
    async with make_rig(SLOW, SLOW, SLOW | {"batch": 2}) as rig:
        await rig.ready()
        wanted = Reload(setup_of(rig), lambda _: None)
        async with asyncio.timeout(30):
            text = await rig.owner.reload(wanted)
        lost = "batch runs 2, requested 8 [fake.batch]"
        assert text == f"engine start 2 has taken over, with less than was asked: {lost}"
        (row,) = wanted.lost
        assert (row.name, row.runs, row.requested) == ("batch", "2", "8")
        (said,) = [
            e.sentence for e in rig.owner.view.decisions.entries() if e.code == "reload.done"
        ]
        assert said.endswith(f"with less than was asked: {lost}.")


async def test_the_command_tells_what_runs_with_less(tmp_path: Path) -> None:
    less = SLOW | {"batch": 2}
    async with served(tmp_path, behaviours=[SLOW, SLOW, less, less]) as s:
        await s.engine_pid()
        run_dir = ("--run-dir", str(s.run_dir))
        code, text = await command("reload", "--wait", *run_dir)
        assert code == 0
        assert (
            "taken over, with less than was asked: batch runs 2, requested 8 [fake.batch]" in text
        )
        assert "\n  batch runs 2, requested 8: the script takes 2 sequences [fake.batch]\n" in text
        code, text = await command("reload", "--wait", "--json", *run_dir)
        assert code == 0
        last = json.loads(text.splitlines()[-1])
        assert last["is_final"]
        assert [(row["name"], row["runs"]) for row in last["modes"]] == [("batch", "2")]


async def test_reload_takes_settings_over_from_the_file(tmp_path: Path) -> None:
    toml = tmp_path / "strata.toml"
    toml.write_text("batch = 2\n")
    async with served(tmp_path, behaviours=[SLOW]) as s:
        old = await s.engine_pid()
        toml.write_text("batch = 3\nqueue_requests = 7\n")
        body = {"model": "default", "prompt": [5], "max_tokens": 30_000, "stream": True}
        async with s.session.post(s.base + "/v1/completions", json=body) as stream:
            assert (await stream.content.readline()).startswith(b"data: ")
            code, text = await command("reload", "--wait", "--run-dir", str(s.run_dir))
            assert (code, "engine start 2 has taken over" in text) == (0, True), text
            assert "needs a restart of the service: queue_requests" in text
            rest = await stream.content.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        assert b"error" not in rest
        status = await s.status()
        (batch,) = [row for row in status["modes"] if row["name"] == "batch"]  # type: ignore[attr-defined]
        assert batch["runs"] == "3"
        assert await s.engine_pid() != old
        code, text = await command(
            "reload", "--wait", "--model", str(toml), "--run-dir", str(s.run_dir)
        )
        assert (code, "is not a GGUF file" in text) == (65, True)
        toml.write_text("batch = true\n")
        code, text = await command("reload", "--wait", "--run-dir", str(s.run_dir))
        assert code == 78
    code, text = await command("reload", "--run-dir", str(tmp_path / "none"))
    assert (code, "no supervisor is running" in text) == (4, True)
