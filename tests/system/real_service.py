"""`strata serve` as a process of its own, for tests that need the whole service."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

START_S = 90.0


class Service:
    """`strata serve` as a process of its own."""

    def __init__(self, engine: Path, model: Path, run_dir: Path, *flags: str) -> None:
        arguments = ["--model", str(model), "--served-model-name", "smollm2"]
        arguments += ["--engine", str(engine), "--port", "0", "--run-dir", str(run_dir)]
        arguments += flags
        self.process = subprocess.Popen(
            [sys.executable, "-m", "strata", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._news = threading.Condition()  # of each line
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
            found = re.match(r"ready: (http://\S+)/v1 ", line)
            if found is not None:
                self.url = found.group(1)
                self._ready.set()
        self._ready.set()  # it ended

    def wait_ready(self) -> None:
        assert self._ready.wait(START_S), "not ready:\n" + "".join(self.lines)
        assert self.url, "ended instead of getting ready:\n" + "".join(self.lines)

    def wait_line(self, text: str) -> None:
        """Until a line of its output holds `text`."""
        with self._news:
            found = self._news.wait_for(lambda: any(text in line for line in self.lines), START_S)
        assert found, f"no line with {text!r}:\n" + "".join(self.lines)

    def stop(self) -> int:
        self.process.terminate()
        status = self.process.wait(30)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status
