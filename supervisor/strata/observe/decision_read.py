"""The decision log of a run directory as a reader finds it: what the file keeps, what a running
supervisor says besides, as lines for people. Needs no event loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from strata.engines.decision_log import Entry
from strata.observe.words import printable, shortened, wrapped

FILE_NAME = "decisions.jsonl"
SENTENCE_MAX = 600  # characters

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
    """Newest last, in local time; a long sentence in several lines, of SENTENCE_MAX characters at
    most: `--json` has all of it."""
    if not entries:
        return ["nothing has been decided yet"]
    return [line for entry in entries for line in _entry_lines(entry)]


def now_lines(state: str, reason: str) -> list[str]:
    """What the decisions have led to, in the form of theirs."""
    text = f"{state}: {printable(reason)}" if reason else state
    return wrapped("now: ", shortened(text, SENTENCE_MAX))


def _entry_lines(entry: Entry) -> list[str]:
    when = f"{datetime.fromtimestamp(entry.when).astimezone():%Y-%m-%d %H:%M:%S}  "
    return wrapped(when, shortened(printable(entry.sentence), SENTENCE_MAX))
