"""What each backend serves, from the engine's own kernel tables: asking, and rows of a table.

The engine prints its tables with `--describe-all`; nothing of them depends on the machine. They
speak of kernels alone: whether a mode runs with a file is the answer of `plan`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from strata.engines.exits import status_text
from strata.errors import EngineMissingError, RefusedError, StrataError

DESCRIBE_S = 30.0
USAGE_STATUSES = (64, 78)
YES, PART, NO = "yes", "part", "-"

T = TypeVar("T")


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    op: str
    isa: str
    features: list[str]
    determinism: str


class ServedOp(msgspec.Struct, frozen=True, kw_only=True):
    """A request that some kernel serves; ids of kernels, empty for a step shape without one."""

    op: str
    weight: str
    act: str
    kv: str
    features: list[str]
    one_row: str
    many_rows: str
    many_sequences: str
    reasons: list[str]

    @property
    def operands(self) -> Operands:
        return Operands(self.op, self.weight, self.act, self.kv)

    @property
    def kernels(self) -> tuple[str, str, str]:
        return self.one_row, self.many_rows, self.many_sequences


class AxisValue(msgspec.Struct, frozen=True, kw_only=True):
    value: str
    missing: list[str]  # operations that it needs and no kernel serves


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    values: list[AxisValue]


class KernelTable(msgspec.Struct, frozen=True, kw_only=True):
    """One column: a backend, for the CPU at one instruction set (and all below it)."""

    backend: str
    isa: str
    kernels: list[Kernel]
    ops: list[ServedOp]
    modes: list[Axis]

    @property
    def name(self) -> str:
        return f"{self.backend} {self.isa}".rstrip()


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """What `--describe-all` prints."""

    limits: dict[str, int]
    asked_ops: list[str]
    asked_types: list[str]
    tables: list[KernelTable]


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """Of what `--describe` prints: this machine."""

    build: str
    backend: str
    device: str
    isa: str


@dataclass(frozen=True, slots=True)
class Operands:
    """An operation and the types of its operands; empty where it has none."""

    op: str
    weight: str
    act: str
    kv: str

    @property
    def text(self) -> str:
        """ "matmul q4_1 x int8", "attention kv f16", "rope"."""
        if self.kv:
            return f"{self.op} kv {self.kv}"
        if self.op == "matmul":
            return f"{self.op} {self.weight} x {type_word(self.act)}"
        return f"{self.op} {self.weight}".rstrip()


@dataclass(frozen=True, slots=True)
class Row:
    operands: Operands
    cells: tuple[str, ...]  # one per table: yes, the code path that serves instead, part, -
    gaps: tuple[str, ...]  # why a cell is "part": "cpu avx2: ..."


def type_word(name: str) -> str:
    """The word that users have for a type of the engine."""
    return "int8" if name == "i8block" else name


def describe_all(engine: Path, flags: Sequence[str] = ()) -> Described:
    """The kernel tables of all backends. Raises EngineMissingError, RefusedError, StrataError."""
    return _ask(engine, ["--describe-all", *flags], Described)


def describe_here(engine: Path, flags: Sequence[str] = ()) -> Here:
    """What the engine is on this machine. Raises as describe_all()."""
    return _ask(engine, ["--describe", *flags], Here)


def _ask(engine: Path, flags: list[str], kind: type[T]) -> T:
    try:
        done = subprocess.run(
            [engine, *flags],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=DESCRIBE_S,
            check=False,
        )
    except OSError as error:
        raise EngineMissingError(f"{engine} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise StrataError(f"{engine} {flags[0]} gave no answer for {DESCRIBE_S:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        if done.returncode in USAGE_STATUSES:
            raise RefusedError("the engine refuses", lines, done.returncode)
        last = f": {lines[-1]}" if lines else ""
        raise StrataError(f"the engine {status_text(done.returncode)}{last}")
    try:
        return msgspec.json.decode(done.stdout, type=kind)
    except msgspec.DecodeError as error:
        raise StrataError(f"{engine} {flags[0]} is of another build: {error}") from None


def make_rows(described: Described, tables: Sequence[KernelTable]) -> list[Row]:
    """One row for all types that some backend serves, in the engine's order of operations and
    types; `tables` are the columns."""
    features: dict[Operands, set[frozenset[str]]] = {}
    for op in (op for table in described.tables for op in table.ops):
        features.setdefault(op.operands, set()).add(frozenset(op.features))
    order = {name: i for i, name in enumerate(described.asked_types)}
    ops = {name: i for i, name in enumerate(described.asked_ops)}

    def place(operands: Operands) -> tuple[int, ...]:
        types = (operands.act, operands.weight, operands.kv)
        return ops[operands.op], *(order.get(name, -1) for name in types)

    return [
        _make_row(operands, features[operands], tables) for operands in sorted(features, key=place)
    ]


def _make_row(
    operands: Operands, features: set[frozenset[str]], tables: Sequence[KernelTable]
) -> Row:
    cells, gaps = [], []
    for table in tables:
        served = [op for op in table.ops if op.operands == operands]
        cell = _cell(table, served, features)
        cells.append(cell)
        if cell == PART:
            gaps.append(f"{operands.text}, {table.name}: {_gap(served, features)}")
    return Row(operands, tuple(cells), tuple(gaps))


def _cell(table: KernelTable, served: list[ServedOp], features: set[frozenset[str]]) -> str:
    if not served:
        return NO
    if {frozenset(op.features) for op in served} != features or not all(
        all(op.kernels) for op in served
    ):
        return PART
    isa_of = {kernel.id: kernel.isa for kernel in table.kernels}
    paths = {isa_of[kernel] for op in served for kernel in op.kernels}
    return YES if table.isa in paths or not table.isa else "/".join(sorted(paths))


def _gap(served: list[ServedOp], features: set[frozenset[str]]) -> str:
    reasons = [reason for op in served for reason in op.reasons]
    if reasons:
        return reasons[0]
    absent = features - {frozenset(op.features) for op in served}
    return "not with " + ", ".join(sorted("+".join(sorted(names)) for names in absent))


def unserved_weights(described: Described, tables: Iterable[KernelTable]) -> list[str]:
    """Types of files that no kernel of `tables` multiplies with."""
    served = {op.weight for table in tables for op in table.ops if op.op == "matmul"}
    return [n for n in described.asked_types if n not in served and type_word(n) == n]
