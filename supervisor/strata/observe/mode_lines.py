"""The table of modes as lines of text, for people. Needs no terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from strata_protocol.messages import MemoryPart

from strata.engines.modes import ModeRow, bytes_text, sentence, sentences

ALWAYS_SHOWN = ("batch", "max_context", "kv", "mtp")  # what people look for first
REASON_CHARACTERS = 100  # of a reason in the table; whole below it


def shown_rows(rows: Sequence[ModeRow]) -> list[ModeRow]:
    """What has a row of its own. What nobody set and what runs as it would anyway shares one line
    below the table."""
    return [row for row in rows if not _is_folded(row)]


def table_lines(rows: Sequence[ModeRow], runs: str = "runs") -> list[str]:
    """Heading and one line per row, aligned; `runs` heads the column of values."""
    cells = [("mode", "requested", runs, "because")]
    cells += [(r.name, r.requested, r.runs, because(r)) for r in shown_rows(rows)]
    widths = [max(len(c[i]) for c in cells) for i in range(3)]
    lines = []
    for cell in cells:
        columns = [f"{text:{width}}" for text, width in zip(cell[:3], widths, strict=True)]
        lines.append("  ".join([*columns, cell[3]]).rstrip())
    return lines


def note_lines(rows: Sequence[ModeRow], listed: Collection[str] = ()) -> list[str]:
    """What stands below the table: modes without a row of their own, and the reasons that a row
    has no room for, but for those with a code of `listed`: they have a list of their own."""
    folded = ", ".join(f"{row.name} {row.runs}" for row in rows if _is_folded(row))
    lines = [f"also: {folded}"] if folded else []
    for row in rows:
        if row.because and because(row) != sentences(row.because):
            shown = [
                f"  - {sentence(reason)}" for reason in row.because if reason.code not in listed
            ]
            lines += [f"{row.name}:", *shown] if shown else []
    return lines


def memory_lines(memory: Sequence[MemoryPart]) -> list[str]:
    """The plan's memory by part; nothing where it is not known."""
    if not memory:
        return []
    parts = ", ".join(f"{part.name} {_size(part)}" for part in memory)
    return [f"memory: {bytes_text(sum(part.bytes for part in memory))} ({parts})"]


def _size(part: MemoryPart) -> str:
    if part.on_demand_bytes:
        return f"{bytes_text(part.on_demand_bytes)} in the file"
    return bytes_text(part.bytes)


def _is_folded(row: ModeRow) -> bool:
    return row.is_as_asked and not row.is_set and row.name not in ALWAYS_SHOWN


def because(row: ModeRow) -> str:
    """Why what runs differs from what was asked, short enough for a table; empty where it does
    not. `note_lines` has the rest below the table."""
    if not row.because:
        return "" if row.is_as_asked else row.state.value
    text = row.because[0].text
    if len(text) > REASON_CHARACTERS:
        text = text[: REASON_CHARACTERS - 1] + "…"
    first = sentence(msgspec.structs.replace(row.because[0], text=text))
    more = len(row.because) - 1
    return f"{first} (and {more} more)" if more else first
