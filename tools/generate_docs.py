#!/usr/bin/env python3
"""Writes docs/generated/: what each backend serves, and the modes with their reason codes.

    python tools/generate_docs.py [--engine FILE] [--check]

Sources are the engine's kernel tables (`--describe-all`), the configuration's schema and the list
of reason codes. The result depends on none of machine, processor and build. `--check` writes
nothing and fails when a file is stale.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from strata.capability_table import (
    Described,
    KernelTable,
    describe_all,
    make_rows,
    unserved_weights,
)
from strata.cli_capabilities import LEGEND
from strata.config import Config
from strata.config_source import fields
from strata.engines.modes import ModeState
from strata.model_source import find_any_engine
from strata_protocol.messages import WantedModes
from strata_protocol.reasons import REASONS

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "generated"
NOTICE = "<!-- Written by tools/generate_docs.py (make generate); do not edit. -->"

STATES = {
    ModeState.READY: "runs as asked",
    ModeState.LIMITED: "runs with less than asked, or with another value; the reasons say why",
    ModeState.UNSUPPORTED: "does not run; the reasons list everything that is missing",
}

# What has to be there for a value of the axis, beside its allowed range.
NEEDS = {
    "batch": "every operation of the model for several sequences in a step; memory for their rows",
    "max_context": "keys and values of a whole sequence in the KV pool; at most the model's own",
    "kv": "kv_append and attention for the type",
    "prefill": "every operation of the model for many rows; memory for them",
    "activations": "int8: quantize, and matmul of int8 with the types of the model's weights",
    "threads": "as many cores as this process may use",
    "kv_tokens": "memory that the weights leave",
    "prefix_cache": "nothing",
    "mtp": "draft layers in the model's file or a drafter's, and kernels for their types",
    "spec": "mtp; steps that verify this many rows of a sequence",
    "spec_min_p": "mtp",
    "mtp_hidden_norm": "a drafter of residual streams (qwen4exp)",
    "batch_mtp": "batch and mtp planned together: every operation for their common steps",
    "device": "a device of that name or index",
    "device_memory": "at most what is free",
    "mmap": "kernels that read weights as they are in the file",
    "mlock": "a limit of locked memory (RLIMIT_MEMLOCK) that the weights fit",
    "expert_cache": "a model with experts, and a device with a memory of its own",
    "kv_resident": "a device with a memory of its own",
}


def cell(text: str) -> str:
    """A text as a cell of a Markdown table; within backticks it is literal."""
    if text.startswith("`"):
        return text.replace("|", "\\|")
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(map(cell, row)) + " |"


def write_ops(described: Described) -> Iterator[str]:
    tables = described.tables
    yield "# Operations and backends"
    yield NOTICE
    yield ""
    yield "What each backend has kernels for, as the registry answers for a typical model (a width"
    yield "of 512, heads of 64): for every operation and every type of its operands, with each of"
    yield "its features, in steps of one row, of many rows, and of several sequences. A model's own"
    yield "shapes are the question of `strata-supervisor plan MODEL`; the table below is what"
    yield "`strata-supervisor capabilities` prints. A column of the CPU is a processor whose best"
    yield "instruction set it names."
    yield ""
    rows = make_rows(described, tables)
    yield from table(
        ["operation", *(t.name for t in tables)], ([r.operands.text, *r.cells] for r in rows)
    )
    yield ""
    yield from (f"- {line}" for line in legend())
    for column in tables:
        if not column.kernels:
            yield f"- {column.name}: no kernel is written, nothing runs on it"
    gaps = [gap for row in rows for gap in row.gaps]
    yield from (f"- part: {gap}" for gap in gaps)
    if names := unserved_weights(described, tables):
        yield f"- no kernel of any backend multiplies weights of: {', '.join(names)}"
    yield ""
    yield "## Kernels"
    yield "`row_invariant`: the bits of a row depend neither on the other rows of the step nor on"
    yield "the number of threads. `run_invariant`: they are the same for steps of the same shape."
    yield ""
    seen = {k.id: (t.backend, k) for t in tables for k in t.kernels}
    yield from table(
        ["kernel", "backend", "operation", "features", "determinism"],
        (
            [f"`{k.id}`", backend, k.op, ", ".join(k.features), k.determinism]
            for backend, k in seen.values()
        ),
    )


def legend() -> Iterator[str]:
    for line in LEGEND:
        word, _, text = line.partition(" ")
        yield f"{word}: {text.strip()}"


def write_modes(described: Described) -> Iterator[str]:
    yield "# Modes"
    yield NOTICE
    yield ""
    yield "The axes of a configuration. Each is a flag of `serve` and `plan` and a key of"
    yield "`strata.toml`; how they are derived, proven and chosen is in"
    yield "[capabilities.md](../capabilities.md)."
    yield ""
    settings = fields()
    axes = [name for name in WantedModes.__struct_fields__ if name in settings]
    yield from table(
        ["name", "values", "default", "meaning", "needs"],
        (
            [
                f"`{name}`",
                settings[name].allowed,
                settings[name].shown(settings[name].default),
                settings[name].help,
                NEEDS[name],
            ]
            for name in axes
        ),
    )
    yield ""
    yield "## What kernels decide"
    yield "Values of axes, and the operations without a kernel that they need, by backend."
    yield ""
    yield from table(
        ["value", *(t.name for t in described.tables)],
        (
            [f"{axis.name}: {value.value}", *axis_cells(described.tables, axis.name, value.value)]
            for axis in described.tables[0].modes
            for value in axis.values
        ),
    )
    yield ""
    yield "## States"
    yield from table(["state", "meaning"], ([f"`{s.value}`", STATES[s]] for s in ModeState))
    yield ""
    yield "## Reason codes"
    yield "The closed list. The same code and sentence stand in the boot log, `status`, `plan`,"
    yield "`/v1/status`, `/v1/models` and the metric `strata_mode_disabled`."
    yield ""
    yield from table(
        ["code", "meaning", "what to do"], ([f"`{r.code}`", r.meaning, r.action] for r in REASONS)
    )


def axis_cells(tables: Sequence[KernelTable], axis: str, value: str) -> Iterator[str]:
    for column in tables:
        missing = next(
            v.missing for a in column.modes if a.name == axis for v in a.values if v.value == value
        )
        if not column.kernels:
            yield "no kernels"
        else:
            yield f"missing: {'; '.join(missing)}" if missing else "yes"


FILES: dict[str, Callable[[Described], Iterator[str]]] = {
    "ops.md": write_ops,
    "modes.md": write_modes,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", default="", help="engine program; default: the installed one")
    parser.add_argument("--check", action="store_true", help="fail when a file is stale")
    arguments = parser.parse_args()
    described = describe_all(
        find_any_engine(msgspec.structs.replace(Config(), engine=arguments.engine))
    )
    stale = []
    for name, write in FILES.items():
        path = FOLDER / name
        text = "\n".join(write(described)) + "\n"
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not arguments.check:
            FOLDER.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    if stale and arguments.check:
        print(f"stale in docs/generated: {', '.join(stale)}; run make generate", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
