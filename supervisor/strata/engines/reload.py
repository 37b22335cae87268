"""A reload: another engine takes over from the one that serves.

Where memory holds both, the new one is started and proven *beside* the old one and takes over at a
token boundary; one that fails changes nothing. Where it does not, the old one ends first (*in
turn*): requests wait, and one that fails is followed by an engine of the former settings. Memory
is judged before, from the plan that the new engine makes from file headers alone.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from strata_protocol.messages import PROTO_MAX, Offer, Reason, Refuse

from strata.engines.course import Course
from strata.engines.enquiry import ask
from strata.engines.epoch import EngineSetup, Epoch
from strata.engines.exits import EngineExit
from strata.engines.gate import Gate
from strata.engines.memory_wait import bytes_available, bytes_needed
from strata.engines.modes import ModeRow, bytes_text, choose, sentence
from strata.errors import StrataError

MOVE_WAIT_S = 60.0  # for requests that the new engine cannot go on with to finish on the old one
MOVE_LOOK_S = 0.05
RESERVE_BYTES = 256 << 20  # that stay free beside both engines
MEMORY_CODES = ("mem.", "device.memory")


class ReloadError(StrataError):
    """The engine was not replaced. `is_back`: the former settings had to be started again."""

    exit_code = 75

    def __init__(
        self, text: str, reasons: Sequence[str] = (), *, exit_code: int = 75, is_back: bool = False
    ) -> None:
        super().__init__(text)
        self.reasons = list(reasons)
        self.exit_code = exit_code
        self.is_back = is_back


class Way(enum.StrEnum):
    BESIDE = "beside"
    IN_TURN = "in_turn"


@dataclass(slots=True, eq=False)
class Reload:
    """One request for it. `outcome` is a sentence, or a ReloadError."""

    setup: EngineSetup
    say: Callable[[str], None]  # told of progress, in sentences
    is_forced: bool = False  # also settings that were left for a crash
    lost: Sequence[ModeRow] = ()  # with the outcome: modes that run with less than was asked
    outcome: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    def succeed(self, text: str, lost: Sequence[ModeRow] = ()) -> None:
        self.lost = lost
        if not self.outcome.done():
            self.outcome.set_result(text)

    def fail(self, error: ReloadError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)


@dataclass(slots=True, eq=False)
class Successor:
    """An engine beside the one that serves; `task` runs it to its exit."""

    course: Course
    epoch: Epoch
    gate: Gate
    task: asyncio.Task[EngineExit]
    is_serving: bool = False

    async def end(self) -> None:
        self.epoch.stop()
        await asyncio.wait([self.task])


@dataclass(frozen=True, slots=True)
class Room:
    """Whether there is room for both, and the sentence that says so."""

    way: Way
    text: str


async def find_room(course: Course, available: Callable[[], int] = bytes_available) -> Room:
    """Asks the new engine for its plan, while the old one runs. Raises ReloadError where it can run
    nothing, StrataError where it cannot be asked."""
    wanted, launch = course.setup.wanted, course.setup.launch
    offer = Offer(
        proto=PROTO_MAX,
        run_id=wanted.run_id,
        epoch=0,
        model=wanted.model,
        want=wanted.modes,
        without_kernels=list(wanted.without_kernels),
        ple=wanted.ple,
    )
    answer = await ask(launch, offer, lambda _: [])
    if isinstance(answer.said, Refuse):
        raise refused(answer.said.reasons)
    caps = answer.said
    choice = choose(
        wanted.modes,
        wanted.explicit,
        caps.configurations,
        caps.reasons,
        policy=wanted.policy,
        device=caps.device,
    )
    short = [r for row in choice.rows if not row.is_as_asked for r in row.because if is_memory(r)]
    if choice.configuration is None or choice.refusals:
        if all(is_memory(reason) for reason in choice.refusals):
            return Room(Way.IN_TURN, "beside the old engine there is no memory for any mode")
        raise refused(choice.refusals)
    if short:
        return Room(Way.IN_TURN, f"beside the old engine it would run with less: {short[0].text}")
    needed, free = bytes_needed(choice.configuration.memory), available()
    figures = f"it needs {bytes_text(needed)}, {bytes_text(free)} are free"
    way = Way.BESIDE if needed + RESERVE_BYTES <= free else Way.IN_TURN
    return Room(way, figures)


def is_memory(reason: Reason) -> bool:
    return reason.code.startswith(MEMORY_CODES)


def refused(reasons: Sequence[Reason]) -> ReloadError:
    return ReloadError("the new engine refuses", [sentence(r) for r in reasons], exit_code=78)


def failed(epoch: Epoch, exited: EngineExit) -> ReloadError:
    """Why an engine that was to take over ended instead."""
    if epoch.refused is not None:
        return refused(epoch.refused.reasons)
    return ReloadError(f"the new engine {exited.text}")


async def prove(successor: Successor) -> None:
    """Waits until the new engine is ready. Raises ReloadError where it ends instead."""
    ready = asyncio.ensure_future(successor.gate.became_ready.wait())
    try:
        await asyncio.wait({ready, successor.task}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ready.cancel()
    if successor.task.done():
        raise failed(successor.epoch, successor.task.result())


def check_same_model(old: Epoch, new: Epoch) -> None:
    """Raises ReloadError: streams go on and text is made by what was read from the old file."""
    before, after = old.handshake.caps, new.handshake.caps
    if before is None or after is None:
        raise ReloadError("an engine has not said what model it has")
    if before.model != after.model:
        raise ReloadError(
            "the model file has changed; a reload serves the same model, another one needs a"
            " restart of the service",
            exit_code=78,
        )


async def await_movable(gate: Gate, successor: Successor) -> None:
    """Until all that runs can go on with the new engine. Raises ReloadError."""
    ready = successor.gate.ready
    if ready is None:
        raise RuntimeError("an engine that is not ready cannot take over")
    loop = asyncio.get_running_loop()
    until_s = loop.time() + MOVE_WAIT_S
    while why := gate.why_not_move(ready):
        if successor.task.done():
            raise failed(successor.epoch, successor.task.result())
        if loop.time() >= until_s:
            raise ReloadError(f"the new engine is ready, but {why}; nothing was changed")
        await asyncio.sleep(MOVE_LOOK_S)
