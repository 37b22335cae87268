"""A split model under the whole service: the same text as from one file, and shown as one model."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tests.system.real_service import Service
from tools.synth_files import split_model, take_tensor
from tools.synth_model import Shape, write_drafter, write_model

FLAGS = ("--batch", "2", "--max-context", "256", "--log-level", "info")


def ask(url: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def served(engine: Path, model: Path, run_dir: Path) -> tuple[str, Any, Any, str]:
    """Text of a completion, the model's entry, the status, the output."""
    service = Service(engine, model, run_dir, *FLAGS)
    try:
        service.wait_ready()
        body = {"model": "smollm2", "prompt": "abc", "max_tokens": 24, "temperature": 0}
        text = ask(service.url, "/v1/completions", body)["choices"][0]["text"]
        (entry,) = ask(service.url, "/v1/models")["data"]
        return text, entry, ask(service.url, "/v1/status"), "".join(service.lines)
    finally:
        assert service.stop() == 0


def test_split_is_served_as_one_model(engine_path: Path, tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole.gguf", Shape(), kind="q8_0")
    parts = split_model(whole, tmp_path / "m", 3)
    want, whole_entry, _, _ = served(engine_path, whole, tmp_path / "run1")
    text, entry, status, output = served(engine_path, parts[0], tmp_path / "run2")
    assert text == want
    facts, whole_facts = entry["strata"]["facts"], whole_entry["strata"]["facts"]
    assert facts["file_bytes"] == sum(part.stat().st_size for part in parts)
    assert facts["parameters"] == whole_facts["parameters"]
    assert status["model"]["file_bytes"] == facts["file_bytes"]
    assert re.search(r"loading: pack \d+ %, \d\S* \w+ of \S+ KiB", output), output


def test_what_is_no_model_is_refused_at_once(engine_path: Path, tmp_path: Path) -> None:
    whole = write_model(tmp_path / "whole.gguf", Shape())
    parts = split_model(whole, tmp_path / "m", 3)
    drafter = write_drafter(tmp_path / "d.gguf", Shape())
    for path, said in (
        (parts[1], f"name its first part, {parts[0]}"),
        (drafter, "use it with --mtp beside its model"),
    ):
        for command in ("serve", "plan"):
            given = ["--model", str(path)] if command == "serve" else [str(path)]
            run_dir = tmp_path / "run"
            ended = subprocess.run(
                [sys.executable, "-m", "strata", command, *given, "--engine", str(engine_path),
                 "--run-dir", str(run_dir)],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert ended.returncode != 0
            assert said in ended.stderr, ended.stderr


def test_plan_with_a_table_in_a_file_of_its_own(
    engine_path: Path, repository: Path, tmp_path: Path
) -> None:
    whole = repository / "tests/data/oracle/tiny-qwen4exp-q.gguf"
    model, table = take_tensor(whole, tmp_path / "m", "per_layer_token_embd.weight")
    flags = ["--engine", str(engine_path), "--run-dir", str(tmp_path / "run"), "--json"]

    def plan(*given: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "strata", "plan", *given, *flags],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    report = json.loads(plan(str(model), "--ple", str(table)).stdout)
    assert report["model"]["file_bytes"] == model.stat().st_size + table.stat().st_size
    without = plan(str(model))
    assert without.returncode != 0
    assert "name the file that holds it with --ple" in without.stderr
    absent = plan(str(model), "--ple", str(tmp_path / "absent.gguf"))
    assert absent.returncode != 0
    assert "absent.gguf does not exist" in absent.stderr
