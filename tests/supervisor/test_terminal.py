"""The table of modes: short in the table, whole below it."""

from __future__ import annotations

import io

from rich.console import Console
from strata.engines.modes import ModeRow
from strata.observe.terminal import REASON_CHARACTERS, because, print_modes
from strata_protocol.messages import ModeState, Reason


def row(*texts: str, state: ModeState = ModeState.LIMITED, runs: str = "1") -> ModeRow:
    reasons = [Reason(code="kernel.missing", text=text) for text in texts]
    return ModeRow(name="batch", state=state, requested="8", runs=runs, because=reasons)


def printed(*rows: ModeRow) -> str:
    out = io.StringIO()
    print_modes(Console(file=out, soft_wrap=True), rows, [])
    return out.getvalue()


def test_a_short_reason_stands_in_the_table_alone() -> None:
    assert because(row("no kernel")) == "no kernel"
    assert printed(row("no kernel")).count("no kernel") == 1


def test_many_reasons_are_counted_and_listed_whole() -> None:
    rows = row("first " + "x" * REASON_CHARACTERS, "second", "third")
    assert because(rows).endswith("… (and 2 more)")
    text = printed(rows)
    for reason in rows.because:
        assert f"  - {reason.text}\n" in text


def test_a_mode_that_runs_as_asked_says_nothing() -> None:
    assert because(row(state=ModeState.READY)) == ""
    assert printed(row(state=ModeState.READY, runs="8")).splitlines()[-1].split() == [
        "batch",
        "8",
        "8",
    ]
