"""`plan MODEL`: what would run and why not more, without loading the model or starting a service.

It asks the engine with the handshake that `serve` uses and chooses as `serve` does, with the
quarantine of the run directory, so that both give the same answer. A plan for a device that is not
here is no engine's start: no quarantine applies to it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from strata_protocol.exit_codes import ExitCode
from strata_protocol.messages import (
    PROTO_MAX,
    Caps,
    DeviceFacts,
    Hello,
    HostFacts,
    MemoryPart,
    ModelFacts,
    ModePlan,
    Offer,
    Reason,
    Refuse,
    WantedModes,
)

from strata.config_source import Settings
from strata.engines.enquiry import Answer, ask
from strata.engines.largest import Largest, Search
from strata.engines.modes import (
    MODE_KEYS,
    Choice,
    MissingKernel,
    ModeRow,
    Policy,
    Rung,
    bytes_text,
    choose,
    missing_kernels,
    sentence,
    usable_bytes,
    wanted_modes,
)
from strata.engines.process import Launch
from strata.engines.quarantine import QuarantineRecord, QuarantineRow
from strata.engines.quarantine_look import QuarantineLook, look
from strata.errors import RefusedError, StrictError
from strata.model_source import find_model, find_planner
from strata.observe.terminal import print_modes

TENSORS_SHOWN = 4


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `plan` prints, and `plan --json` as it is."""

    model: ModelFacts
    host: HostFacts
    device: DeviceFacts
    build: str
    modes: list[ModeRow]  # empty where nothing can run
    plan: ModePlan | None  # what would run
    ladder: list[Rung]  # what would run, then plainer and plainer configurations
    memory: list[MemoryPart]
    memory_total_bytes: int
    memory_available_bytes: int  # and may be used
    missing: list[MissingKernel]
    largest: Largest | None
    refusals: list[Reason]  # why nothing runs, or why --strict refuses
    quarantine: list[QuarantineRow]  # of the run directory, that keep modes from being offered
    quarantine_problem: str  # why it could not be read; empty where it could


@dataclass(frozen=True, slots=True)
class _Question:
    """What is asked, and of whom; `quarantine` is None where none applies."""

    launch: Launch
    offer: Offer
    explicit: frozenset[str]
    policy: Policy
    quarantine: QuarantineLook | None

    def out(self, hello: Hello) -> Sequence[QuarantineRecord]:
        return self.quarantine.out(hello) if self.quarantine is not None else ()

    async def ask(self, wanted: WantedModes) -> Answer:
        """Raises as `enquiry.ask`."""
        offer = msgspec.structs.replace(self.offer, want=wanted)
        return await ask(self.launch, offer, lambda hello: [r.mode for r in self.out(hello)])

    def with_quarantine(self, report: PlanReport, hello: Hello) -> PlanReport:
        if self.quarantine is None:
            return report
        rows = self.quarantine.rows(self.out(hello))
        return msgspec.structs.replace(
            report, quarantine=rows, quarantine_problem=self.quarantine.problem
        )


def show_plan(settings: Settings, *, as_json: bool, assume: str = "") -> int:
    """Prints the report; `assume` are facts of a device that is not here (find_planner). Raises
    RefusedError when the engine refuses the model or nothing can run,
    StrictError with `--strict`, StrataError when the engine fails."""
    config = settings.config
    model = find_model(config)
    planner = find_planner(config, assume)
    offer = Offer(
        proto=PROTO_MAX,
        run_id="plan",
        epoch=0,
        model=str(model),
        want=wanted_modes(config),
        without_kernels=list(config.without_kernel),
    )
    explicit = frozenset(k for k in MODE_KEYS if settings.is_set(k))
    policy = Policy.STRICT if config.strict else Policy.FALLBACK
    run_dir = Path(config.run_dir).expanduser().absolute()
    quarantine = None
    if planner.is_here:
        quarantine = look(run_dir, model, planner.engine, config.quarantine_trial_s, time.time)
    launch = Launch(planner.engine, planner.arguments)
    question = _Question(launch, offer, explicit, policy, quarantine)
    report, refusal = asyncio.run(_plan(question))
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        _print(report, model, run_dir)
    sys.stdout.flush()
    if refusal is not None:
        raise refusal
    return 0


async def _plan(question: _Question) -> tuple[PlanReport, RefusedError | None]:
    """The report, and the error that ends the command after it."""
    answer = await question.ask(question.offer.want)
    report, refusal = await _judge(question, answer)
    return question.with_quarantine(report, answer.hello), refusal


async def _judge(question: _Question, answer: Answer) -> tuple[PlanReport, RefusedError | None]:
    caps = answer.said
    if isinstance(caps, Refuse):
        return _refused(answer.hello, caps)
    choice = choose(
        question.offer.want,
        question.explicit,
        caps.configurations,
        caps.reasons,
        quarantine=question.out(answer.hello),
        policy=question.policy,
        device=caps.device,
    )
    lines = list(choice.refusal_lines)
    if choice.plan is None:
        error = RefusedError("nothing of it can run here", lines, ExitCode.CONFIG_REFUSED)
        return _report(answer.hello, caps, choice, None), error

    async def again(wanted: WantedModes) -> Caps | Refuse:
        return (await question.ask(wanted)).said

    largest = await Search(again, question.explicit, choice, choice.plan).run(caps.model.context)
    report = _report(answer.hello, caps, choice, largest)
    return report, StrictError(lines) if choice.refusals else None


def _report(hello: Hello, caps: Caps, choice: Choice, largest: Largest | None) -> PlanReport:
    # Where nothing can run, what was asked for still has a size.
    memory = (choice.configuration or caps.configurations[0]).memory
    device = caps.device
    if not device.name:
        device = msgspec.structs.replace(device, name=hello.device)
    return PlanReport(
        model=caps.model,
        host=caps.host,
        device=device,
        build=hello.build,
        modes=list(choice.rows),
        plan=choice.plan,
        ladder=list(choice.ladder),
        memory=memory,
        memory_total_bytes=sum(part.bytes for part in memory),
        memory_available_bytes=usable_bytes(choice.offered.wanted, device),
        missing=missing_kernels(choice.rows, choice.refusals if choice.plan is None else ()),
        largest=largest,
        refusals=list(choice.refusals),
        quarantine=[],
        quarantine_problem="",
    )


def _refused(hello: Hello, refuse: Refuse) -> tuple[PlanReport, RefusedError]:
    """The engine says itself that nothing can run, and nothing else."""
    report = PlanReport(
        model=ModelFacts(),
        host=HostFacts(),
        device=DeviceFacts(name=hello.device, backend=hello.backend),
        build=hello.build,
        modes=[],
        plan=None,
        ladder=[],
        memory=[],
        memory_total_bytes=0,
        memory_available_bytes=0,
        missing=missing_kernels([], refuse.reasons),
        largest=None,
        refusals=refuse.reasons,
        quarantine=[],
        quarantine_problem="",
    )
    lines = [sentence(reason) for reason in refuse.reasons]
    return report, RefusedError("the engine refuses", lines, refuse.exit_code)


def _print(report: PlanReport, path: Path, run_dir: Path) -> None:
    console = Console(highlight=False, soft_wrap=True)

    def line(text: str = "") -> None:
        console.print(text, markup=False)

    model, host, device = report.model, report.host, report.device
    assumed = " (assumed)" if device.is_assumed else ""
    line(f"model  {model.name or path.name}  {model.architecture}  {', '.join(model.types)}")
    line(f"device {device.name}{assumed}  {host.isa}  engine {report.build}")
    if report.modes:
        line()
        print_modes(console, report.modes, [])
    if report.quarantine:
        line()
        line(f"not offered, because engines of the run directory {run_dir} ended in it:")
        for row in report.quarantine:
            line(f"  {row.mode}: {row.sentence} (quarantine {row.id})")
    if report.quarantine_problem:
        line()
        line(f"planned without a quarantine: {report.quarantine_problem}")
    if report.memory:
        line()
        _print_memory(console, report)
    if report.largest is not None and report.plan is not None:
        plan, largest = report.plan, report.largest
        line()
        line(f"largest context that fits: {largest.max_context} tokens, with batch {plan.batch}")
        line(f"largest batch that fits: {largest.batch}, with max_context {plan.max_context}")
    if report.missing:
        line()
        line("missing kernels:")
        for kernel in report.missing:
            for text in checklist_lines(kernel):
                line(text)


def _print_memory(console: Console, report: PlanReport) -> None:
    """The parts, their sum, and what is there."""
    parts = [(part.name, bytes_text(part.bytes), part.text) for part in report.memory]
    parts.append(("total", bytes_text(report.memory_total_bytes), ""))
    if report.memory_available_bytes:
        parts.append(("available", bytes_text(report.memory_available_bytes), ""))
    widths = [max(len(part[i]) for part in parts) for i in range(2)]
    console.print("memory:", markup=False)
    for name, size, text in parts:
        row = f"  {name:{widths[0]}}  {size:>{widths[1]}}  {text}"
        console.print(row.rstrip(), markup=False)


def checklist_lines(kernel: MissingKernel) -> list[str]:
    """One entry of the list of missing kernels, for people."""
    if not kernel.op:
        return [f"  [ ] {text}" for text in kernel.texts]
    features = "".join(f" +{feature}" for feature in kernel.features)
    types = f" {kernel.types}" if kernel.types else ""
    modes = f"  for {', '.join(kernel.modes)}" if kernel.modes else ""
    lines = [f"  [ ] {kernel.op}{types}{features}{modes}"]
    lines += [f"        {shape}" for shape in kernel.shapes]
    if kernel.tensors:
        shown = ", ".join(kernel.tensors[:TENSORS_SHOWN])
        more = len(kernel.tensors) - TENSORS_SHOWN
        lines.append(f"        {shown}" + (f" and {more} more" if more > 0 else ""))
    lines.append(f"        {kernel.operations} in a step")
    return lines
