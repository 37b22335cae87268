"""`plan`: the table, the checklist, memory that adds up, and what fits, which is true."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from strata.engines import quarantine_file
from strata.engines.modes import MissingKernel, ModeRow, ModeState, missing_kernels
from strata_protocol.messages import Reason

from tests.supervisor.conftest import write_fake
from tests.supervisor.test_serve import MODEL, command, served

KERNEL = (
    "no kernel for matmul weight=iq4_nl act=int8 n=640 k=2048 rows=4 +bias"
    " (blk.0.ffn_down.weight) and 31 more like it: matmul.q4: weight is iq4_nl"
)
ATTENTION = "no kernel for attention kv=f16 heads=4 sequences=4"


async def plan(folder: Path, behaviour: dict[str, object], *flags: str) -> tuple[int | None, str]:
    engine = str(write_fake(folder, [{"silent_at": "plan", **behaviour}]))
    (folder / "script.json.starts").unlink(missing_ok=True)
    return await command("plan", str(MODEL), "--engine", engine, *flags)


async def report(folder: Path, behaviour: dict[str, object], *flags: str) -> dict[str, Any]:
    code, text = await plan(folder, behaviour, *flags, "--json")
    assert code == 0, text
    found: dict[str, Any] = json.loads(text)
    return found


def rule(axis: str, above: int, code: str, text: str, **more: object) -> dict[str, object]:
    return {"axis": axis, "above": above, "code": code, "text": text, **more}


async def test_the_report_for_people(tmp_path: Path) -> None:
    rules = [rule("batch", 2, "kernel.missing", KERNEL)]
    code, text = await plan(tmp_path, {"rules": rules, "batch": 256}, "--batch", "8")
    assert code == 0
    assert "fake-model" in text
    assert "device fake device" in text
    lines = text.splitlines()
    i = lines.index("missing kernels:")
    assert lines[i + 1 :] == [
        "  [ ] matmul weight=iq4_nl act=int8 +bias  for batch",
        "        n=640 k=2048 rows=4",
        "        blk.0.ffn_down.weight",
        "        32 in a step",
    ]
    assert "largest context that fits: 256 tokens, with batch 2" in lines
    assert "largest batch that fits: 2, with max_context 256" in lines
    memory = lines[lines.index("memory:") + 1 :][:4]
    assert [line.split()[0] for line in memory] == [
        "weights.mapped", "kv", "total", "available",
    ]  # fmt: skip
    assert "512 tokens of 64 bytes" in memory[1]


async def test_json_has_the_same_facts_and_memory_adds_up(tmp_path: Path) -> None:
    rules = [rule("batch", 2, "kernel.missing", KERNEL)]
    found = await report(tmp_path, {"rules": rules, "batch": 256}, "--batch", "8")
    assert found["plan"]["batch"] == 2
    assert found["memory_total_bytes"] == sum(part["bytes"] for part in found["memory"])
    assert found["memory_available_bytes"] == 1 << 30
    assert found["largest"] == {"max_context": 256, "batch": 2}
    assert found["missing"][0]["tensors"] == ["blk.0.ffn_down.weight"]
    assert found["missing"][0]["operations"] == 32
    assert found["ladder"][0]["name"] == "batch-2"
    assert found["device"]["name"] == "fake device"
    assert found["refusals"] == []


@pytest.mark.parametrize("limits", [True, False])
async def test_what_is_said_to_fit_fits_and_one_more_does_not(tmp_path: Path, limits: bool) -> None:
    """Whether the engine gives less by itself or only says that the asked value is missing."""
    budget = "no memory for more"
    behaviour: dict[str, object] = {
        "batch": 97,
        "max_context": 9000,
        "model_context": 32768,
        "rules": [rule("max_context", 5000, "mem.kv_budget", budget, limits=limits)],
    }
    found = await report(tmp_path, behaviour, "--batch", "8", "--max-context", "4096")
    assert found["largest"] == {"max_context": 5000, "batch": 97}
    fits = ("--max-context", "5000", "--batch", "8", "--strict")
    assert (await report(tmp_path, behaviour, *fits))["plan"]["max_context"] == 5000
    code, text = await plan(tmp_path, behaviour, "--max-context", "5001", "--strict")
    assert code == 78
    assert budget in text
    fits = ("--max-context", "4096", "--batch", "97", "--strict")
    assert (await report(tmp_path, behaviour, *fits))["plan"]["batch"] == 97


async def test_nothing_that_runs_is_a_report_and_a_refusal(tmp_path: Path) -> None:
    """All is as for a plan that runs: table, memory, sizes and checklist, each kernel once."""
    behaviour: dict[str, object] = {
        "rules": [
            rule("batch", 0, "kernel.missing", ATTENTION),
            rule("max_context", 128, "mem.kv_budget", "no memory for more", limits=True),
        ],
        "batch": 16,
    }
    flags = ("--batch", "8", "--max-context", "200")
    code, text = await plan(tmp_path, behaviour, *flags)
    assert code == 78
    assert text.count(ATTENTION) == 0
    assert "  [ ] attention kv=f16\n        heads=4 sequences=4\n        1 in a step\n" in text
    counted = (
        "1 operation of the plan has no kernel: see the list of missing kernels [kernel.missing]"
    )
    assert f"nothing runs, every mode is unsupported:\n  {counted}\n" in text
    assert f"nothing of it can run here:\n  {counted}\n" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["mode", "requested", "would", "fit", "because"] in lines
    assert ["batch", "8", "8"] in lines
    assert "max_context  200        128        no memory for more [mem.kv_budget]" in text
    assert "largest context that memory would hold: 128 tokens, with batch 8" in text
    assert "largest batch that memory would hold: 16, with max_context 128" in text

    code, text = await plan(tmp_path, behaviour, *flags, "--json")
    assert code == 78
    found = json.loads(text.splitlines()[0])
    assert (found["plan"], found["ladder"]) == (None, [])
    rows = {row["name"]: row for row in found["modes"]}
    assert {row["state"] for name, row in rows.items() if not name.startswith("device")} == {
        "unsupported"
    }
    assert (rows["batch"]["requested"], rows["batch"]["runs"]) == ("8", "nothing")
    assert [r["code"] for r in rows["batch"]["because"]] == ["kernel.missing"]
    assert [r["code"] for r in rows["max_context"]["because"]] == [
        "mem.kv_budget", "kernel.missing",
    ]  # fmt: skip
    assert (found["fits"]["plan"]["batch"], found["fits"]["plan"]["max_context"]) == (8, 128)
    assert found["largest"] == {"max_context": 128, "batch": 16}
    assert found["memory_total_bytes"] == sum(part["bytes"] for part in found["memory"])
    assert [kernel["op"] for kernel in found["missing"]] == ["attention"]
    assert [reason["text"] for reason in found["refusals"]] == [ATTENTION]


async def test_a_plan_for_which_memory_is_short_too_has_no_sizes(tmp_path: Path) -> None:
    short = "need 9 GiB, have 1 GiB"
    rules = [
        rule("batch", 0, "kernel.missing", ATTENTION),
        rule("batch", 0, "mem.insufficient", short),
    ]
    code, text = await plan(tmp_path, {"rules": rules}, "--json")
    assert code == 78
    found = json.loads(text.splitlines()[0])
    assert (found["fits"], found["largest"]) == (None, None)
    codes = [reason["code"] for reason in found["modes"][0]["because"]]
    assert codes == ["mem.insufficient", "mem.insufficient", "kernel.missing"]
    texts = [reason["text"] for reason in found["modes"][0]["because"]]
    assert texts[0] == short  # of what was asked, then of the smallest
    assert texts[1].startswith("the least, with batch 1, ")
    assert texts[1].endswith(f": {short}")
    code, text = await plan(tmp_path, {"rules": rules})
    assert code == 78
    assert "would fit" not in text
    assert f"  {short} [mem.insufficient]\n" in text
    assert "memory of what was asked for:" in text


async def test_where_nothing_runs_the_list_is_of_the_table_and_of_what_lacks_least(
    tmp_path: Path,
) -> None:
    """The entries of the table's own activations, and those of the others that are fewer, told
    apart."""

    def has_value(value: str, text: str) -> dict[str, object]:
        return {"axis": "activations", "value": value, "code": "kernel.missing", "text": text}

    quantize = "no kernel for quantize act=f32 k=64 rows=4"
    int8 = "no kernel for matmul weight=q4_1 act=i8block n=64 k=64 rows=4"
    rules = [
        rule("batch", 0, "kernel.missing", ATTENTION),
        has_value("int8", quantize),
        has_value("int8", int8),
        has_value("f32", int8.replace("i8block", "f32")),
    ]
    code, text = await plan(tmp_path, {"rules": rules}, "--json")
    assert code == 78
    found = json.loads(text.splitlines()[0])
    assert found["fits"]["plan"]["activations"] == "int8"
    entries = [(kernel["op"], kernel["types"], kernel["modes"]) for kernel in found["missing"]]
    assert entries == [
        ("attention", "kv=f16", []),
        ("quantize", "act=f32", ["activations=int8"]),
        ("matmul", "weight=q4_1 act=int8", ["activations=int8"]),
        ("matmul", "weight=q4_1 act=f32", ["activations=f32"]),
    ]
    _, text = await plan(tmp_path, {"rules": rules})
    title = "of those with a mode, either activations=int8 or activations=f32 is enough:"
    assert f"missing kernels; {title}\n" in text
    assert "  [ ] matmul weight=q4_1 act=int8  for activations=int8\n" in text


async def test_the_types_of_kv_with_kernels_are_the_engines(tmp_path: Path) -> None:
    _, text = await plan(tmp_path, {"kv_types": ["f32", "q4_0"]})
    line = "kv types with kernels for this model: f32, q4_0; without: f16, bf16, int8"
    assert f"{line}\n" in text
    assert (await report(tmp_path, {"kv_types": ["f16"]}))["kv_types"] == ["f16"]


async def test_the_table_leaves_kernels_to_the_checklist(tmp_path: Path) -> None:
    """Where a mode lacks several, the table names the first and the list has them all."""
    rules = [
        rule("batch", 2, "kernel.missing", KERNEL),
        rule("batch", 2, "kernel.missing", ATTENTION),
    ]
    code, text = await plan(tmp_path, {"rules": rules}, "--batch", "4")
    assert code == 0
    assert "(and 1 more)" in text
    assert "\nbatch:\n" not in text
    assert text.count("  [ ] ") == 2


async def test_an_engine_that_fails_is_one_error(tmp_path: Path) -> None:
    code, text = await plan(tmp_path, {"die_at": "hello", "exit": 70})
    assert code == 70
    assert "exited with status 70" in text
    refuse = [{"code": "model.architecture", "text": "an architecture of the future"}]
    code, text = await plan(tmp_path, {"refuse": refuse})
    assert code == 78
    assert "an architecture of the future [model.architecture]" in text


def test_the_checklist_groups_by_operation_and_types() -> None:
    other = (
        KERNEL.replace("n=640", "n=128")
        .replace("blk.0", "blk.1")
        .replace("and 31 more like it", "and 2 more like it (blk.2-3.ffn_down.weight)")
    )

    def row(name: str, *texts: str) -> ModeRow:
        because = [Reason(code="kernel.missing", text=text) for text in texts]
        budget = Reason(code="mem.kv_budget", text="38 GiB are free")
        return ModeRow(
            name=name, state=ModeState.LIMITED, requested="8", runs="1", because=[*because, budget]
        )

    found = missing_kernels([row("batch", KERNEL, other), row("spec", KERNEL, "no idea why")])
    assert found == [
        MissingKernel(
            op="matmul",
            types="weight=iq4_nl act=int8",
            features=["bias"],
            shapes=["n=640 k=2048 rows=4", "n=128 k=2048 rows=4"],
            tensors=[
                "blk.0.ffn_down.weight",
                "blk.1.ffn_down.weight",
                "blk.2-3.ffn_down.weight",
            ],
            operations=35,
            modes=["batch", "spec"],
            texts=[KERNEL, other],
        ),
        MissingKernel(op="", types="", operations=1, modes=["spec"], texts=["no idea why"]),
    ]


async def test_the_quarantine_of_the_run_directory_is_applied_as_serve_does(
    tmp_path: Path,
) -> None:
    dies = {"die_at": "probe:batch", "signal": signal.SIGSEGV}
    async with served(tmp_path, "--batch", "4", behaviours=[dies, {}]) as s:
        (row,) = [row for row in (await s.status())["modes"] if row["name"] == "batch"]  # type: ignore[attr-defined]
        assert row["runs"] == "1"
    kept = (tmp_path / "run" / "quarantine.json").read_bytes()
    flags = ("--batch", "4", "--run-dir", str(tmp_path / "run"))

    found = await report(tmp_path, {}, *flags)
    assert found["plan"]["batch"] == 1
    assert [row for row in found["modes"] if row["name"] == "batch"] == [row]
    (record,) = found["quarantine"]
    assert (record["mode"], record["state"]) == ("batch", "quarantined")
    assert found["quarantine_problem"] == ""
    assert found["largest"]["batch"] == 1
    code, text = await plan(tmp_path, {}, *flags)
    assert code == 0
    lines = text.splitlines()
    i = lines.index(f"not offered, because engines of the run directory {s.run_dir} ended in it:")
    assert lines[i + 1] == f"  batch: {record['sentence']} (quarantine {record['id']})"
    assert (await plan(tmp_path, {}, *flags, "--strict"))[0] == 78
    # It only looks, also where the mode would be offered on trial, as `serve` would then.
    trial = await report(tmp_path, {}, *flags, "--quarantine-trial-s", "0.001")
    assert (trial["plan"]["batch"], trial["quarantine"]) == (4, [])
    assert (tmp_path / "run" / "quarantine.json").read_bytes() == kept


async def test_a_quarantine_of_another_engine_or_none_applies_to_nothing(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = ("--batch", "4", "--run-dir", str(run_dir))
    assert (await report(tmp_path, {}, *flags))["quarantine"] == []
    assert not run_dir.exists()
    run_dir.mkdir()
    (run_dir / "quarantine.json").write_text("{")
    found = await report(tmp_path, {}, *flags)
    assert (found["plan"]["batch"], found["quarantine"]) == (4, [])
    assert f"{run_dir / 'quarantine.json'} cannot be understood: " in found["quarantine_problem"]
    text = (await plan(tmp_path, {}, *flags))[1]
    assert f"planned without a quarantine: {found['quarantine_problem']}" in text.splitlines()
    quarantine_file.set_aside(run_dir, "test")
    dies = {"die_at": "probe:batch", "signal": signal.SIGSEGV}
    async with served(tmp_path, "--batch", "4", behaviours=[dies, {}]):
        pass
    found = await report(tmp_path, {"device": "another device"}, *flags)
    assert (found["plan"]["batch"], found["quarantine"]) == (4, [])
