"""The table of modes: short in the table, whole below it."""

from __future__ import annotations

import io

from rich.console import Console
from strata.engines.modes import ModeRow, ModeState
from strata.observe.mode_lines import REASON_CHARACTERS, because, memory_lines
from strata.observe.terminal import print_modes
from strata_protocol.messages import MemoryPart, Reason


def row(*texts: str, state: ModeState = ModeState.LIMITED, runs: str = "1") -> ModeRow:
    reasons = [Reason(code="kernel.missing", text=text) for text in texts]
    return ModeRow(name="batch", state=state, requested="8", runs=runs, because=reasons)


def printed(*rows: ModeRow) -> str:
    out = io.StringIO()
    print_modes(Console(file=out, soft_wrap=True), rows, [])
    return out.getvalue()


def test_a_short_reason_stands_in_the_table_alone() -> None:
    assert because(row("no kernel")) == "no kernel [kernel.missing]"
    assert printed(row("no kernel")).count("no kernel") == 1


def test_many_reasons_are_counted_and_listed_whole() -> None:
    rows = row("first " + "x" * REASON_CHARACTERS, "second", "third")
    assert because(rows).endswith("… [kernel.missing] (and 2 more)")
    text = printed(rows)
    for reason in rows.because:
        assert f"  - {reason.text} [kernel.missing]\n" in text


def test_a_mode_that_runs_as_asked_says_nothing() -> None:
    assert because(row(state=ModeState.READY)) == ""
    assert printed(row(state=ModeState.READY, runs="8")).splitlines()[-1].split() == [
        "batch",
        "8",
        "8",
    ]


def test_what_nobody_set_and_runs_as_it_would_is_folded_and_not_hidden() -> None:
    plain = ModeRow(name="prefill", state=ModeState.READY, requested="256", runs="256")
    was_set = ModeRow(name="threads", state=ModeState.READY, requested="2", runs="2", is_set=True)
    differs = ModeRow(name="mmap", state=ModeState.LIMITED, requested="on", runs="off")
    lines = printed(plain, was_set, differs).splitlines()
    assert [line.split()[0] for line in lines] == ["mode", "threads", "mmap", "also:"]
    assert lines[-1] == "also: prefill 256"


def test_what_stays_in_the_file_is_in_no_sum() -> None:
    parts = [
        MemoryPart("weights.packed", 3 << 30),
        MemoryPart("weights.on_demand", 0, "", on_demand_bytes=28 << 30),
    ]
    (line,) = memory_lines(parts)
    assert (
        line == "memory: 3.0 GiB (weights.packed 3.0 GiB, weights.on_demand 28.0 GiB in the file)"
    )
