"""A reload under the real engine: streams go on token for token with the engine that takes over."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from strata.observe.sighting import look

from tests.system.real_service import Service

PROMPTS = [f"Write a long list of facts about the number {n}:" for n in range(4)]
MAX_TOKENS = 600


def stream(url: str, prompt: str, begun: threading.Semaphore) -> str:
    body = {
        "model": "default", "prompt": prompt, "max_tokens": MAX_TOKENS, "min_tokens": MAX_TOKENS,
        "stream": True,
        "temperature": 0.8, "seed": 7,
    }  # fmt: skip
    request = urllib.request.Request(
        url + "/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    text, is_first = "", True
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                return text
            event = json.loads(line.removeprefix(b"data: "))
            assert "error" not in event, event
            text += "".join(choice["text"] for choice in event["choices"])
            if is_first:
                is_first = False
                begun.release()
    raise AssertionError("the stream was cut")


def run_all(url: str, begun: threading.Semaphore) -> list[str]:
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(lambda prompt: stream(url, prompt, begun), PROMPTS))


def test_streams_go_on_with_the_engine_that_takes_over(
    engine_path: Path, smollm2_path: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    service = Service(engine_path, smollm2_path, run_dir, "--batch", "4", "--max-context", "1024")
    try:
        service.wait_ready()
        expected = run_all(service.url, threading.Semaphore(0))
        before = look(run_dir).engine
        begun = threading.Semaphore(0)
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(run_all, service.url, begun)
            for _ in PROMPTS:
                assert begun.acquire(timeout=60)
            done = subprocess.run(
                [sys.executable, "-m", "strata", "reload", "--wait", "--run-dir", str(run_dir)],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            assert "has taken over" in done.stdout
            assert found.result(120) == expected
        seen = look(run_dir, timeout_s=5.0)
        assert seen.status is not None
        assert seen.status.load.resumed == len(PROMPTS)  # none had ended before
        after = seen.engine
        assert before is not None
        assert after is not None
        assert before.pid != after.pid
    finally:
        assert service.stop() == 0
