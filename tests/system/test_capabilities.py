"""`strata-supervisor capabilities` and docs/generated: what the engine's tables say, unchanged."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from strata.capability_table import (
    Described,
    Kernel,
    KernelTable,
    ServedOp,
    describe_all,
    make_rows,
)
from strata.cli_capabilities import print_table, split_columns
from strata_protocol.messages import WantedModes

from tools import generate_docs


def capabilities(engine: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "strata", "capabilities", "--engine", str(engine), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def report(engine: Path, *flags: str) -> Any:
    return json.loads(capabilities(engine, "--json", *flags).stdout)


def row(found: Any, op: str, **types: str) -> list[str]:
    wanted = {"op": op, **types}
    return next(r["cells"] for r in found["rows"] if wanted.items() <= r.items())


def test_table_says_what_the_engine_says(engine_path: Path) -> None:
    found = report(engine_path)
    described = describe_all(engine_path)
    assert [(c["backend"], c["isa"]) for c in found["columns"]] == [
        (t.backend, t.isa) for t in described.tables
    ]
    assert row(found, "attention", kv="f16") == ["yes", "yes", "yes", "yes", "-", "-"]
    # One kernel for all processors: the other columns name the code path that serves.
    assert row(found, "gather_rows") == ["yes", "portable", "portable", "portable", "-", "-"]
    for i, table in enumerate(described.tables):
        shown = {
            (r["op"], r["weight"], r["act"], r["kv"]) for r in found["rows"] if r["cells"][i] != "-"
        }
        assert shown == {(op.op, op.weight, op.act, op.kv) for op in table.ops}


def test_table_is_plain_text_where_it_is_piped(engine_path: Path) -> None:
    done = capabilities(engine_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    backends, isas = (next(n for n in lines if n.split()[:1] == [w]) for w in ("cpu", "portable"))
    assert backends.split() == ["cpu"] * 4 + ["cuda", "metal"]
    assert isas.split() == ["portable", "avx2", "avx512vnni", "neon"]
    matmul = next(line for line in lines if line.startswith("matmul q4_1 x int8"))
    assert matmul.split()[4:] == ["yes", "yes", "yes", "yes", "-", "-"]
    assert matmul.index("yes") == isas.index("portable")
    assert "cuda: no kernel is written" in done.stdout


def test_one_backend(engine_path: Path) -> None:
    found = report(engine_path, "--backend", "metal")
    assert [c["backend"] for c in found["columns"]] == ["metal"]
    assert {cell for r in found["rows"] for cell in r["cells"]} == {"-"}
    assert "q4_1" in found["unserved_weights"]
    assert "cuda" not in capabilities(engine_path, "--backend", "metal").stdout


def test_hidden_kernels_leave_a_gap_with_its_reason(engine_path: Path) -> None:
    found = report(engine_path, "--without-kernel", "attention*:sequences>1", "--backend", "cpu")
    assert row(found, "attention", kv="f16") == ["part"] * 4
    assert any("attention*:sequences>1" in gap for gap in found["gaps"])
    assert row(found, "swiglu") == ["yes"] * 4


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--backend", "tpu"], "tpu"),
        (["--without-kernel", "*:speed>1"], "speed"),
        (["--engine", "/nowhere/engine"], "/nowhere/engine"),
    ],
)
def test_wrong_flags_are_named(engine_path: Path, flags: list[str], named: str) -> None:
    done = capabilities(engine_path, *flags)
    assert done.returncode == 78
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_an_engine_of_another_build_is_no_traceback(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\necho '{\"kernels\": []}'\n")
    engine.chmod(0o755)
    done = capabilities(engine)
    assert done.returncode == 70
    assert "another build" in done.stderr


def served(op: str, *kernels: str, features: tuple[str, ...] = ()) -> ServedOp:
    one, many, sequences = kernels
    return ServedOp(
        op=op,
        weight="",
        act="f32",
        kv="",
        features=list(features),
        one_row=one,
        many_rows=many,
        many_sequences=sequences,
        reasons=[],
    )


def table(isa: str, *ops: ServedOp) -> KernelTable:
    ids = {kernel for op in ops for kernel in op.kernels if kernel}
    kernels = [
        Kernel(id=i, op="rope", isa=i.rpartition(".")[2], features=[], determinism="row_invariant")
        for i in sorted(ids)
    ]
    return KernelTable(backend="cpu", isa=isa, kernels=kernels, ops=list(ops), modes=[])


def test_cells() -> None:
    plain = served("rope", "r.portable", "r.portable", "r.portable")
    neox = served("rope", "r.portable", "r.portable", "r.portable", features=("neox",))
    own = served("rope", "r.avx2", "r.avx2", "r.avx2")
    own_neox = served("rope", "r.avx2", "r.portable", "r.avx2", features=("neox",))
    tables = [
        table("portable", plain, neox),
        table("avx2", own, own_neox),  # one shape by another path is still this column's
        table("neon", plain, neox),  # all by another path: its name
        table("avx512vnni", plain),  # a feature is missing
        table("gpu", served("rope", "r.gpu", "", "r.gpu"), neox),  # a step shape is missing
        table("none"),
    ]
    described = Described(limits={}, asked_ops=["rope"], asked_types=["f32"], tables=tables)
    [found] = make_rows(described, tables)
    assert found.cells == ("yes", "yes", "portable", "part", "part", "-")
    assert found.gaps[0] == "rope, cpu avx512vnni: not with neox"


def test_columns_fit_the_terminal() -> None:
    columns = [["cpu", "yes"], ["avx512vnni", "-"], ["cuda", "-"]]
    assert list(split_columns(columns, 10, None)) == [columns]
    assert list(split_columns(columns, 10, 33)) == [columns]
    assert list(split_columns(columns, 10, 32)) == [columns[:2], columns[2:]]
    assert list(split_columns(columns, 10, 5)) == [[c] for c in columns]


@pytest.mark.parametrize("width", [44, 60, 200])
def test_no_line_is_wider_than_the_terminal(engine_path: Path, width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    described = describe_all(engine_path)
    print_table(console, make_rows(described, described.tables), described.tables)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    parts = sum(line.startswith("attention kv f16") for line in lines)
    assert parts == {44: 3, 60: 2, 200: 1}[width]


def test_generated_documents_are_fresh(engine_path: Path, repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, repository / "tools/generate_docs.py", "--check", "--engine", engine_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_stale_documents_are_found(
    engine_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate_docs, "FOLDER", tmp_path)

    def run(*flags: str) -> int:
        monkeypatch.setattr(sys, "argv", ["generate_docs", "--engine", str(engine_path), *flags])
        return generate_docs.main()

    assert run("--check") == 1
    assert not list(tmp_path.iterdir())
    assert run() == 0
    assert run("--check") == 0
    modes = tmp_path / "modes.md"
    modes.write_text(modes.read_text().replace("`kernel.missing`", "`kernel.absent`"))
    assert run("--check") == 1


def test_every_axis_says_what_it_needs() -> None:
    assert set(generate_docs.NEEDS) == set(WantedModes.__struct_fields__)
