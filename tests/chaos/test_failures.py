"""One test for each way in which an engine can fail: noticed, classified, answered, got over."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import islice

import psutil
import pytest
from strata.engines.exits import ExitClass
from strata.engines.owner_view import EngineState
from strata.errors import EngineUnusableError, StrictError
from strata.serving.request import Failed, Finished, RejectedError
from strata_protocol.features import Feature
from strata_protocol.messages import ErrorKind

from bench.chaos.rig import Call, Rig
from tests.chaos.conftest import RigMaker
from tests.fakes.chaos_faults import CAUGHT
from tests.fakes.chaos_script import EpochScript, Fault, Kind, Place, continuation

pytestmark = pytest.mark.chaos
GOOD = EpochScript()
FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
# Signals whose default action does not end a process.
HARMLESS = {
    signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH,
    signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
}  # fmt: skip
DEADLY = sorted(n for n in signal.valid_signals() - HARMLESS if n <= signal.SIGRTMIN)
ONCE: tuple[Place, ...] = ("launch", "handshake", "map", "pack", "probe", "ready")


def fails(do: Kind, at: Place, after: int = 0, value: int = 0, **epoch: object) -> EpochScript:
    fault = Fault(do=do, at=at, after=after, value=value)
    return EpochScript(faults=[fault], **epoch)  # type: ignore[arg-type]


def right(call: Call) -> bool:
    """Whether the tokens that came are the ones that had to."""
    return call.ids == list(islice(continuation(call.prompt, call.params), len(call.ids)))


async def serves(rig: Rig) -> None:
    """The engine that runs now does its work."""
    call = await rig.submit([7, 8, 9], max_tokens=5)
    assert isinstance(await call.ended(), Finished)
    assert len(call.ids) == 5
    assert right(call)


async def got_over(rig: Rig, exit_class: ExitClass, says: str = "") -> None:
    """The first engine ended in this class; the next one serves."""
    exited = await rig.exited()
    assert exited.exit_class is exit_class, exited.text
    assert says in exited.text
    await rig.ready(starts=2)
    await serves(rig)
    assert len(rig.observer.exits) == 1


async def begun(rig: Rig, count: int = 3, max_tokens: int = 40) -> list[Call]:
    """Requests that are running when the fault comes."""
    await rig.ready()
    return [await rig.submit([20 + n, 5], max_tokens=max_tokens) for n in range(count)]


async def all_went_on(rig: Rig, calls: list[Call]) -> None:
    """What ran when the engine failed went on with the next one, to its end."""
    await rig.all_ended()
    for call in calls:
        assert isinstance(call.end, Finished), call.end
        assert len(call.ids) == call.params.max_tokens
        assert right(call)


async def test_without_a_fault(chaos: RigMaker) -> None:
    async with chaos(EpochScript()) as rig:
        await rig.ready()
        greedy = await rig.submit([1, 2, 3], max_tokens=20)
        seeded = await rig.submit([1, 2, 3], max_tokens=20, temperature=1.0, seed=5)
        await rig.all_ended()
        assert len(greedy.ids) == len(seeded.ids) == 20
        assert right(greedy)
        assert right(seeded)
        assert greedy.ids != seeded.ids
    assert rig.observer.exits[0].exit_class is ExitClass.STOP


@pytest.mark.parametrize("status", [1, 2, 70, 71, 74, 127, 255])
async def test_exit_status_in_a_step(chaos: RigMaker, status: int) -> None:
    async with chaos(fails("exit", "decode", 5, status), GOOD) as rig:
        calls = await begun(rig)
        await got_over(rig, ExitClass.OOM if status == 71 else ExitClass.EXIT, f"status {status}")
        assert rig.observer.exits[0].status == status
        await all_went_on(rig, calls)


@pytest.mark.parametrize("status", [65, 77, 78])
async def test_exit_status_that_no_restart_helps(chaos: RigMaker, status: int) -> None:
    async with chaos(fails("exit", "handshake", value=status)) as rig:
        parked = await rig.submit([1])
        assert isinstance(await parked.ended(), Failed)
        assert rig.owner.view.state is EngineState.REFUSED
        with pytest.raises(RejectedError):
            await rig.submit([1])
        assert len(rig.observer.start_s) == 1


@pytest.mark.parametrize("status", [64, 69])
async def test_exit_status_of_an_engine_that_is_of_no_use(chaos: RigMaker, status: int) -> None:
    async with chaos(fails("exit", "handshake", value=status)) as rig:
        with pytest.raises(EngineUnusableError, match=f"status {status}"):
            async with asyncio.timeout(20):
                await asyncio.shield(rig.task)
        assert len(rig.observer.start_s) == 1


@pytest.mark.parametrize("number", sorted(CAUGHT | FROM_OUTSIDE))
async def test_signal_in_a_step(chaos: RigMaker, number: int) -> None:
    async with chaos(fails("signal", "decode", 5, number), GOOD) as rig:
        calls = await begun(rig)
        outside = number in FROM_OUTSIDE
        await got_over(rig, ExitClass.EXTERNAL if outside else ExitClass.SIGNAL, f"({number})")
        assert rig.observer.exits[0].signal == number
        assert rig.owner.view.crashes == (0 if outside else 1)
        await all_went_on(rig, calls)


async def test_every_other_deadly_signal(chaos: RigMaker) -> None:
    numbers = [n for n in DEADLY if n not in CAUGHT | FROM_OUTSIDE]
    epochs = [fails("signal", "handshake", value=n) for n in numbers]
    async with chaos(*epochs, GOOD) as rig:
        parked = await rig.submit([1, 2], max_tokens=3)
        await rig.ready(starts=len(numbers) + 1)
        assert [exited.signal for exited in rig.observer.exits] == numbers
        assert {exited.exit_class for exited in rig.observer.exits} == {ExitClass.SIGNAL}
        assert isinstance(await parked.ended(), Finished)
        assert right(parked)


@pytest.mark.parametrize("place", ONCE)
async def test_death_in_each_phase_of_the_boot(chaos: RigMaker, place: Place) -> None:
    async with chaos(fails("signal", place, value=signal.SIGSEGV), GOOD) as rig:
        parked = await rig.submit([3, 4], max_tokens=4)
        await got_over(rig, ExitClass.SIGNAL, "SIGSEGV (11)")
        assert isinstance(await parked.ended(), Finished)
        assert right(parked)


async def test_death_in_prefill(chaos: RigMaker) -> None:
    epoch = fails("signal", "prefill", 2, signal.SIGSEGV, prefill=16)
    async with chaos(epoch, GOOD) as rig:
        await rig.ready()
        call = await rig.submit([n % 200 for n in range(100)], max_tokens=6)
        await got_over(rig, ExitClass.SIGNAL, "in phase prefill")
        assert isinstance(await call.ended(), Finished)
        assert right(call)


async def test_death_while_it_drains(chaos: RigMaker) -> None:
    async with chaos(fails("signal", "drain", value=signal.SIGSEGV, step_ms=5), GOOD) as rig:
        calls = await begun(rig)
        await rig.observer.until(lambda: all(call.ids for call in calls))
        os.kill(rig.pid, signal.SIGTERM)
        await got_over(rig, ExitClass.SIGNAL, "SIGSEGV (11)")


async def test_stopped_process_is_reported_and_waited_for(chaos: RigMaker) -> None:
    async with chaos(fails("stop", "decode", 5)) as rig:
        (call,) = await begun(rig, 1)
        epoch = rig.owner.view.epoch
        assert epoch is not None
        await rig.observer.until(lambda: epoch.is_stopped)
        assert not call.terminals
        os.kill(rig.pid, signal.SIGCONT)
        assert isinstance(await call.ended(), Finished)
        assert right(call)
        assert not rig.observer.exits


@pytest.mark.parametrize("place", ["handshake", "map", "probe", "decode"])
async def test_frozen_process_is_a_hang(chaos: RigMaker, place: Place) -> None:
    async with chaos(fails("freeze", place), GOOD) as rig:
        call = await rig.submit([1, 2], max_tokens=9)
        await got_over(rig, ExitClass.HANG)
        assert isinstance(await call.ended(), Finished)
        assert right(call)


async def test_frozen_compute_thread_is_a_hang_although_pings_are_answered(
    chaos: RigMaker,
) -> None:
    async with chaos(fails("freeze_compute", "decode", 5), GOOD) as rig:
        calls = await begun(rig)
        await got_over(rig, ExitClass.HANG)
        assert all(len(call.ids) >= 5 for call in calls)
        await all_went_on(rig, calls)


async def test_frozen_io_thread_is_noticed_once_no_step_runs(chaos: RigMaker) -> None:
    async with chaos(fails("freeze_io", "decode", 5), GOOD) as rig:
        calls = await begun(rig)
        await got_over(rig, ExitClass.HANG, "no message")
        await all_went_on(rig, calls)


async def test_slow_tokens_are_no_hang(chaos: RigMaker) -> None:
    async with chaos(fails("slow", "decode", 2, 400)) as rig:
        (call,) = await begun(rig, 1, max_tokens=8)
        assert isinstance(await call.ended(), Finished)
        assert right(call)
        assert not rig.observer.exits


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("bad_magic", "proto.magic"),
        ("bad_crc", "proto.crc"),
        ("bad_length", "proto.length"),
        ("bad_version", "proto.version"),
        ("truncated", "proto.truncated"),
        ("close", "closed its event pipe"),
    ],
)
@pytest.mark.parametrize("place", ["handshake", "decode"])
async def test_broken_stream_ends_the_engine(
    chaos: RigMaker, kind: Kind, says: str, place: Place
) -> None:
    async with chaos(fails(kind, place), GOOD) as rig:
        call = await rig.submit([1, 2], max_tokens=9)
        await got_over(rig, ExitClass.PROTOCOL, says)
        assert isinstance(await call.ended(), Finished)
        assert right(call)


async def test_death_within_a_frame_is_judged_by_its_status(chaos: RigMaker) -> None:
    async with chaos(fails("truncated_exit", "ready", value=70), GOOD) as rig:
        await rig.ready(starts=2)
        await serves(rig)
        assert rig.observer.exits[0].status == 70


async def test_log_flood_of_100_mb_stops_no_token(chaos: RigMaker) -> None:
    async with chaos(fails("stderr", "decode", 3, 100_000_000)) as rig:
        calls = await begun(rig)
        await rig.all_ended()
        assert all(isinstance(call.end, Finished) and right(call) for call in calls)
        await rig.engine_said("the flood is over")
        await serves(rig)
        assert not rig.observer.exits
        assert rig.folder.log_bytes() <= 17 << 20


async def test_print_to_standard_output_reaches_the_log_only(chaos: RigMaker) -> None:
    async with chaos(fails("print", "decode", 3)) as rig:
        calls = await begun(rig)
        await rig.all_ended()
        assert all(isinstance(call.end, Finished) and right(call) for call in calls)
        assert not rig.observer.exits
        await rig.engine_said("a stray print of a library")


@pytest.mark.parametrize("kind", ["grandchild", "grandchild_session"])
async def test_grandchild_that_holds_the_pipes(chaos: RigMaker, kind: Kind) -> None:
    """The one in the engine's group goes with it. The other one ends by itself."""
    faults = [
        Fault(do=kind, at="ready", value=2),
        Fault(do="signal", at="decode", after=5, value=signal.SIGKILL),
    ]
    async with chaos(EpochScript(faults=faults), GOOD) as rig:
        calls = await begun(rig)
        await got_over(rig, ExitClass.EXTERNAL)
        await all_went_on(rig, calls)


async def test_engine_that_ignores_every_wish_is_killed(chaos: RigMaker) -> None:
    async with chaos(fails("ignore_term", "launch")) as rig:
        await rig.ready()
        await serves(rig)
        rig.owner.stop()
        async with asyncio.timeout(20):
            await rig.task
    exited = rig.observer.exits[0]
    assert (exited.exit_class, exited.signal) == (ExitClass.STOP, signal.SIGKILL)


async def test_memory_that_grows_to_its_limit(chaos: RigMaker) -> None:
    async with chaos(fails("grow", "decode", 5, 64 << 20), GOOD) as rig:
        calls = await begun(rig)
        await got_over(rig, ExitClass.OOM, "for lack of memory")
        await all_went_on(rig, calls)


async def test_wrong_protocol_version_is_a_refusal(chaos: RigMaker) -> None:
    async with chaos(EpochScript(protocol=(7, 9))) as rig:
        parked = await rig.submit([1])
        end = await parked.ended()
        assert isinstance(end, Failed)
        assert (end.kind, end.code) == (ErrorKind.OVERLOADED, "engine_refused")
        assert "7..9" in end.text
        assert rig.observer.exits[0].exit_class is ExitClass.REFUSE
        assert len(rig.observer.start_s) == 1


async def test_missing_mode_is_said_and_done_without(chaos: RigMaker) -> None:
    why = "the multi-row kernels are missing"
    async with chaos(EpochScript(missing=why), batch=4) as rig:
        calls = await begun(rig, 4, max_tokens=5)
        await rig.all_ended()
        assert all(isinstance(call.end, Finished) and right(call) for call in calls)
        assert rig.service.facts is not None
        (row,) = [row for row in rig.service.facts.modes if row.name == "batch"]
        assert (row.requested, row.runs) == ("4", "1")
        assert why in row.because[0].text
        assert not rig.observer.exits


async def test_missing_mode_with_strict_ends_the_service(chaos: RigMaker) -> None:
    explicit = frozenset({"batch"})
    async with chaos(
        EpochScript(missing="gone"), batch=4, is_strict=True, explicit=explicit
    ) as rig:
        with pytest.raises(StrictError):
            async with asyncio.timeout(20):
                await asyncio.shield(rig.task)


async def test_missing_feature_is_refused_for_that_request(chaos: RigMaker) -> None:
    features = [f.value for f in Feature if f is not Feature.LOGPROBS]
    async with chaos(EpochScript(features=features)) as rig:
        await rig.ready()
        with pytest.raises(RejectedError) as rejected:
            await rig.submit([1], logprobs=2)
        assert rejected.value.kind is ErrorKind.UNSUPPORTED
        await serves(rig)


async def test_no_descriptor_is_lost_over_many_deaths(chaos: RigMaker) -> None:
    process = psutil.Process()
    async with chaos(fails("exit", "handshake", value=70)) as rig:
        await rig.exited(3)
        before = process.num_fds()
        await rig.exited(10)
        assert process.num_fds() <= before + 8  # one engine's own, in whatever state it is now
