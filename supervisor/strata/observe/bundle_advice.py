"""What a person can do about a crash, by what ended the engine."""

from __future__ import annotations

import signal
from pathlib import Path

from strata_protocol.exit_codes import ExitCode

from strata.engines.exits import ExitClass
from strata.engines.modes import bytes_text
from strata.observe.bundle import BundleMeta
from strata.observe.bundle_store import Bundle
from strata.observe.words import command_line

PRESSURE_PERCENT = 10.0  # from here on waiting for memory explains a hang


def advice(found: Bundle, run_dir: Path | None) -> list[str]:
    """Sentences, the most useful first; `run_dir` is where the bundle lies."""
    meta = found.meta
    lines: list[str] = []
    if meta is not None:
        lines += _about_mode(meta, run_dir)
        lines += _about_exit(meta, found, run_dir)
        lines += _about_hold(meta)
    export = command_line(f"crashes export {found.id}", run_dir)
    lines.append(
        f"Report it with what `{export}` writes; it holds no prompts, no answers and no keys."
    )
    return lines


def _about_mode(meta: BundleMeta, run_dir: Path | None) -> list[str]:
    if meta.taken_out:
        modes = ", ".join(meta.taken_out)
        text = (
            f"The service goes on without {modes}. After a repair that leaves the build the same,"
            f" `{command_line('quarantine list', run_dir)}` lists it and"
            f" `{command_line('quarantine clear ID', run_dir)}` offers it again."
        )
        return [text]
    if meta.blamed_mode and not meta.is_blame_certain:
        return [f"If it comes back, start without the mode that is suspected: {meta.blamed_mode}."]
    return []


def _about_exit(meta: BundleMeta, found: Bundle, run_dir: Path | None) -> list[str]:
    match meta.exit_class:
        case ExitClass.OOM:
            return _about_memory(found)
        case ExitClass.HANG:
            return _about_hang(meta, found)
        case ExitClass.PROTOCOL:
            show = command_line(f"crashes show {found.id} --json", run_dir)
            return [f"Check that engine and supervisor are of one release (`{show}`)."]
        case ExitClass.BOOT:
            command = meta.command[0] if meta.command else "the engine"
            return [f"Check that {command} can be run by this user on this machine."]
        case ExitClass.EXIT:
            if meta.status == ExitCode.DEVICE_LOST:
                return ["Look in the system's log for faults of the device and its driver."]
            return []
        case ExitClass.SIGNAL:
            return _about_signal(meta)
    return []


def _about_memory(found: Bundle) -> list[str]:
    text = (
        "Ask for less memory: a smaller --max-context, --kv-tokens or --batch, or a smaller --kv"
        " type; `strata-supervisor plan` shows what each needs."
    )
    lines = [text]
    memory = found.memory
    if memory is not None and memory.total_bytes > 0:
        lines.append(
            f"See what else uses memory: {bytes_text(memory.available_bytes)} of"
            f" {bytes_text(memory.total_bytes)} were free after the engine had ended."
        )
        limit = memory.cgroup.get("memory.max", "max")
        if limit != "max":
            lines.append(f"The control group of the service is limited to {limit} bytes.")
    return lines


def _about_hang(meta: BundleMeta, found: Bundle) -> list[str]:
    lines = []
    share = found.memory.pressure_share if found.memory is not None else None
    if share is not None and share >= PRESSURE_PERCENT:
        lines.append(f"The machine was short of memory: {share:.0f} % of the time was waiting.")
    if found.beacon is not None and found.beacon.phase == "prefill":
        lines.append("If prompts are only slow here, lower --prefill: fewer rows share a step.")
    return lines


def _about_signal(meta: BundleMeta) -> list[str]:
    if meta.signal == signal.SIGILL:
        return ["The processor may lack an instruction: try --isa portable."]
    if meta.signal == signal.SIGBUS:
        text = (
            f"A mapped file could not be read: check that {meta.model or 'the model file'} is whole"
            " and was not replaced in place, and the disk; --no-mmap reads it at the start."
        )
        return [text]
    return []


def _about_hold(meta: BundleMeta) -> list[str]:
    if meta.decision != "hold":
        return []
    text = (
        "The service answers 503 while it is held; to try at once, restart it. Start with less, for"
        " example --batch 1, to find what brings the engine down."
    )
    return [text]
