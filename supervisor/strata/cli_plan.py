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
from strata_protocol.exit_codes import ExitCode
from strata_protocol.messages import PROTO_MAX, Caps, Hello, Offer, Refuse, WantedModes

from strata.cli_plan_text import print_plan, where
from strata.config_source import Settings
from strata.engines.enquiry import Answer, ask
from strata.engines.largest import Search
from strata.engines.model_files import model_files
from strata.engines.modes import (
    MODE_KEYS,
    Policy,
    choose,
    fitting,
    sentence,
    shortened,
    wanted_modes,
)
from strata.engines.process import Launch
from strata.engines.quarantine import QuarantineRecord
from strata.engines.quarantine_look import QuarantineLook, look
from strata.errors import RefusedError, StrictError
from strata.model_source import find_model, find_planner, find_ple
from strata.plan_report import PlanReport, make_report, refused_report


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
    model, ple = find_model(config), find_ple(config)
    files = model_files(model, str(ple or ""))
    planner = find_planner(config, assume)
    offer = Offer(
        proto=PROTO_MAX,
        run_id="plan",
        epoch=0,
        model=str(model),
        want=wanted_modes(config),
        without_kernels=list(config.without_kernel),
        ple=str(ple or ""),
    )
    explicit = frozenset(k for k in MODE_KEYS if settings.is_set(k))
    policy = Policy.STRICT if config.strict else Policy.FALLBACK
    run_dir = Path(config.run_dir).expanduser().absolute()
    quarantine = None
    if planner.is_here:
        quarantine = look(run_dir, files, planner.engine, config.quarantine_trial_s, time.time)
    launch = Launch(planner.engine, planner.arguments)
    question = _Question(launch, offer, explicit, policy, quarantine)
    report, refusal = asyncio.run(_plan(question))
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        print_plan(report, model, run_dir)
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
        lines = [sentence(reason) for reason in caps.reasons]
        report = refused_report(answer.hello, caps)
        return report, RefusedError("the engine refuses", lines, caps.exit_code)
    choice = choose(
        question.offer.want,
        question.explicit,
        caps.configurations,
        caps.reasons,
        quarantine=question.out(answer.hello),
        policy=question.policy,
        device=caps.device,
    )
    fits = choice if choice.plan is not None else fitting(choice)

    async def again(wanted: WantedModes) -> Caps | Refuse:
        return (await question.ask(wanted)).said

    largest = None
    if fits.plan is not None:
        by_memory = fits is not choice
        search = Search(again, question.explicit, fits, fits.plan, by_memory)
        largest = await search.run(caps.model.context)
    report = make_report(answer.hello, caps, choice, fits, largest)
    if choice.plan is None:
        title = f"nothing of it can run {where(report.device)}"
        lines = [sentence(reason) for reason in shortened(report.refusals)]
        return report, RefusedError(title, lines, ExitCode.CONFIG_REFUSED)
    return report, StrictError(list(choice.refusal_lines)) if choice.refusals else None
