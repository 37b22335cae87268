"""A beacon as plain sentences. Never raises: what is in a beacon may be anything."""

from __future__ import annotations

from strata_protocol.beacon import BeaconView, CrashRecord, StepRecord

from strata.engines.exits import STEP_PHASES, signal_name
from strata.engines.modes import bytes_text
from strata.observe.words import counted, printable

STEPS_SHOWN = 5
FRAMES_SHOWN = 12
RIDS_SHOWN = 8


def doing_lines(view: BeaconView) -> list[str]:
    """What the compute thread was at, without times."""
    place = f"phase {view.phase}"
    if view.mode:
        place += f" of mode {view.mode}"
    if view.kernel:
        place += f", kernel {view.kernel}"
        if view.layer >= 0:
            place += f", layer {view.layer}"
        if view.op >= 0:
            place += f", operation {view.op} of the step"
    lines = [place, f"{counted(view.step, 'step')} begun since it was ready"]
    is_step = view.phase in STEP_PHASES or (view.phase == "dying" and bool(view.kernel))
    when = "the step under way" if is_step else "the last step"
    if view.rows or view.sequences:
        step = f"{when}: {counted(view.sequences, 'sequence')}, {counted(view.rows, 'row')}"
        if view.rids:
            shown = ", ".join(map(str, view.rids[:RIDS_SHOWN]))
            more = view.rid_count - min(len(view.rids), RIDS_SHOWN)
            step += f", requests {shown}" + (f" and {more} more" if more > 0 else "")
        lines.append(step)
    if view.plan:
        lines.append(f"plan: {view.plan}")
    if view.rss_bytes:
        lines.append(f"memory of the engine: {bytes_text(view.rss_bytes)}")
    if view.assert_text:
        lines.append(f"assertion: {view.assert_text}")
    if view.exit_called:
        status = f" with status {view.exit_status}" if view.exit_status >= 0 else ""
        lines.append(f"exit() was called{status}")
    if view.is_torn:
        lines.append("the values above were being changed: they may not belong together")
    return [printable(line) for line in lines]


def step_lines(steps: tuple[StepRecord, ...], count: int = STEPS_SHOWN) -> list[str]:
    """The last steps, newest last."""
    return [
        printable(
            f"step {s.step}: {s.phase}, {counted(s.sequences, 'sequence')},"
            f" {counted(s.rows, 'row')}, {s.ms:.1f} ms"
        )
        for s in (steps[-count:] if count > 0 else ())
    ]


def crash_lines(record: CrashRecord) -> list[str]:
    """Where a thread was when a signal came."""
    first = f"{signal_name(record.signal)} in the thread {record.thread or 'unknown'}"
    if record.kernel:
        first += f", kernel {record.kernel}"
    if record.is_external:
        first += f", sent by process {record.sender_pid}"
    elif record.address:
        first += f", address {record.address:#x}"
    if not record.is_whole:
        first += " (the record was not finished)"
    lines = [first, *(f"  {frame}" for frame in record.frames[:FRAMES_SHOWN])]
    if len(record.frames) > FRAMES_SHOWN:
        lines.append(f"  and {len(record.frames) - FRAMES_SHOWN} more frames")
    return [printable(line) for line in lines]
