"""Real processes: what the supervisor makes of everything an engine can do wrong."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from strata.engines import stale
from strata.engines.exits import ExitClass
from strata.engines.owner_view import EngineState
from strata.engines.watch import Patience
from strata.errors import StrictError
from strata.observe.metrics import Metrics
from strata.observe.status import Status
from strata.observe.status_source import ServiceFacts, StatusSource
from strata.serving.request import Failed, Finished, Paused, RejectedError
from strata_protocol.messages import ErrorKind, FinishReason

from tests.supervisor.conftest import EAGER, Rig, RigMaker, collect, tokens_of


def status_of(rig: Rig) -> Status:
    facts = ServiceFacts("m", "m.gguf", 1, "http://x", "run", 0.0, "1")
    return StatusSource(facts, rig.owner, rig.service, Metrics())()


async def test_tokens_come_in_order_and_end_once(make_rig: RigMaker) -> None:
    async with make_rig() as rig:
        handle = await rig.submit([5, 6, 7], max_tokens=7)
        events = await collect(handle)
        assert tokens_of(events) == [5, 6, 7, 5, 6, 7, 5]
        assert isinstance(events[-1], Finished)
        assert events[-1].reason is FinishReason.LENGTH
        assert sum(isinstance(e, Finished | Failed) for e in events) == 1
        assert rig.service.facts is not None
        assert rig.service.facts.plan.batch == 4


async def test_status_shows_what_the_engine_counts(make_rig: RigMaker) -> None:
    async with make_rig() as rig:
        for _ in range(2):
            await collect(await rig.submit([1, 2, 3, 4], max_tokens=3))
        load = status_of(rig).load
        assert (load.kv_pages_used, load.kv_pages_cached, load.kv_pages_total) == (2, 1, 32)
        assert (load.prompt_tokens, load.cached_tokens, load.output_tokens) == (8, 4, 6)


async def test_long_prompt_travels_in_chunks(make_rig: RigMaker) -> None:
    prompt = [i % 1000 for i in range(150_000)]
    async with make_rig({"max_context": 200_000}) as rig:
        await rig.ready()
        events = await collect(await rig.submit(prompt, max_tokens=3))
        assert tokens_of(events) == prompt[:3]


async def test_kill_loses_nothing(make_rig: RigMaker) -> None:
    async with make_rig({"batch": 1, "tokens_max": 3}, {}) as rig:
        await rig.ready()
        begun = await rig.submit([1, 2], max_tokens=50)
        first = await anext(aiter(begun))
        assert tokens_of([first])
        untouched = [await rig.submit([n], max_tokens=2) for n in (11, 12, 13)]
        os.kill(rig.pid, signal.SIGKILL)
        rest = await collect(begun)
        assert tokens_of([first, *rest]) == [1, 2] * 25
        assert sum(isinstance(e, Paused) for e in rest) == 1
        assert isinstance(rest[-1], Finished)
        assert (rest[-1].reason, rest[-1].output_tokens) == (FinishReason.LENGTH, 50)
        for n, handle in zip((11, 12, 13), untouched, strict=True):
            events = await collect(handle)
            assert tokens_of(events) == [n, n]
            assert isinstance(events[-1], Finished)
        assert rig.observer.exits[0].exit_class is ExitClass.EXTERNAL
        assert rig.observer.exits[0].signal == signal.SIGKILL


async def test_requests_wait_while_the_engine_loads(make_rig: RigMaker) -> None:
    async with make_rig() as rig:
        assert rig.service.facts is None
        events = await collect(await rig.submit([9], max_tokens=1))
        assert tokens_of(events) == [9]


async def test_request_that_kills_every_engine_is_given_up(make_rig: RigMaker) -> None:
    async with make_rig({"die_at": "submit"}) as rig:
        events = await collect(await rig.submit([1]))
        assert [isinstance(e, Paused) for e in events] == [True, True, False]
        assert isinstance(events[-1], Failed)
        assert (events[-1].kind, events[-1].code) == (ErrorKind.INTERNAL, "engine_restarted")
        assert "3 times" in events[-1].text
        assert "SIGKILL (9)" in events[-1].text


@pytest.mark.parametrize("at", ["launch", "hello", "offer", "plan", "progress", "ready"])
async def test_death_at_each_phase_of_the_boot_restarts(make_rig: RigMaker, at: str) -> None:
    async with make_rig({"die_at": at, "signal": signal.SIGSEGV}, {}) as rig:
        await rig.ready(starts=2)
        exited = rig.observer.exits[0]
        assert exited.exit_class is ExitClass.SIGNAL
        assert "SIGSEGV (11)" in exited.text
        assert tokens_of(await collect(await rig.submit([3], max_tokens=1))) == [3]


async def test_exit_status_is_reported(make_rig: RigMaker) -> None:
    async with make_rig({"die_at": "progress", "exit": 70}, {}) as rig:
        await rig.ready(starts=2)
        assert rig.observer.exits[0].status == 70
        assert rig.observer.exits[0].exit_class is ExitClass.EXIT
        assert "70 (a fault of the engine itself)" in rig.observer.exits[0].text


@pytest.mark.parametrize(
    ("behaviour", "exit_class", "says"),
    [
        ({"silent_at": "hello"}, ExitClass.HANG, "no HELLO"),
        ({"silent_at": "caps"}, ExitClass.HANG, "no CAPS"),
        ({"silent_at": "progress"}, ExitClass.HANG, "no PROGRESS"),
        ({"silent_at": "run"}, ExitClass.HANG, "no message"),
        ({"garbage_at": "hello"}, ExitClass.PROTOCOL, "proto.magic"),
        ({"garbage_at": "run"}, ExitClass.PROTOCOL, "proto.magic"),
        ({"close_at": "run"}, ExitClass.PROTOCOL, "closed its event pipe"),
    ],
)
async def test_silence_and_garbage_end_the_engine(
    make_rig: RigMaker, behaviour: dict[str, object], exit_class: ExitClass, says: str
) -> None:
    async with make_rig(behaviour, {}, patience=EAGER) as rig:
        await rig.observer.until(lambda: bool(rig.observer.exits))
        assert rig.observer.exits[0].exit_class is exit_class
        assert says in rig.observer.exits[0].text
        await rig.ready(starts=2)


async def test_step_that_never_ends_is_a_hang_although_pings_are_answered(
    make_rig: RigMaker,
) -> None:
    async with make_rig({"stuck_at": "tokens", "die_after": 2}, {}, patience=EAGER) as rig:
        await rig.ready()
        begun = await rig.submit([1, 2], max_tokens=9)
        assert tokens_of(await collect(begun)) == [1, 2, 1, 2, 1, 2, 1, 2, 1]
        assert rig.observer.exits[0].exit_class is ExitClass.HANG
        exited = rig.observer.exits[0]
        assert "no movement for 1." in exited.text
        assert "in phase decode" in exited.text
        assert exited.beacon is not None
        assert exited.beacon.crash is None  # the SIGABRT was ours
        assert exited.beacon.dump is not None
        assert exited.beacon.dump.signal == signal.SIGUSR2
        assert rig.owner.view.crashes == 1
        await rig.ready(starts=2)
        assert tokens_of(await collect(await rig.submit([3], max_tokens=1))) == [3]


async def test_request_that_never_got_a_token_of_a_stuck_engine_starts_over(
    make_rig: RigMaker,
) -> None:
    async with make_rig({"stuck_at": "submit"}, {}, patience=EAGER) as rig:
        assert tokens_of(await collect(await rig.submit([4], max_tokens=1))) == [4]
        assert rig.observer.exits[0].exit_class is ExitClass.HANG


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [({"gap": True}, "only 1 came before"), ({"ignore_credit": True}, "credit reaches")],
)
async def test_lost_tokens_and_overrun_credit_are_faults(
    make_rig: RigMaker, behaviour: dict[str, object], says: str
) -> None:
    async with make_rig({**behaviour, "max_context": 10_000}, {"max_context": 10_000}) as rig:
        await rig.ready()
        handle = await rig.submit([1, 2], max_tokens=2000)
        await rig.observer.until(lambda: bool(rig.observer.exits))
        assert rig.observer.exits[0].exit_class is ExitClass.PROTOCOL
        assert says in rig.observer.exits[0].text
        assert tokens_of(await collect(handle)) == [1, 2] * 1000


async def test_repeated_tokens_are_dropped(make_rig: RigMaker) -> None:
    async with make_rig({"repeat": True}) as rig:
        events = await collect(await rig.submit([4, 5, 6], max_tokens=6))
        assert tokens_of(events) == [4, 5, 6, 4, 5, 6]


async def test_credit_stops_only_the_reader_that_does_not_read(make_rig: RigMaker) -> None:
    async with make_rig({"max_context": 10_000}) as rig:
        await rig.ready()
        slow = await rig.submit([1], max_tokens=2000)
        quick = await collect(await rig.submit([2], max_tokens=1500))
        assert len(tokens_of(quick)) == 1500
        first = await anext(aiter(slow))
        assert len(tokens_of([first])) == 512
        assert len(tokens_of(await collect(slow))) == 2000 - 512


async def test_refusal_is_not_retried_and_answers_with_its_reason(make_rig: RigMaker) -> None:
    refuse = [{"code": "kernel.missing", "text": "no kernel for iq9_z"}]
    async with make_rig({"refuse": refuse}) as rig:
        parked = await rig.submit([1])
        await rig.state(EngineState.REFUSED)
        events = await collect(parked)
        assert isinstance(events[0], Failed)
        assert (events[0].kind, events[0].code) == (ErrorKind.OVERLOADED, "engine_refused")
        with pytest.raises(RejectedError, match="no kernel for iq9_z") as rejected:
            await rig.submit([1])
        assert rejected.value.retry_after_s is events[0].retry_after_s is None
        ((code, said),) = [
            (entry.code, entry.sentence)
            for entry in rig.owner.view.decisions.entries()
            if "no kernel" in entry.sentence
        ]
        assert code == "engine.refused"
        assert said == "The engine refuses to start: no kernel for iq9_z [kernel.missing]."
        assert rig.observer.starts == 1
        assert rig.observer.exits[0].exit_class is ExitClass.REFUSE


async def test_refusal_is_tried_again_when_the_model_file_changes(
    make_rig: RigMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.engines.interval.INPUT_POLL_S", 0.02)
    async with make_rig({"refuse": [{"code": "a.b", "text": "c"}]}, {}) as rig:
        await rig.state(EngineState.REFUSED)
        (tmp_path / "model.gguf").write_bytes(b"GGUF, another one")
        await rig.ready(starts=2)


async def test_missing_executable_is_a_refusal(make_rig: RigMaker, tmp_path: Path) -> None:
    async with make_rig() as rig:
        await rig.ready()
        (tmp_path / "fake-engine").unlink()
        os.kill(rig.pid, signal.SIGKILL)
        await rig.state(EngineState.REFUSED)
        with pytest.raises(RejectedError, match="cannot be started"):
            await rig.submit([1])


async def test_strict_lists_every_requested_mode_that_cannot_run(make_rig: RigMaker) -> None:
    rules = [
        {"axis": "batch", "above": 4, "code": "mem.kv_budget", "text": "KV needs 61 GiB, 38 free"},
        {"axis": "batch", "above": 2, "code": "kernel.missing", "text": "no kernel for matmul"},
        {"axis": "kv", "value": "f32", "code": "kernel.missing", "text": "no kernel for f32"},
        {"axis": "prefill", "above": 64, "code": "kernel.missing", "text": "no kernel for rows"},
    ]
    explicit = frozenset({"batch", "activations"})
    wanted = {"batch": 64, "activations": "f32"}
    async with make_rig({"rules": rules}, explicit=explicit, is_strict=True, **wanted) as rig:
        with pytest.raises(StrictError) as refused:
            async with asyncio.timeout(20):
                await rig.task
        assert refused.value.lines == [
            "batch: requested 64, available 2 (limited)",
            "  - the script takes 4 sequences [fake.batch]",
            "  - KV needs 61 GiB, 38 free [mem.kv_budget]",
            "  - no kernel for matmul [kernel.missing]",
        ]
        assert refused.value.exit_code == 78


async def test_without_strict_the_engine_falls_back(make_rig: RigMaker) -> None:
    rules = [{"axis": "batch", "above": 2, "code": "kernel.missing", "text": "no kernel"}]
    async with make_rig({"rules": rules}, explicit=frozenset({"batch"})) as rig:
        await rig.ready()
        assert rig.service.facts is not None
        assert rig.service.facts.plan.batch == 2


async def test_stop_ends_an_engine_that_ignores_drain_and_term(make_rig: RigMaker) -> None:
    stubborn = {"ignore_term": True, "ignore_drain": True}
    async with make_rig(stubborn, patience=EAGER) as rig:
        await rig.ready()
        pid = rig.pid
        rig.owner.stop()
        async with asyncio.timeout(10):
            await rig.task
        assert not psutil.pid_exists(pid)
        assert rig.observer.exits[0].exit_class is ExitClass.STOP


async def test_stop_is_prompt_and_clean(make_rig: RigMaker) -> None:
    async with make_rig() as rig:
        await rig.ready()
        rig.owner.stop()
        async with asyncio.timeout(10):
            await rig.task
        assert rig.observer.exits[0].exit_class is ExitClass.STOP
        assert rig.observer.exits[0].status == 0


async def test_stopped_engine_is_waited_for(make_rig: RigMaker) -> None:
    async with make_rig(patience=EAGER) as rig:
        await rig.ready()
        handle = await rig.submit([1], max_tokens=1)
        await collect(handle)
        os.kill(rig.pid, signal.SIGSTOP)
        epoch = rig.owner.view.epoch
        assert epoch is not None
        await rig.observer.until(lambda: epoch.is_stopped)  # the limit of silence has passed
        os.kill(rig.pid, signal.SIGCONT)
        assert tokens_of(await collect(await rig.submit([7], max_tokens=1))) == [7]
        assert not rig.observer.exits


async def test_an_idle_engine_that_is_stopped_is_told_long_before_it_is_slow(
    make_rig: RigMaker,
) -> None:
    """By its state: no limit of silence is near."""
    async with make_rig(patience=Patience(silence_s=3600, reader_s=3600)) as rig:
        await rig.ready()
        decisions = rig.owner.view.decisions
        codes = lambda: [entry.code for entry in decisions.entries()]  # noqa: E731
        os.kill(rig.pid, signal.SIGSTOP)
        await rig.observer.until(lambda: "hang.stopped" in codes())
        epoch = rig.owner.view.epoch
        assert epoch is not None
        assert epoch.is_stopped
        os.kill(rig.pid, signal.SIGCONT)
        await rig.observer.until(lambda: "hang.continued" in codes())
        assert not epoch.is_stopped
        assert codes().count("hang.stopped") == 1
        assert not rig.observer.exits


@pytest.mark.parametrize("by_file", [False, True])
async def test_run_directory_that_is_gone_costs_its_files_only(
    make_rig: RigMaker, tmp_path: Path, caplog: pytest.LogCaptureFixture, by_file: bool
) -> None:
    run_dir = tmp_path / "run"
    async with make_rig() as rig:
        await rig.ready()
        shutil.rmtree(run_dir)
        if by_file:
            run_dir.write_text("not a directory")
        os.kill(rig.pid, signal.SIGKILL)
        await rig.ready(starts=2)
        assert tokens_of(await collect(await rig.submit([3], max_tokens=1))) == [3]
        if by_file:
            assert "engine.json cannot be written: Not a directory" in caplog.text
        else:
            record = stale.read_record(run_dir)
            assert record is not None
            assert (record.pid, record.epoch) == (rig.pid, 2)
    assert rig.observer.exits[1].exit_class is ExitClass.STOP


async def test_log_flood_is_drained_and_kept(make_rig: RigMaker, tmp_path: Path) -> None:
    async with make_rig({"stderr_bytes": 8_000_000}) as rig:
        assert tokens_of(await collect(await rig.submit([2], max_tokens=2))) == [2, 2]
        epoch = rig.owner.view.epoch
        assert epoch is not None
        assert "fake engine: a line of log" in epoch.output.lines
        rig.owner.stop()
        async with asyncio.timeout(10):
            await rig.task
    written = (tmp_path / "run" / "engine-1.log").read_bytes()
    assert written.startswith(b"noise")
    assert len(written) <= 17 << 20


async def test_crash_loop_ends_in_hold(make_rig: RigMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strata.engines.restart.DELAY_MAX_S", 0.01)
    async with make_rig({"die_at": "progress", "signal": signal.SIGABRT}) as rig:
        parked = await rig.submit([1])
        await rig.state(EngineState.HOLD)
        assert len(rig.observer.exits) == 5
        events = await collect(parked)
        assert isinstance(events[0], Failed)
        assert events[0].code == "engine_hold"
        with pytest.raises(RejectedError) as rejected:
            await rig.submit([1])
        assert rejected.value.retry_after_s is not None
        assert rejected.value.retry_after_s <= 55


async def test_cancel_ends_within_a_step(make_rig: RigMaker) -> None:
    async with make_rig({"tokens_max": 2}) as rig:
        await rig.ready()
        handle = await rig.submit([1], max_tokens=100)
        await anext(aiter(handle))
        handle.cancel()
        handle.cancel()
        events = await collect(handle)
        assert isinstance(events[-1], Finished)
        assert events[-1].reason is FinishReason.CANCELLED


async def test_errors_of_requests_do_not_end_the_engine(make_rig: RigMaker) -> None:
    async with make_rig({"error": "numeric_fault"}) as rig:
        events = await collect(await rig.submit([1]))
        assert isinstance(events[-1], Failed)
        assert events[-1].kind is ErrorKind.NUMERIC_FAULT
        assert not rig.observer.exits


async def test_deadline_ends_a_running_request(make_rig: RigMaker) -> None:
    async with make_rig({"tokens_max": 1}, request_timeout_s=0.3) as rig:
        await rig.ready()
        events = await collect(await rig.submit([1], max_tokens=9))
        assert isinstance(events[-1], Failed)
        assert events[-1].code == "deadline_exceeded"


async def test_drain_finishes_what_runs_and_refuses_new_work(make_rig: RigMaker) -> None:
    async with make_rig() as rig:
        await rig.ready()
        running = [await rig.submit([n], max_tokens=200) for n in range(6)]
        drained = asyncio.create_task(rig.service.drain(20))
        await asyncio.wait({drained}, timeout=0)
        with pytest.raises(RejectedError) as rejected:
            await rig.submit([1])
        assert rejected.value.code == "draining"
        for handle in running:
            assert isinstance((await collect(handle))[-1], Finished)
        await drained


async def test_drain_answers_what_does_not_finish(make_rig: RigMaker) -> None:
    async with make_rig({"tokens_max": 1}) as rig:
        await rig.ready()
        stuck = [await rig.submit([n], max_tokens=200) for n in range(8)]
        await rig.service.drain(0.05)
        for handle in stuck:
            events = await collect(handle)
            assert isinstance(events[-1], Failed)
            assert events[-1].code == "shutting_down"


async def test_deadline_is_kept_by_an_engine_that_ignores_cancel(
    make_rig: RigMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.serving.scheduler.CANCEL_GRACE_S", 0.1)
    behaviour = {"tokens_max": 1, "ignore_cancel": True}
    async with make_rig(behaviour, request_timeout_s=0.3) as rig:
        await rig.ready()
        events = await collect(await rig.submit([1], max_tokens=9))
        assert isinstance(events[-1], Failed)
        assert events[-1].code == "deadline_exceeded"
        assert tokens_of(await collect(await rig.submit([7], max_tokens=1))) == [7]
        assert not rig.observer.exits


async def test_sigterm_from_outside_loses_no_request(make_rig: RigMaker) -> None:
    async with make_rig({"tokens_max": 1}, {}) as rig:
        await rig.ready()
        running = await rig.submit([1], max_tokens=2)
        assert tokens_of([await anext(aiter(running))]) == [1]
        os.kill(rig.pid, signal.SIGTERM)
        later = [await rig.submit([n], max_tokens=1) for n in (4, 5, 6, 7)]
        epoch = rig.owner.view.epoch
        assert epoch is not None
        await rig.observer.until(lambda: epoch.is_draining)
        status = status_of(rig)
        assert (status.state, status.reason) == (
            "restarting",
            "the engine was told to end and finishes what runs",
        )
        running.cancel()
        assert isinstance((await collect(running))[-1], Finished)
        for n, handle in zip((4, 5, 6, 7), later, strict=True):
            assert tokens_of(await collect(handle)) == [n]
        exited = rig.observer.exits[0]
        assert (exited.exit_class, exited.status) == (ExitClass.EXTERNAL, 0)
        assert rig.owner.view.crashes == 0
