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


@pytest.mark.parametrize("backend", ["cuda", "metal"])
def test_a_backend_without_kernels_is_refused_with_the_checklist(
    engine_path: Path, model: Path, backend: str
) -> None:
    done = strata("plan", engine_path, model, "--backend", backend)
    assert done.returncode == 78
    said = done.stdout + done.stderr
    for op in ("embed", "rms_norm", "matmul", "rope", "kv_append", "attention", "swiglu", "add"):
        assert f"no kernel for {op} " in said
    assert "blk.0.ffn_down.weight" in said


def test_facts_of_another_machine_are_planned_with(engine_path: Path, model: Path) -> None:
    facts = "device=Graviton 4,cores=64,host_memory=2GiB"
    done = strata("plan", engine_path, model, "--json", "--isa", "neon", "--assume", facts)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["device"]["name"] == "Graviton 4"
    assert report["host"]["isa"] == "neon"
    assert report["plan"]["threads"] == 64
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
