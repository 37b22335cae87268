"""What the engine program says of itself and of machines that are not here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from strata_protocol import messages as m
from strata_protocol.exit_codes import ExitCode

from tests.system.engine_driver import Engine, first_ready
from tools.synth_model import write_model

COLUMNS = [
    *(("cpu", isa) for isa in ("portable", "avx2", "avx512vnni", "neon")),
    ("cuda", ""),
    ("metal", ""),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path, kind="q4_1")
    return path


def run(engine: Path, *flags: str, status: int = 0) -> Any:
    done = subprocess.run([engine, *flags], capture_output=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    return msgspec.json.decode(done.stdout)


def ids(table: dict[str, Any]) -> list[str]:
    return [kernel["id"] for kernel in table["kernels"]]


def axis(table: dict[str, Any], name: str) -> dict[str, list[str]]:
    found = next(mode for mode in table["modes"] if mode["name"] == name)
    return {value["value"]: value["missing"] for value in found["values"]}


def test_kernels_of_the_isa(engine_path: Path) -> None:
    everything = run(engine_path, "--describe")
    portable = run(engine_path, "--describe", "--isa", "portable")
    assert portable["isa"] == "portable"
    assert set(ids(portable)) <= set(ids(everything))
    assert {kernel["isa"] for kernel in portable["kernels"]} == {"portable"}


def test_facts_and_limits(engine_path: Path) -> None:
    said = run(engine_path, "--describe")
    with Engine(engine_path) as engine:
        hello = engine.expect(m.Hello)
    assert (said["backend"], said["device"], said["build"]) == (
        hello.backend,
        hello.device,
        hello.build,
    )
    assert said["cores"] >= 1
    assert 0 < said["memory"]["available_bytes"] <= said["memory"]["total_bytes"]
    assert said["limits"]["batch"] >= 8


def test_every_kernel_named_for_an_operation_exists(engine_path: Path) -> None:
    for table in run(engine_path, "--describe-all")["tables"]:
        known = {kernel["id"]: kernel["op"] for kernel in table["kernels"]}
        for op in table["ops"]:
            for shape in ("one_row", "many_rows", "many_sequences"):
                if op[shape]:
                    assert known[op[shape]] == op["op"]


def test_tables_of_all_backends(engine_path: Path) -> None:
    tables = run(engine_path, "--describe-all")["tables"]
    assert [(table["backend"], table["isa"]) for table in tables] == COLUMNS
    for table in tables[:4]:
        assert table["isa"] in {kernel["isa"] for kernel in table["kernels"]}
        assert axis(table, "batch") == {"2 and more": []}
    for table in tables[4:]:  # no kernel of these is written: nothing is claimed
        assert table["kernels"] == table["ops"] == []
        assert "matmul" in axis(table, "batch")["2 and more"]


def test_what_is_hidden_is_not_claimed(engine_path: Path) -> None:
    said = run(engine_path, "--describe", "--without-kernel", "attention*:sequences>1")
    assert axis(said, "batch")["2 and more"] == [
        f"attention act=f32 kv={kv}{feature}"
        for kv in said["asked_types"]
        if kv in ("f32", "f16")
        for feature in ("", " +selected")
    ]
    attention = [op for op in said["ops"] if op["op"] == "attention"]
    assert attention
    for op in attention:
        assert op["one_row"]
        assert not op["many_sequences"]
        assert any("attention*:sequences>1" in reason for reason in op["reasons"])


def test_nothing_of_the_machine_is_in_describe_all(engine_path: Path) -> None:
    said = run(engine_path, "--describe-all")
    assert said == run(engine_path, "--describe-all", "--isa", "portable")
    assert set(said) == {"limits", "asked_ops", "asked_types", "tables"}


@pytest.mark.parametrize("backend", ["cuda", "metal"])
def test_plan_for_a_backend_without_kernels(engine_path: Path, model: Path, backend: str) -> None:
    said = run(
        engine_path, "--plan", str(model), "--as", backend, status=int(ExitCode.CONFIG_REFUSED)
    )
    assert said["type"] == "CAPS"
    assert all(configuration["missing"] for configuration in said["configurations"])
    assert sum(part["bytes"] for part in said["configurations"][0]["memory"]) > 0
    assert "kernel.missing" in {reason["code"] for reason in said["reasons"]}
    text = "\n".join(reason["text"] for reason in said["reasons"])
    for op in ("embed", "rms_norm", "matmul", "rope", "kv_append", "attention", "swiglu"):
        assert f"no kernel for {op} " in text
    assert "blk.0.ffn_down.weight" in text


def test_plan_for_another_processor(engine_path: Path, model: Path) -> None:
    flags = ["--as", "cpu", "--isa", "neon", "--assume", "cores=48,host_memory=512GiB"]
    with Engine(engine_path, *flags) as engine:
        assert engine.expect(m.Hello).device == "an assumed cpu device"
        engine.send(engine.offer(model, threads=0))
        caps = engine.expect(m.Caps)
        assert (caps.host.isa, caps.host.cores) == ("neon", 48)
        assert caps.host.memory_available_bytes == 512 << 30
        assert caps.device.is_assumed
        plan = first_ready(caps).plan
        assert plan.threads == 48
        engine.send(m.Plan(plan=plan))
        refused = engine.expect(m.Refuse)
        assert [reason.code for reason in refused.reasons] == ["mode.foreign_device"]
        assert engine.exit_code() == refused.exit_code == ExitCode.CONFIG_REFUSED


def test_another_amount_of_memory_gives_another_plan(engine_path: Path, model: Path) -> None:
    def kv_tokens(memory: str) -> int:
        facts = f"host_memory={memory}"
        said = run(engine_path, "--plan", str(model), "--as", "cpu", "--assume", facts)
        return int(first_ready(msgspec.convert(said, m.Caps)).plan.kv_tokens)

    assert kv_tokens("2MiB") < kv_tokens("1GiB")


def test_the_device_is_named_as_given(engine_path: Path) -> None:
    flags = ["--as", "cuda", "--assume", "device=NVIDIA H200,device_memory=140GiB"]
    with Engine(engine_path, *flags) as engine:
        hello = engine.expect(m.Hello)
    assert (hello.backend, hello.device) == ("cuda", "NVIDIA H200")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--as", "tpu", "--describe"], "tpu"),
        (["--assume", "cores=4", "--describe"], "--as"),
        (["--as", "cuda", "--assume", "cores", "--describe"], "cores"),
        (["--as", "cuda", "--isa", "avx2", "--describe"], "cuda"),
        (["--as", "cpu", "--isa", "sse9", "--describe"], "sse9"),
    ],
)
def test_what_cannot_be_assumed(engine_path: Path, flags: list[str], named: str) -> None:
    done = subprocess.run(
        [engine_path, *flags], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == ExitCode.USAGE
    assert named in done.stderr
    assert done.stdout == ""
