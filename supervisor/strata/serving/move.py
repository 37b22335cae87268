"""Whether what runs on one engine can go on with another, before it is moved. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from strata.serving.admission import Admission
from strata.serving.entry import Entry
from strata.serving.journal import Journal
from strata.serving.request import EngineFacts


def why_not_move(
    entries: Iterable[Entry], journal: Journal, admission: Admission, facts: EngineFacts
) -> str:
    """A clause that counts what could not be moved; empty where all can."""
    lost, misfits = 0, []
    for entry in entries:
        if entry.is_cancelled or entry.ending is not None:
            continue
        lost += journal.generated(entry.rid) is None
        error = admission.fit_error(entry.spec, entry.received, facts)
        if error is not None:
            misfits.append(error.text)
    if misfits:
        return f"{len(misfits)} running requests do not fit it ({misfits[0]})"
    if lost:
        return f"{lost} running requests did not fit journal_bytes and cannot be moved"
    return ""
