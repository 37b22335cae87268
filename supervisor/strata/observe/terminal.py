"""What `serve` shows a person: load progress, the table of modes, the ready line.

Progress goes to standard error (a bar on a terminal, a line per tenth otherwise); the table and
the ready line go to standard output, where a script can wait for them. All writing happens in the
output thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from strata_protocol.messages import MemoryPart

from strata.engines.modes import ModeRow
from strata.observe.mode_lines import because, memory_lines, note_lines, shown_rows, table_lines
from strata.observe.output import Output

PLAIN_PROGRESS_S = 1.0


class Terminal:
    """Methods return at once; they only post to the output thread."""

    def __init__(self, output: Output, *, with_progress: bool) -> None:
        self._output = output
        self._errors = Console(stderr=True, highlight=False, soft_wrap=True)
        self._out = Console(highlight=False, soft_wrap=True)
        self._with_progress = with_progress
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._shown_s = 0.0
        self._shown_phase = ""

    def write_log_line(self, line: str) -> None:
        """For the log handler; runs in the output thread, above a progress bar where one is."""
        self._errors.print(line, markup=False)

    def show_progress(self, phase: str, done: int, total: int, unit: str) -> None:
        if self._with_progress:
            self._output.post(lambda: self._progress(phase, done, total, unit))

    def show_modes(self, rows: Sequence[ModeRow], memory: Sequence[MemoryPart]) -> None:
        self._output.post(lambda: self._modes(rows, memory))

    def show_ready(self, url: str, model: str, seconds: float) -> None:
        line = f"ready: {url}/v1  model {model}  ({seconds:.1f} s)"
        self._output.post(lambda: self._line(line))

    def close(self) -> None:
        self._output.post(self._end_bar)

    # --- in the output thread

    def _line(self, line: str) -> None:
        self._end_bar()
        self._out.print(line, markup=False)
        sys.stdout.flush()

    def _progress(self, phase: str, done: int, total: int, unit: str) -> None:
        if self._errors.is_terminal:
            if self._bar is None:
                self._bar = Progress(
                    TextColumn("loading: {task.description}"),
                    BarColumn(),
                    TextColumn("{task.percentage:>3.0f}%"),
                    TimeElapsedColumn(),
                    console=self._errors,
                    transient=True,
                )
                self._task = self._bar.add_task(phase)
                self._bar.start()
            if self._task is not None:
                self._bar.update(self._task, description=phase, completed=done, total=total or None)
            return
        now = time.monotonic()
        if phase == self._shown_phase and now - self._shown_s < PLAIN_PROGRESS_S:
            return
        self._shown_phase, self._shown_s = phase, now
        amount = f"{100 * done // total} %" if total else f"{done} {unit}"
        self._errors.print(f"loading: {phase} {amount}", markup=False)

    def _modes(self, rows: Sequence[ModeRow], memory: Sequence[MemoryPart]) -> None:
        self._end_bar()
        print_modes(self._out, rows, memory)
        sys.stdout.flush()

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def print_modes(
    console: Console,
    rows: Sequence[ModeRow],
    memory: Sequence[MemoryPart],
    *,
    listed: Collection[str] = (),
    runs: str = "runs",
) -> None:
    """The table that `serve`, `plan` and `status` share: in colour on a terminal, aligned text
    elsewhere. Reasons with a code of `listed` are told in a list of their own and only named here;
    `runs` heads the column of values."""
    if console.is_terminal:
        table = Table("mode", "requested", runs, "because", box=None, pad_edge=False)
        for row in shown_rows(rows):
            cells = [Text(cell) for cell in (row.name, row.requested, row.runs, because(row))]
            table.add_row(*cells, style="" if row.is_as_asked else "yellow")
        console.print(table)
    else:
        for line in table_lines(rows, runs):
            console.print(line, markup=False)
    for line in [*note_lines(rows, listed), *memory_lines(memory)]:
        console.print(line, markup=False)
