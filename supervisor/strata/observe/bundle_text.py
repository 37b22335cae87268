"""A crash bundle for people, in four parts: what happened, what it was doing, what we did about it,
what you can do. Never raises, whatever a bundle holds or lacks.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from strata_protocol.messages import ModePlan

from strata.engines.modes import bytes_text
from strata.observe.beacon_text import crash_lines, doing_lines, step_lines
from strata.observe.bundle_advice import advice
from strata.observe.bundle_store import Bundle
from strata.observe.words import age, counted, duration, printable
from strata.serving.request_facts import RequestFacts

REQUESTS_SHOWN = 8
OUTPUT_LINES_SHOWN = 10
FRAMES_SHOWN = 8


def bundle_text(found: Bundle, now: datetime, run_dir: Path | None = None) -> str:
    """All four parts. `now`: UTC; `run_dir`: where the bundle lies, None: the
    default one."""
    parts = [
        ("What happened", _happened(found, now)),
        ("What it was doing", _doing(found)),
        ("What we did about it", _done(found)),
        ("What you can do", [printable(line) for line in advice(found, run_dir)]),
    ]
    text = f"crash {found.id}\n"
    for title, lines in parts:
        text += f"\n{title}\n" + "".join(f"  {line}\n" for line in lines or ["nothing is known"])
    return text


def list_line(found: Bundle, now: datetime) -> str:
    """One bundle of a list: id, when, class, sentence, mode implicated, what was done."""
    meta = found.meta
    if meta is None:
        return printable(f"{found.id}  damaged: {'; '.join(found.problems)}")
    mode = f"  mode {meta.blamed_mode}" if meta.blamed_mode else ""
    text = f"{found.id}  {_when(meta.when, now)}  {meta.exit_class}  {meta.sentence}{mode}"
    return printable(f"{text}  {decision_text(found)}")


def decision_text(found: Bundle) -> str:
    """What was done: "started again at once without batch"."""
    meta = found.meta
    if meta is None:
        return ""
    without = f" without {', '.join(meta.taken_out)}" if meta.taken_out else ""
    without += f" on rung {meta.rung}" if meta.rung else ""
    match meta.decision:
        case "start":
            when = f"after {meta.delay_s:.1f} s" if meta.delay_s else "at once"
            return f"started again {when}{without}"
        case "hold":
            return f"held for {duration(meta.delay_s)}{without}: {meta.reason}"
        case "stay_down":
            return "left down until something changes"
        case "stopped":
            return "not started again, as the service was being ended"
    return "what followed is not known"


def _when(when: str, now: datetime) -> str:
    try:
        then = datetime.fromisoformat(when)
        passed_s = (now - then.astimezone(UTC)).total_seconds()
        shown = then.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError):
        return "at an unknown time"
    return f"{shown}, {duration(passed_s)} ago" if passed_s >= 0 else shown


def _happened(found: Bundle, now: datetime) -> list[str]:
    meta = found.meta
    damaged = [printable(f"damaged: {problem}") for problem in found.problems]
    if meta is None:
        return damaged
    start = f"engine start {meta.epoch}, pid {meta.pid}"
    lines = [
        _exit_sentence(meta.text),
        f"{_when(meta.when, now)}, class {meta.exit_class}, {start}",
        f"signature {meta.signature}: {meta.sentence}",
    ]
    if found.beacon is not None and found.beacon.crash is not None:
        lines += crash_lines(found.beacon.crash)
    build_id = f" ({meta.build_id})" if meta.build_id else ""
    lines.append(f"engine {meta.build or 'unknown'}{build_id}, supervisor {meta.supervisor}")
    host = meta.host
    machine = [host.cpu, host.isa, counted(host.cores, "core")] if host is not None else []
    lines.append(", ".join(x for x in (meta.device, *machine, meta.system) if x))
    lines.append(f"model {meta.model}")
    lines += [f"left out: {name}" for name in meta.left_out]
    return [printable(line) for line in lines] + damaged


def _exit_sentence(text: str) -> str:
    """ "killed by ..." as a whole sentence; what names its subject stays as it is."""
    match text.partition(" ")[0]:
        case "killed" | "ended":
            return f"The engine was {text}."
        case "exited":
            return f"The engine {text}."
    return f"{text}."


def _doing(found: Bundle) -> list[str]:
    meta, view = found.meta, found.beacon
    lines: list[str] = []
    if view is not None:
        lines += doing_lines(view)
    elif meta is not None:
        lines.append(f"phase {meta.phase}; it left no beacon")
    if meta is not None and meta.still_s is not None:
        lines.append(f"last movement {age(meta.still_s)} before its end was known")
    if meta is not None and meta.plan is not None and not (view is not None and view.plan):
        lines.append(f"plan: {_plan(meta.plan)}")
    if view is not None and view.dump is not None:
        lines += ["when it was asked before it was ended:", *crash_lines(view.dump)]
    if view is not None:
        lines += step_lines(view.steps)
    lines += _requests(found.requests)
    if found.memory is not None:
        memory = found.memory
        free, total = bytes_text(memory.available_bytes), bytes_text(memory.total_bytes)
        lines.append(f"memory of the machine: {free} of {total} free after its end")
    if found.frames:
        last = [f"{'>' if f.to_engine else '<'}{f.type} {f.bytes}" for f in found.frames]
        lines.append(f"last frames (> to the engine): {'  '.join(last[-FRAMES_SHOWN:])}")
    output = (found.tail or found.head).splitlines()[-OUTPUT_LINES_SHOWN:]
    if output:
        lines += ["last lines of its output:", *(f"  {line}" for line in output)]
    return [printable(line) for line in lines]


def _plan(plan: ModePlan) -> str:
    spec = f", spec {plan.spec}" if plan.spec else ""
    return (
        f"batch {plan.batch}, prefill {plan.prefill}, context {plan.max_context}, kv {plan.kv},"
        f" activations {plan.activations}{spec}, threads {plan.threads}"
    )


def _requests(requests: list[RequestFacts]) -> list[str]:
    if not requests:
        return []
    first = sorted(requests, key=lambda r: not r.was_in_step)[:REQUESTS_SHOWN]
    lines = [f"{counted(len(requests), 'request')} in the engine:"]
    for r in first:
        params = ", ".join(f"{name} {value}" for name, value in r.params.items())
        where = ", in the step" if r.was_in_step else ""
        mark = f", fingerprint {r.fingerprint}" if r.fingerprint else ""
        lines.append(
            f"  request {r.rid}{where}: {counted(r.prompt_tokens, 'prompt token')},"
            f" {r.output_tokens} generated{mark}" + (f" ({params})" if params else "")
        )
    if len(requests) > len(first):
        lines.append(f"  and {len(requests) - len(first)} more")
    return lines


def _done(found: Bundle) -> list[str]:
    meta = found.meta
    if meta is None:
        return []
    decision = decision_text(found)
    lines = [f"{decision[0].upper()}{decision[1:]}."]
    if meta.taken_out:
        lines.append(
            f"Mode {', '.join(meta.taken_out)} was taken out: the signature implicates it."
        )
    elif meta.blamed_mode and not meta.is_blame_certain:
        lines.append(
            f"Mode {meta.blamed_mode} is suspected; a second crash of this signature takes it out."
        )
    elif meta.blamed_mode:
        lines.append(f"Mode {meta.blamed_mode} is implicated.")
    else:
        lines.append("No mode is implicated.")
    lines.append(
        f"It was the end of engine start {meta.starts} of this service, with"
        f" {counted(meta.crashes, 'crash', 'es')} and"
        f" {counted(meta.boot_attempts, 'boot attempt')} so far."
    )
    return [printable(line) for line in lines]
