"""The real service with a real engine that faults in a kernel: what its crash bundle says."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from strata import cli
from strata.observe.bundle_store import Bundle, bundle_ids, read_bundle

from tests.system.real_service import Service

LIMIT_S = 60.0
FAULT = "matmul*:phase=decode,step>=4,sequences=1@segv"


@pytest.fixture
def service(
    faulty_engine_path: Path, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    monkeypatch.setenv("STRATA_FAULT", FAULT)
    model = repository / "tests/data/oracle/tiny-llama.gguf"
    found = Service(faulty_engine_path, model, tmp_path, "--threads", "2", "--max-context", "256")
    try:
        found.wait_ready()
        yield found
    finally:
        found.stop()


def crashed(service: Service, run_dir: Path) -> Bundle:
    """Asks for tokens until the engine has died, and waits for its bundle."""
    body = json.dumps({"model": "smollm2", "prompt": [5, 6, 7], "max_tokens": 32}).encode()
    request = urllib.request.Request(
        service.url + "/v1/completions", body, {"Content-Type": "application/json"}
    )
    # It kills each engine: in the end the request is refused, with any status above 399.
    with pytest.raises(urllib.error.HTTPError) as refused, urllib.request.urlopen(request):
        pass
    refused.value.close()
    deadline = time.monotonic() + LIMIT_S
    while not bundle_ids(run_dir):
        assert time.monotonic() < deadline, "".join(service.lines)
        time.sleep(0.02)
    return read_bundle(run_dir, bundle_ids(run_dir)[-1])


def test_a_fault_in_a_kernel(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = crashed(service, tmp_path)
    assert found.problems == []
    meta, view = found.meta, found.beacon
    assert meta is not None
    assert view is not None
    assert view.crash is not None
    assert (meta.exit_class, meta.signal_name, meta.left_out) == ("signal", "SIGSEGV (11)", [])
    assert meta.build_id == view.build_id != ""
    assert meta.host is not None
    assert meta.host.cpu
    assert "matmul" in meta.sentence
    assert view.crash.kernel.startswith("matmul")
    assert view.crash.frames
    assert [s.step for s in view.steps] == list(range(1, len(view.steps) + 1))
    (suspect,) = found.requests
    assert suspect.was_in_step
    assert (suspect.prompt_tokens, len(suspect.fingerprint)) == (3, 32)
    assert found.status is not None
    assert found.status.model.architecture == "llama"
    assert cli.main(["crashes", "show", found.id, "--run-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "SIGSEGV (11) in the thread" in text
    assert "request 1, in the step" in text
    assert cli.main(["beacon", "--epoch", "1", "--run-dir", str(tmp_path)]) == 0
    assert "has ended" in capsys.readouterr().out
    out = tmp_path / "out.tar.gz"
    argv = ["crashes", "export", found.id, "--out", str(out), "--run-dir", str(tmp_path)]
    assert cli.main(argv) == 0
