"""What `serve` shows a person: load progress, the table of modes, the ready line.

Progress goes to standard error (a bar on a terminal, a line per tenth otherwise); the table and
the ready line go to standard output, where a script can wait for them. All writing happens in the
output thread. `rich` is imported where a terminal is there to be written to: a service without one
has no use for its memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TextIO

from strata_protocol.messages import MemoryPart

from strata.engines.modes import ModeRow
from strata.observe import words
from strata.observe.mode_lines import because, memory_lines, note_lines, shown_rows, table_lines
from strata.observe.output import Output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

PLAIN_PROGRESS_S = 1.0


class Terminal:
    """Methods return at once; they only post to the output thread."""

    def __init__(self, output: Output, *, with_progress: bool) -> None:
        self._output = output
        self._errors = _console(is_error=True)
        self._out = _console(is_error=False)
        self._with_progress = with_progress
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._shown_s = 0.0
        self._shown_phase = ""

    def write_log_line(self, line: str) -> None:
        """For the log handler; runs in the output thread, above a progress bar where one is."""
        if self._errors is not None:
            self._errors.print(line, markup=False)
        else:
            _write(sys.stderr, line)

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
        _write(sys.stdout, line)

    def _progress(self, phase: str, done: int, total: int, unit: str) -> None:
        if self._errors is not None:
            if self._bar is None:
                self._bar = _make_bar(self._errors)
                self._task = self._bar.add_task(phase)
                self._bar.start()
            if self._task is not None:
                self._bar.update(self._task, description=phase, completed=done, total=total or None)
            return
        now = time.monotonic()
        if phase == self._shown_phase and now - self._shown_s < PLAIN_PROGRESS_S:
            return
        self._shown_phase, self._shown_s = phase, now
        self.write_log_line(f"loading: {phase} {words.progress(done, total, unit)}")

    def _modes(self, rows: Sequence[ModeRow], memory: Sequence[MemoryPart]) -> None:
        self._end_bar()
        if self._out is not None:
            print_modes(self._out, rows, memory)
            sys.stdout.flush()
        else:
            _write(sys.stdout, "\n".join(modes_lines(rows, memory)))

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None


def _write(stream: TextIO, text: str) -> None:
    stream.write(f"{text}\n")
    stream.flush()


def _console(*, is_error: bool) -> Console | None:
    """None where it is no terminal."""
    stream = sys.stderr if is_error else sys.stdout
    if not stream.isatty():
        return None
    from rich.console import Console  # noqa: PLC0415

    return Console(stderr=is_error, highlight=False, soft_wrap=True)


def _make_bar(console: Console) -> Progress:
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        TextColumn("loading: {task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def modes_lines(
    rows: Sequence[ModeRow],
    memory: Sequence[MemoryPart],
    *,
    listed: Collection[str] = (),
    runs: str = "runs",
) -> list[str]:
    """What print_modes() prints where there is no terminal."""
    return [*table_lines(rows, runs), *note_lines(rows, listed), *memory_lines(memory)]


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
    if not console.is_terminal:
        for line in modes_lines(rows, memory, listed=listed, runs=runs):
            console.print(line, markup=False)
        return
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table("mode", "requested", runs, "because", box=None, pad_edge=False)
    for row in shown_rows(rows):
        cells = [Text(cell) for cell in (row.name, row.requested, row.runs, because(row))]
        table.add_row(*cells, style="" if row.is_as_asked else "yellow")
    console.print(table)
    for line in [*note_lines(rows, listed), *memory_lines(memory)]:
        console.print(line, markup=False)
