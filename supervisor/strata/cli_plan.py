"""`plan MODEL`: what would run on this machine and why not more, without loading the model.

It asks the engine with the handshake that `serve` uses and stops after CAPS, so that both give
the same answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.console import Console
from strata_protocol.codec import ToSupervisorMessage
from strata_protocol.errors import ProtocolFault
from strata_protocol.messages import (
    PROTO_MAX,
    Caps,
    Hello,
    HostFacts,
    MemoryPart,
    ModelFacts,
    ModePlan,
    Offer,
    Refuse,
)
from strata_protocol.peer import negotiate

from strata.config_source import Settings
from strata.engines.client import EngineClient
from strata.engines.engine_log import EngineLog
from strata.engines.exits import Intent, status_text
from strata.engines.handshake import HELLO_STALL_S, STALL_S
from strata.engines.modes import MODE_KEYS, ModeRow, choose, mode_rows, wanted_modes
from strata.engines.process import EngineProcess, Launch, launch
from strata.errors import EngineMissingError, RefusedError, StrataError, StrictError
from strata.model_source import find_model, find_planner
from strata.observe.terminal import print_modes


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `plan --json` prints."""

    model: ModelFacts
    host: HostFacts
    device: str
    build: str
    modes: list[ModeRow]
    plan: ModePlan
    memory: list[MemoryPart]


def show_plan(settings: Settings, *, as_json: bool, assume: str = "") -> int:
    """Prints the report; `assume` are facts of a device that is not here (find_planner). Raises
    RefusedError when the engine refuses the model, StrictError with
    `--strict`, StrataError when the engine fails."""
    config = settings.config
    model = find_model(config)
    engine, arguments = find_planner(config, assume)
    offer = Offer(
        proto=PROTO_MAX,
        run_id="plan",
        epoch=0,
        model=str(model),
        want=wanted_modes(config),
        without_kernels=list(config.without_kernel),
    )
    hello, caps = asyncio.run(_ask(Launch(engine, arguments), offer))
    explicit = frozenset(k for k in MODE_KEYS if settings.is_set(k))
    refusals = choose(caps, explicit, is_strict=config.strict).refusals
    if refusals:
        raise StrictError([r.text for r in refusals])
    report = PlanReport(
        model=caps.model,
        host=caps.host,
        device=hello.device,
        build=hello.build,
        modes=mode_rows(caps, None, []),
        plan=caps.plan,
        memory=caps.memory,
    )
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _print(report, model)
    return 0


def _print(report: PlanReport, path: Path) -> None:
    console = Console(highlight=False, soft_wrap=True)
    model, host = report.model, report.host
    types = ", ".join(model.types)
    console.print(f"model  {model.name or path.name}  {model.architecture}  {types}", markup=False)
    console.print(f"device {report.device}  {host.isa}  engine {report.build}", markup=False)
    console.print()
    print_modes(console, report.modes, report.memory)
    sys.stdout.flush()


class _Answer:
    """Collects what the engine says until CAPS or REFUSE."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self.client: EngineClient | None = None
        self.hello: Hello | None = None
        self.done: asyncio.Future[Caps | Refuse] = asyncio.get_running_loop().create_future()

    def on_message(self, message: ToSupervisorMessage) -> None:
        match message:
            case Hello() if self.client is not None:
                self.hello = message
                self.client.send(msgspec.structs.replace(self._offer, proto=negotiate(message)))
            case Caps() | Refuse() if not self.done.done():
                self.done.set_result(message)
            case _:
                pass

    def on_fault(self, fault: ProtocolFault) -> None:
        if not self.done.done():
            self.done.set_exception(StrataError(f"the engine broke the protocol: {fault}"))

    def on_end(self) -> None:
        pass

    def on_writable(self, is_writable: bool) -> None:
        pass


async def _ask(spec: Launch, offer: Offer) -> tuple[Hello, Caps]:
    try:
        process = launch(spec)
    except OSError as error:
        raise EngineMissingError(f"{spec.executable} cannot be started: {error.strerror}") from None
    answer = _Answer(offer)
    client = answer.client = EngineClient(answer)
    with TemporaryDirectory(prefix="strata-plan-") as folder:
        output = EngineLog(Path(folder), 0)
        log_pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: output, os.fdopen(process.log_fd, "rb", 0)
        )
        try:
            await client.connect(process.command_fd, process.event_fd)
            found = await _first_of(answer, process)
        finally:
            await process.end(Intent.STOP, grace_s=1.0)
            client.close()
            log_pipe.close()
    match found:
        case Caps() if answer.hello is not None:
            return answer.hello, found
        case Refuse():
            lines = [reason.text for reason in found.reasons]
            raise RefusedError("the engine refuses", lines, found.exit_code)
        case _:
            last = f": {output.lines[-1]}" if output.lines else ""
            raise StrataError(f"the engine {found}{last}")


async def _first_of(answer: _Answer, process: EngineProcess) -> Caps | Refuse | str:
    """The answer, or what became of the engine instead."""
    async with asyncio.TaskGroup() as tasks:
        exited = tasks.create_task(process.wait(), name="engine exit")
        waits: set[asyncio.Future[Any]] = {exited, answer.done}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HELLO_STALL_S + STALL_S):
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done.done():
                    await asyncio.wait({answer.done}, timeout=0.5)  # said before it ended
        exited.cancel()
    if answer.done.done():
        return answer.done.result()
    if process.returncode is not None:
        return status_text(process.returncode)
    return f"said nothing for {HELLO_STALL_S + STALL_S:.0f} s"
