"""`plan` for a backend or a machine that is not here, and `serve` for an engine that is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.synth_model import write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(path, kind="q4_1")
    return path


def strata(
    command: str, engine: Path, model: Path, *flags: str
) -> subprocess.CompletedProcess[str]:
    arguments = ["-m", "strata", command, str(model), "--engine", str(engine), *flags]
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


OPS = ("embed", "rms_norm", "matmul", "rope", "kv_append", "attention", "swiglu", "add")


@pytest.mark.parametrize("backend", ["cuda", "metal"])
def test_a_backend_without_kernels_is_planned_for_and_refused(
    engine_path: Path, model: Path, backend: str
) -> None:
    done = strata("plan", engine_path, model, "--backend", backend)
    assert done.returncode == 78
    none = f"no kernel of the backend {backend} is written yet, so nothing can run on it"
    assert f"nothing runs, every mode is unsupported:\n  {none} [kernel.none]\n" in done.stdout
    assert f"nothing of it can run on an assumed {backend} device:\n  {none}" in done.stderr
    assert " here" not in done.stdout + done.stderr
    assert "memory not known, so it limits nothing" in done.stdout
    assert "mode         requested  would fit  because" in done.stdout
    assert "largest batch that memory would hold: 256" in done.stdout
    for op in OPS:
        assert f"  [ ] {op} " in done.stdout
    assert "blk.0.attn_q.weight" in done.stdout


@pytest.mark.parametrize("flag", ["--device-memory=600KiB", "--assume=device_memory=600KiB"])
def test_the_memory_of_an_assumed_device_limits_what_would_fit(
    engine_path: Path, model: Path, flag: str
) -> None:
    flags = ("--backend", "cuda", "--max-context", "512", flag)
    done = strata("plan", engine_path, model, *flags, "--json")
    assert done.returncode == 78
    found = json.loads(done.stdout)
    assert found["device"]["is_assumed"]
    assert found["device"]["memory_total_bytes"] == 600 << 10
    assert found["memory_available_bytes"] == 600 << 10
    assert found["memory_total_bytes"] <= 600 << 10
    states = {r["state"] for r in found["modes"] if not r["name"].startswith("device")}
    assert states == {"unsupported"}
    assert all(r["because"][-1]["code"] == "kernel.none" for r in found["modes"] if r["because"])
    assert {kernel["op"] for kernel in found["missing"]} >= set(OPS)
    largest, fits = found["largest"], found["fits"]["plan"]
    assert largest["batch"] < 256
    assert fits["prefill"] < 256  # the buffers of a step are what has to give

    def fitting(*more: str) -> dict[str, int]:
        report = json.loads(strata("plan", engine_path, model, *flags, *more, "--json").stdout)
        plan: dict[str, int] = report["fits"]["plan"]
        return plan

    prefill = ("--prefill", str(fits["prefill"]))
    batch = largest["batch"]
    assert fitting("--batch", str(batch), *prefill)["batch"] == batch
    above = fitting("--batch", str(batch + 1), *prefill)
    assert (
        above["batch"] <= batch
        or above["prefill"] < fits["prefill"]
        or (above["max_context"] < fits["max_context"])
    )
    text = strata("plan", engine_path, model, *flags).stdout
    assert "device an assumed cuda device  600.0 KiB of memory assumed" in text


def test_nothing_fits_an_assumed_device_that_is_too_small(engine_path: Path, model: Path) -> None:
    flags = ("--backend", "metal", "--device-memory", "64KiB")
    done = strata("plan", engine_path, model, *flags)
    assert done.returncode == 78
    assert "would fit" not in done.stdout
    assert "64 KiB" in done.stdout or "0 MiB assumed device memory" in done.stdout
    assert "[mem.insufficient]" in done.stderr
    assert " here" not in done.stdout + done.stderr


def test_facts_of_another_machine_are_planned_with(engine_path: Path, model: Path) -> None:
    facts = "device=Graviton 4,cores=64,host_memory=2GiB"
    done = strata("plan", engine_path, model, "--json", "--isa", "neon", "--assume", facts)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["device"]["name"] == "Graviton 4"
    assert report["host"]["isa"] == "neon"
    assert report["plan"]["threads"] == 64
    assert [mode["drafts"] for mode in report["serving"]] == [0]
    assert "penalties" in report["serving"][0]["features"]
    here = strata("plan", engine_path, model, "--json")
    assert json.loads(here.stdout)["device"]["name"] != "Graviton 4"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--assume", "speed=9"], "speed"),
        (["--assume", "cores"], "cores"),
        (["--backend", "cuda", "--assume", "device_memory=24GB"], "24GB"),
        (["--backend", "cuda", "--isa", "avx2"], "cuda"),
    ],
)
def test_facts_that_cannot_be_read_are_named(
    engine_path: Path, model: Path, flags: list[str], named: str
) -> None:
    done = strata("plan", engine_path, model, *flags)
    assert done.returncode == 78
    assert named in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("backend", ["cuda", "metal"])
def test_serve_says_that_there_is_no_such_engine(
    engine_path: Path, model: Path, tmp_path: Path, backend: str
) -> None:
    flags = ["--backend", backend, "--run-dir", str(tmp_path / "run"), "--port", "0"]
    done = strata("serve", engine_path, model, *flags)
    assert done.returncode == 78
    assert f"backend = {backend}: this build has no such engine" in done.stderr
    assert f"plan MODEL --backend {backend}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_mask_that_hides_nothing_is_said(engine_path: Path, model: Path) -> None:
    masks = ("--without-kernel", "atention*", "--without-kernel", "attention*:kv=int8")
    done = strata("plan", engine_path, model, *masks)
    assert done.returncode == 0
    text = (
        "--without-kernel 'atention*' hides nothing: no kernel of the backend cpu has such a name;"
        " --describe lists them"
    )
    assert f"note   {text} [config.without_kernel]\n" in done.stdout
    found = json.loads(strata("plan", engine_path, model, *masks, "--json").stdout)
    assert found["notes"] == [{"code": "config.without_kernel", "text": text}]


def test_a_kv_type_has_one_word(engine_path: Path, model: Path) -> None:
    """`int8`, as it is set, also in what the kernels say."""
    found = json.loads(strata("plan", engine_path, model, "--kv", "int8", "--json").stdout)
    (row,) = [row for row in found["modes"] if row["name"] == "kv"]
    assert (row["requested"], row["runs"]) == ("int8", "f16")
    lacking = [reason for reason in row["because"] if reason["code"] == "kernel.missing"]
    assert lacking
    for reason in lacking:
        assert "kv=int8" in reason["text"]
        assert "kv is int8, takes " in reason["text"]
        assert "q8_0" not in reason["text"]


def test_a_device_that_is_not_there_ends_serve(
    engine_path: Path, model: Path, tmp_path: Path
) -> None:
    flags = ("--device", "foo", "--run-dir", str(tmp_path / "run"), "--port", "0")
    done = strata("serve", engine_path, model, *flags)
    assert done.returncode == 78
    last = done.stderr.splitlines()[-1]
    assert last.startswith('  no device is called "foo"; the devices are 0 (')
    assert last.endswith("[device.unknown]")


@pytest.mark.parametrize("kv", ["bf16", "int8", "q4_0"])
def test_a_kv_type_without_kernels_falls_back_in_the_open_or_is_refused(
    engine_path: Path, model: Path, kv: str
) -> None:
    """Which types have kernels is the engine's word, here as for the reason."""
    hidden = f"--without-kernel=attention*:kv={kv}"  # also where there is one, some day
    done = strata("plan", engine_path, model, "--kv", kv, hidden, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"f32", "f16"} <= set(found["kv_types"])
    assert kv not in found["kv_types"]
    (row,) = [row for row in found["modes"] if row["name"] == "kv"]
    assert (row["state"], row["requested"], row["runs"]) == ("limited", kv, "f16")
    served = ", ".join(found["kv_types"])
    text = f"the backend cpu runs kv {served} here and has no kernels for {kv}"
    assert row["because"][0] == {"code": "kernel.kv_type", "text": text}
    assert any(kernel["types"].endswith(f"kv={kv}") for kernel in found["missing"])
    refused = strata("plan", engine_path, model, "--kv", kv, hidden, "--strict")
    assert refused.returncode == 78
    assert f"  kv: requested {kv}, available f16 (limited)\n    - {text} [kernel.kv_type]" in (
        refused.stderr
    )


def test_the_explanation_of_kv_says_what_runs(engine_path: Path, tmp_path: Path) -> None:
    """Asked of the engine, and without one it says where to ask."""

    def explained(engine: Path) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "strata", "config", "--explain", "--engine", str(engine)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("\nkv = ")[2].partition("\nprefill = ")[0]

    text = explained(engine_path)
    assert "\n    runs now: cpu f32, f16" in text
    broken = tmp_path / "engine"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert "\n    `strata-supervisor capabilities` shows what each backend runs\n" in (
        explained(broken)
    )
