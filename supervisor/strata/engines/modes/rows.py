"""The table that every place shows: what was asked, what runs, and why they differ; its words.

`sentence` and `row_text` are the only rendering of a reason and of a row: log, terminal, status and
refusals use them, and /v1/status, /v1/models and the metrics carry the same codes and texts.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec
from strata_protocol.messages import Reason


class ModeState(enum.StrEnum):
    READY = "ready"  # runs as asked
    LIMITED = "limited"  # runs with less than asked, or with another value; `because` says why
    UNSUPPORTED = "unsupported"  # does not run; `because` lists everything that is missing


class ModeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table: requested, runs, because."""

    name: str
    state: ModeState
    requested: str
    runs: str
    because: list[Reason] = []
    is_set: bool = False  # the operator set it

    @property
    def is_as_asked(self) -> bool:
        return self.state is ModeState.READY


def sentence(reason: Reason) -> str:
    """ "no kernel for attention kv=f16 [kernel.missing]"."""
    return f"{reason.text} [{reason.code}]"


def sentences(reasons: Iterable[Reason]) -> str:
    return "; ".join(sentence(reason) for reason in reasons)


def row_text(row: ModeRow) -> str:
    """ "batch runs 4, requested 64: KV for ... needs 61 GiB, 38 free [mem.kv_budget]"."""
    text = f"{row.name} runs {row.runs}, requested {row.requested}"
    return f"{text}: {sentences(row.because)}" if row.because else text


def row_summary(row: ModeRow) -> str:
    """ "batch runs 4, requested 64 [mem.kv_budget]": without the sentences."""
    codes = dict.fromkeys(reason.code for reason in row.because)
    text = f"{row.name} runs {row.runs}, requested {row.requested}"
    return f"{text} [{', '.join(codes)}]" if codes else text


def refusal_lines(rows: Sequence[ModeRow], others: Iterable[Reason] = ()) -> list[str]:
    """For people: each mode that cannot run as asked, and below it all of its reasons; then what
    concerns no single mode."""
    lines = []
    for row in rows:
        lines.append(
            f"{row.name}: requested {row.requested}, available {row.runs} ({row.state.value})"
        )
        lines += [f"  - {sentence(reason)}" for reason in row.because]
    return [*lines, *(sentence(reason) for reason in others)]


def refusal_reasons(rows: Sequence[ModeRow]) -> list[Reason]:
    """The same as coded reasons, each with its mode in the text."""
    return [
        Reason(
            code=reason.code,
            text=f"{row.name}: requested {row.requested}, available {row.runs}: {reason.text}",
        )
        for row in rows
        for reason in row.because
    ]


def bytes_text(count: int) -> str:
    """ "1.5 GiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
