"""`capabilities`: what each backend serves, as a table of operations and types."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console
from rich.text import Text

from strata.capability_table import (
    NO,
    PART,
    YES,
    Axis,
    Kernel,
    KernelTable,
    Row,
    describe_all,
    describe_here,
    make_rows,
    unserved_weights,
)
from strata.config_source import Settings
from strata.model_source import engine_arguments, find_any_engine

GAP = "  "
STYLES = {YES: "green", PART: "yellow", NO: "dim"}
LEGEND = (
    "yes   by kernels of this column; a name instead: by those of that instruction set",
    "part  not in steps of every shape, or not with every feature of the operation",
    "-     no kernel",
)


class Column(msgspec.Struct, frozen=True, kw_only=True):
    backend: str
    isa: str
    kernels: list[Kernel]
    modes: list[Axis]


class ReportRow(msgspec.Struct, frozen=True, kw_only=True):
    op: str
    weight: str
    act: str
    kv: str
    cells: list[str]  # one per column


class CapabilityReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `capabilities --json` prints."""

    build: str
    device: str
    isa: str
    limits: dict[str, int]
    columns: list[Column]
    rows: list[ReportRow]
    gaps: list[str]
    unserved_weights: list[str]  # types of files that no kernel of these columns multiplies with


def show_capabilities(settings: Settings, backend: str | None, *, as_json: bool) -> int:
    """Prints the table of one backend, or of all for None. Raises EngineMissingError, RefusedError
    (a flag that the engine cannot read), StrataError."""
    config = settings.config
    engine = find_any_engine(config)
    masks = [f"--without-kernel={text}" for text in config.without_kernel]
    described = describe_all(engine, masks)
    here = describe_here(engine, engine_arguments(config))
    tables = [t for t in described.tables if backend in (None, t.backend)]
    rows = make_rows(described, tables)
    report = CapabilityReport(
        build=here.build,
        device=here.device,
        isa=here.isa,
        limits=described.limits,
        columns=[
            Column(backend=t.backend, isa=t.isa, kernels=t.kernels, modes=t.modes) for t in tables
        ],
        rows=[
            ReportRow(
                op=row.operands.op,
                weight=row.operands.weight,
                act=row.operands.act,
                kv=row.operands.kv,
                cells=list(row.cells),
            )
            for row in rows
        ],
        gaps=[gap for row in rows for gap in row.gaps],
        unserved_weights=unserved_weights(described, tables),
    )
    if as_json:
        print(msgspec.json.encode(report).decode())
        return 0
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"engine {report.build}  {report.device}  {report.isa}", markup=False)
    print_table(console, rows, tables)
    _print_notes(console, report)
    sys.stdout.flush()
    return 0


def print_table(console: Console, rows: Sequence[Row], tables: Sequence[KernelTable]) -> None:
    """The table, on a terminal in parts that are no wider than it; whole where it is piped."""
    labels = ["", "", *(row.operands.text for row in rows)]
    label_width = max(map(len, labels))
    columns = [
        [table.backend, table.isa, *(row.cells[i] for row in rows)]
        for i, table in enumerate(tables)
    ]
    width = console.width if console.is_terminal else None
    for part in split_columns(columns, label_width, width):
        widths = [max(map(len, column)) for column in part]
        console.print()
        for i, label in enumerate(labels):
            line = Text(f"{label:{label_width}}", style="bold" if i < 2 else "")
            for column, cells_width in zip(part, widths, strict=True):
                style = "bold" if i < 2 else STYLES.get(column[i], "")
                line.append(GAP)
                line.append(f"{column[i]:{cells_width}}", style=style)
            line.rstrip()
            console.print(line)


def split_columns(
    columns: Sequence[list[str]], label_width: int, width: int | None
) -> Iterator[list[list[str]]]:
    """Columns in groups that fit `width` with the labels; at least one in each."""
    group: list[list[str]] = []
    used = label_width
    for column in columns:
        needed = len(GAP) + max(map(len, column))
        if group and width is not None and used + needed > width:
            yield group
            group, used = [], label_width
        group.append(column)
        used += needed
    if group:
        yield group


def _print_notes(console: Console, report: CapabilityReport) -> None:
    console.print()
    for line in LEGEND:
        console.print(line, markup=False)
    for gap in report.gaps:
        console.print(f"part: {gap}", markup=False)
    for column in report.columns:
        if not column.kernels:
            console.print(
                f"{column.backend}: no kernel is written, nothing runs on it", markup=False
            )
    if report.unserved_weights and any(column.kernels for column in report.columns):
        names = ", ".join(report.unserved_weights)
        console.print(f"no kernel multiplies weights of: {names}", markup=False)
    console.print("whether a mode runs with a file: strata-supervisor plan MODEL", markup=False)
