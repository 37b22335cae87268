"""The report of `plan` for people: device, table, what is kept out, memory, sizes that fit and the
list of missing kernels. Each fact stands once: kernels are in their list and not in the table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from strata_protocol.messages import DeviceFacts

from strata.config_source import fields
from strata.engines.modes import MissingKernel, bytes_text, sentence, shortened
from strata.engines.modes.checklist import MISSING
from strata.observe.terminal import print_modes
from strata.plan_report import PlanReport

TENSORS_SHOWN = 4
KV_TYPES = [name for name in fields()["kv"].choices if name != "auto"]


def print_plan(report: PlanReport, path: Path, run_dir: Path) -> None:
    """`path`: the model's file; `run_dir`: whose quarantine was looked at."""
    console = Console(highlight=False, soft_wrap=True)

    def line(text: str = "") -> None:
        console.print(text, markup=False)

    model = report.model
    line(f"model  {model.name or path.name}  {model.architecture}  {', '.join(model.types)}")
    line(f"device {_device_text(report)}  engine {report.build}")
    for note in report.notes:
        line(f"note   {sentence(note)}")
    _print_modes(console, report)
    if report.kv_types:
        others = [name for name in KV_TYPES if name not in report.kv_types]
        absent = f"; without: {', '.join(others)}" if others else ""
        line(f"kv types with kernels for this model: {', '.join(report.kv_types)}{absent}")
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
    _print_largest(console, report)
    if report.missing:
        line()
        line(_checklist_title(report))
        for kernel in report.missing:
            for text in checklist_lines(kernel):
                line(text)
    sys.stdout.flush()


def where(device: DeviceFacts) -> str:
    """ "here", or the assumed device's name."""
    if not device.is_assumed:
        return "here"
    return f"on {device.name}" if "assumed" in device.name else f"on {device.name} (assumed)"


def _device_text(report: PlanReport) -> str:
    device = report.device
    if not device.is_assumed:
        return f"{device.name}  {report.host.isa}"
    assumed = "" if "assumed" in device.name else " (assumed)"
    if device.memory_available_bytes:
        memory = f"{bytes_text(device.memory_available_bytes)} of memory assumed"
    else:
        memory = "memory not known, so it limits nothing; --device-memory 24GiB would say"
    isa = f"  {report.host.isa}" if report.host.isa else ""
    return f"{device.name}{assumed}{isa}  {memory}"


def _print_modes(console: Console, report: PlanReport) -> None:
    if not report.modes:
        return
    console.print()
    if report.plan is not None:
        print_modes(console, report.modes, [], listed=(MISSING,))
        return
    console.print("nothing runs, every mode is unsupported:", markup=False)
    for reason in shortened(report.refusals):
        console.print(f"  {sentence(reason)}", markup=False)
    if report.fits is not None:
        console.print("what memory would hold if the kernels were there:", markup=False)
        console.print()
        print_modes(console, report.fits.modes, [], runs="would fit")


def _print_largest(console: Console, report: PlanReport) -> None:
    plan = report.plan or (report.fits.plan if report.fits else None)
    largest = report.largest
    if largest is None or plan is None:
        return
    fits = "that fits" if report.plan is not None else "that memory would hold"
    console.print()
    for text in (
        f"largest context {fits}: {largest.max_context} tokens, with batch {plan.batch}",
        f"largest batch {fits}: {largest.batch}, with max_context {plan.max_context}",
    ):
        console.print(text, markup=False)


def _print_memory(console: Console, report: PlanReport) -> None:
    """The parts, their sum, and what is there."""
    parts = [(part.name, bytes_text(part.bytes), part.text) for part in report.memory]
    parts.append(("total", bytes_text(report.memory_total_bytes), ""))
    if report.memory_available_bytes:
        word = "assumed" if report.device.is_assumed else "available"
        parts.append((word, bytes_text(report.memory_available_bytes), ""))
    widths = [max(len(part[i]) for part in parts) for i in range(2)]
    is_asked = report.plan is None and report.fits is None
    console.print("memory of what was asked for:" if is_asked else "memory:", markup=False)
    for name, size, text in parts:
        row = f"  {name:{widths[0]}}  {size:>{widths[1]}}  {text}"
        console.print(row.rstrip(), markup=False)


def _checklist_title(report: PlanReport) -> str:
    """Where nothing runs, the entries with a mode belong to one way to run of two."""
    ways = dict.fromkeys(mode for kernel in report.missing for mode in kernel.modes)
    if report.plan is not None or len(ways) < 2:
        return "missing kernels:"
    return f"missing kernels; of those with a mode, either {' or '.join(ways)} is enough:"


def checklist_lines(kernel: MissingKernel) -> Iterable[str]:
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
