"""The status for people: what a person would ask, in that order."""

from __future__ import annotations

from strata.observe.mode_lines import memory_lines, note_lines, shown_rows, table_lines
from strata.observe.sighting import SeenProcess, Sighting, engine_text
from strata.observe.status import LoadStatus, RestartStatus, Status
from strata.observe.words import age, counted, duration, shortened

BEACON_QUIET_S = 1.0  # an engine at work moves it at least every 250 ms
YELLOW, PLAIN = "\x1b[33m", "\x1b[0m"


def sighting_lines(seen: Sighting, *, colour: bool = False) -> list[str]:
    """All lines of a service that answers; of one that does not, what is known all the same."""
    if seen.source == "socket" and seen.status is not None:
        return status_lines(seen.status, seen, colour=colour)
    lines = [seen.reason]
    if seen.state == "down" and seen.engine is None and seen.status is None:
        return lines
    if seen.supervisor is not None:
        lines.append(_line("process", _process_text(seen.supervisor)))
    if seen.engine is not None:
        lines.append(_line("engine", engine_text(seen.engine)))
        lines += [_line("", text) for text in _doing(seen)]
    if seen.status is not None:
        when = f"{age(seen.age_s)} ago"
        lines.append(_line("record", f"what follows was written {when}"))
        lines += status_lines(seen.status, None, colour=colour)
    return lines


HEADLINE_MAX = 240  # characters: three lines of a terminal
REASON_MAX = 600  # of a reason that stands nowhere else; --json has all of it


def headline(status: Status, rest: str) -> str:
    """The reason, or, where it is too long for a line, its beginning; where the table says it
    anyway, its modes. `rest` says where."""
    names = [row.name for row in status.modes if row.is_set and not row.is_as_asked]
    if len(status.reason) <= HEADLINE_MAX:
        return status.reason
    if status.state == "degraded" and names:
        return f"{', '.join(names)} not as asked ({rest})"
    return shortened(status.reason, REASON_MAX)


def status_lines(status: Status, seen: Sighting | None, *, colour: bool = False) -> list[str]:
    """The record. `seen`: what the system shows besides, where it is of the same moment."""
    reason = f": {headline(status, 'see below')}" if status.reason else ""
    up = duration(status.supervisor.uptime_s)
    lines = [_line("strata", f"{status.state.upper()}{reason}  up {up}  {status.supervisor.url}")]
    if status.supervisor.record_age_s:
        record_age = age(status.supervisor.record_age_s)
        lines.append(_line("record", f"the event loop is busy; what follows is {record_age} old"))
    model = status.model
    facts = f"  {model.architecture}" if model.architecture else ""
    lines.append(_line("model", f"{model.name}{facts}  {model.path}"))
    lines += _engine_lines(status, seen)
    lines.append(_line("restarts", _restarts_text(status.restarts)))
    policy = status.restarts.policy
    if policy.rung_index:
        pinned = ", pinned" if policy.is_pinned else ""
        rungs = f"{policy.rung} ({policy.rung_index + 1} of {policy.rung_count}{pinned})"
        lines.append(_line("rung", f"{rungs}: {policy.rung_why}"))
    lines += [
        _line("quarantine", f"{row.mode} {row.state}: {row.sentence} ({row.id})")
        for row in status.quarantine
    ]
    lines.append(_line("load", _load_text(status.load)))
    if status.modes:
        lines += ["", *_table(status, colour=colour)]
        lines += [*note_lines(status.modes), *memory_lines(status.memory)]
    return lines


def _line(name: str, text: str) -> str:
    return f"{name:9} {text}"


def _process_text(seen: SeenProcess) -> str:
    states = {"stopped": "is stopped", "gone": "is gone"}
    return f"supervisor pid {seen.pid} {states.get(seen.state, seen.state)}"


def _doing(seen: Sighting) -> tuple[str, ...]:
    engine = seen.engine
    if engine is None or engine.beacon is None or engine.state == "gone":
        return ()
    return engine.beacon.doing[1:]  # the first is the phase, which stands above


def _engine_lines(status: Status, seen: Sighting | None) -> list[str]:
    engine = status.engine
    if engine is None:
        return [_line("engine", "not running")]
    lines = [
        _line(
            "engine",
            f"pid {engine.pid}  {engine.phase}  up {duration(engine.uptime_s)}"
            f"  build {engine.build}  {engine.device}  {engine.isa}".rstrip(),
        )
    ]
    found = seen.engine if seen is not None else None
    if found is None or found.pid != engine.pid:
        return lines
    beacon = found.beacon
    is_idle = beacon is not None and beacon.phase == "ready"
    is_still = beacon is not None and not is_idle and (beacon.still_s or 0.0) > BEACON_QUIET_S
    if found.state != "runs" or is_still:
        lines.append(_line("beacon", engine_text(found)))
    elif beacon is not None:
        text = f"phase {beacon.phase}, step {beacon.step}"
        moved = "" if beacon.still_s is None else f" (moved {age(beacon.still_s)} ago)"
        lines.append(_line("beacon", text + moved))
    return lines


def _restarts_text(restarts: RestartStatus) -> str:
    text = f"{counted(restarts.starts, 'start')}, {counted(restarts.crashes, 'crash', 'es')}"
    if restarts.boot_attempts:
        text += f", {counted(restarts.boot_attempts, 'boot attempt')} ended in a probe"
    if restarts.last is not None:
        text += f"; last: {restarts.last.text}, {duration(restarts.last.ago_s)} ago"
        if restarts.last.exit_class == "external":
            text += " (from outside, no crash)"
        if restarts.last.bundle:
            text += f" [crashes show {restarts.last.bundle}]"
    if restarts.next_start_s is not None:
        text += f"; next start in {duration(restarts.next_start_s)}"
    return text


def _load_text(load: LoadStatus) -> str:
    text = f"{load.running} running  {load.waiting} waiting"
    if load.waiting:
        text += f" (oldest {load.oldest_wait_s:.1f} s)"
    text += f"  kv pages {load.kv_pages_used} used, {load.kv_pages_cached} cached"
    text += f" of {load.kv_pages_total}  {load.tokens_per_s:.1f} tok/s over the last 10 s"
    if load.prompt_tokens:
        share = 100 * load.cached_tokens / load.prompt_tokens
        text += f"  prefix cache {share:.0f} % of {load.prompt_tokens} prompt tokens"
    if load.drafted_tokens:
        share = 100 * load.accepted_tokens / load.drafted_tokens
        mean = 1 + load.accepted_tokens / load.draft_steps
        text += f"  drafts {share:.0f} % of {load.drafted_tokens} right,"
        text += f" {mean:.2f} tokens a step with drafts"
    if load.ttft_p50_s is not None and load.ttft_p95_s is not None:
        text += f"  first token p50/p95 {load.ttft_p50_s:.2f}/{load.ttft_p95_s:.2f} s"
    if load.quarantined:
        text += f"  {load.quarantined} refused for killing engines"
    if load.shapes_apart:
        text += f"  kinds that ended engines: {'; '.join(load.shapes_apart)}"
    return text


def _table(status: Status, *, colour: bool) -> list[str]:
    lines = table_lines(status.modes)
    if not colour:
        return lines
    marked = [True, *(row.is_as_asked for row in shown_rows(status.modes))]
    return [
        line if as_asked else f"{YELLOW}{line}{PLAIN}"
        for line, as_asked in zip(lines, marked, strict=True)
    ]
