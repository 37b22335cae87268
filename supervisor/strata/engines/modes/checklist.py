"""Missing kernels as a to-do list for whoever writes them: one entry for each operation and its
types, with the shapes and tensors that want it and the modes that wait for it.

The engine's reasons name each operation as `describe` in engine/plan/op.cpp writes it:
`no kernel for OP key=value ... +feature (TENSOR) and N more like it (TENSORS): why not`, where
`blk.1-29.attn_k.weight` stands for the same tensor of several layers. Types are told in the words
of the modes, `act=int8` for `i8block`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from strata_protocol.messages import Reason

from strata.engines.modes.rows import ModeRow

MISSING = "kernel.missing"

_REASON = re.compile(
    r"no kernel for (?P<op>\S+)(?P<facts>(?: [a-z_]+=\S+)*)(?P<features>(?: \+\S+)*)"
    r"(?: \((?P<tensor>[^)]*)\))?(?: and (?P<more>\d+) more like it(?: \((?P<others>[^)]*)\))?)?"
    r"(?:: (?P<why>.*))?"
)
_TYPES = ("weight", "act", "kv")
_WORDS = {"act=i8block": "act=int8"}


class MissingKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of the list. `op` is empty where the reason could not be read; `texts` has it."""

    op: str
    types: str  # "weight=iq4_nl act=int8"
    features: list[str] = []
    shapes: list[str] = []  # "n=640 k=2048 rows=12 sequences=4"
    tensors: list[str] = []  # "blk.0.attn_k.weight", "blk.1-29.attn_k.weight"
    operations: int = 0  # of a step that want it, all shapes together
    modes: list[str] = []  # that wait for it: "batch"; where nothing runs "activations=int8"
    texts: list[str] = []  # the engine's own sentences


def missing_kernels(rows: Sequence[ModeRow], others: Sequence[Reason] = ()) -> list[MissingKernel]:
    """The entries, in the order in which the rows name them; `others` are of no single mode."""
    named = [(row.name, reason) for row in rows for reason in row.because]
    return _listed([*named, *(("", reason) for reason in others)])


def either_kernels(
    asked: Sequence[Reason], least: Sequence[Reason], asked_mode: str, least_mode: str
) -> list[MissingKernel]:
    """Where nothing runs: what is missing for what was asked, and for the configuration that lacks
    least. An entry that one of them alone wants says which, `activations=int8`."""
    wanted, fewer = missing_kernels([], asked), missing_kernels([], least)
    common = {_key(kernel) for kernel in wanted} & {_key(kernel) for kernel in fewer}

    def marked(kernels: list[MissingKernel], mode: str) -> list[MissingKernel]:
        return [
            k if _key(k) in common or not mode else msgspec.structs.replace(k, modes=[mode])
            for k in kernels
        ]

    others = [kernel for kernel in fewer if _key(kernel) not in common]
    return [*marked(wanted, asked_mode), *marked(others, least_mode)]


def _key(kernel: MissingKernel) -> tuple[str, ...]:
    return (kernel.op, kernel.types, *kernel.features, *(() if kernel.op else kernel.texts))


def _listed(named: Sequence[tuple[str, Reason]]) -> list[MissingKernel]:
    entries: dict[tuple[str, ...], _Entry] = {}
    for mode, reason in named:
        if reason.code == MISSING:
            _add(entries, mode, reason)
    return [entry.finished(*key[:2]) for key, entry in entries.items()]


class _Entry:
    def __init__(self) -> None:
        self.features: dict[str, None] = {}
        self.shapes: dict[str, None] = {}
        self.tensors: dict[str, None] = {}
        self.modes: dict[str, None] = {}
        self.texts: dict[str, int] = {}  # and how many operations each stands for

    def finished(self, op: str, types: str) -> MissingKernel:
        return MissingKernel(
            op=op,
            types=types,
            features=list(self.features),
            shapes=list(self.shapes),
            tensors=list(self.tensors),
            operations=sum(self.texts.values()),
            modes=list(self.modes),
            texts=list(self.texts),
        )


def _add(entries: dict[tuple[str, ...], _Entry], mode: str, reason: Reason) -> None:
    found = _REASON.fullmatch(reason.text)
    if found is None:
        entry = entries.setdefault(("", "", reason.text), _Entry())
        entry.texts[reason.text] = 1
        entry.modes |= {mode: None} if mode else {}
        return
    facts = [_WORDS.get(fact, fact) for fact in found["facts"].split()]
    types = " ".join(fact for fact in facts if fact.partition("=")[0] in _TYPES)
    shape = " ".join(fact for fact in facts if fact.partition("=")[0] not in _TYPES)
    entry = entries.setdefault((found["op"], types, found["features"]), _Entry())
    entry.features |= dict.fromkeys(f.removeprefix("+") for f in found["features"].split())
    entry.shapes |= {shape: None} if shape else {}
    entry.tensors |= {found["tensor"]: None} if found["tensor"] else {}
    entry.tensors |= dict.fromkeys(found["others"].split(", ") if found["others"] else ())
    entry.modes |= {mode: None} if mode else {}
    entry.texts[reason.text] = 1 + int(found["more"] or 0)
