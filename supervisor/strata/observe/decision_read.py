"""The decision log of a run directory as a reader finds it: what the file keeps, what a running
supervisor says besides, as lines for people. Needs no event loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from strata.engines.decision_log import Entry
from strata.observe.words import printable

FILE_NAME = "decisions.jsonl"

_decoder = msgspec.json.Decoder(Entry)


def read_decisions(run_dir: Path) -> list[Entry]:
    """Oldest first. Lines that cannot be understood are left out: the last one may be cut."""
    try:
        lines = (run_dir / FILE_NAME).read_bytes().splitlines()
    except OSError:
        return []
    entries = []
    for line in lines:
        try:
            entries.append(_decoder.decode(line))
        except msgspec.DecodeError:
            continue
    return entries


def merged(kept: Iterable[Entry], said: Iterable[Entry]) -> list[Entry]:
    """Both without repetitions, oldest first. Entries are equal by time, code and sentence."""
    found = {(e.when, e.code, e.sentence): e for e in (*kept, *said)}
    return sorted(found.values(), key=lambda entry: entry.when)


def why_lines(entries: Sequence[Entry]) -> list[str]:
    """One line each, newest last, in local time."""
    if not entries:
        return ["nothing has been decided yet"]
    return [
        printable(f"{datetime.fromtimestamp(e.when).astimezone():%Y-%m-%d %H:%M:%S}  {e.sentence}")
        for e in entries
    ]
