"""`strata serve` as a process of its own, with a chaos engine or the real one behind it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import strata
from strata.engines import stale

from bench.chaos.chaos_folder import MODEL, PROTOCOL, REPOSITORY, ChaosFolder, started_at

READY_S = 90.0
LOG_END = 3000  # characters of the log that an error shows: engines may have started by hundreds
STOP_S = 30.0
_LISTENS = re.compile(r"(http://[^\s,]+)")
_UNLIMITED = (
    "import sys\n"
    "from bench.chaos.rig import unlimited_restarts\n"
    "from strata.cli import main\n"
    "with unlimited_restarts():\n"
    "    sys.exit(main(sys.argv[1:]))\n"
)
PYTHONPATH = os.pathsep.join(
    [str(Path(strata.__file__ or "").parent.parent), str(PROTOCOL), str(REPOSITORY)]
)


class Served:
    """Its standard output and error go to `<folder>/serve.log`."""

    def __init__(self, folder: ChaosFolder, process: subprocess.Popen[bytes], log: Path) -> None:
        self.folder = folder
        self.process = process
        self.pid = process.pid
        self.started_at = started_at(process.pid)
        self.url = ""
        self._log = log

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def listening(self, session: aiohttp.ClientSession) -> None:
        """Returns once HTTP answers; sets `url`. Raises RuntimeError with the log."""
        await self._until(session, "/health/live")

    async def ready(self, session: aiohttp.ClientSession) -> None:
        """Returns once requests are served."""
        await self._until(session, "/health/ready")

    async def _until(self, session: aiohttp.ClientSession, path: str) -> None:
        try:
            async with asyncio.timeout(READY_S):
                while not await self._answers(session, path):
                    if self.process.poll() is not None:
                        raise RuntimeError(f"serve ended: {self.log()}")
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise RuntimeError(f"{path} is not 200; last: {self.log()[-LOG_END:]}") from None

    async def _answers(self, session: aiohttp.ClientSession, path: str) -> bool:
        if not self.url:
            found = _LISTENS.search(self.log())
            if found is None:
                return False
            self.url = found[1].removesuffix("/v1")
        try:
            async with session.get(self.url + path) as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    def engine(self) -> tuple[int, str] | None:
        """Pid and start time of the engine that runs, as the run directory says."""
        record = stale.read_record(self.folder.run_dir)
        return None if record is None else (record.pid, record.start_time)

    def kill(self) -> None:
        """SIGKILL, without waiting for anything."""
        self.process.send_signal(signal.SIGKILL)

    async def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            await asyncio.to_thread(self.process.wait, STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise


def launch(
    folder: ChaosFolder,
    *flags: str,
    engine: Path | None = None,
    model: Path = MODEL,
    is_unlimited: bool = True,
    environment: dict[str, str] | None = None,
) -> Served:
    """Starts the service at once. `is_unlimited`: restarts come at once and without end."""
    program = ["-c", _UNLIMITED] if is_unlimited else ["-m", "strata"]
    log = folder.path / "serve.log"
    with log.open("ab") as out:
        out.truncate(0)
        process = subprocess.Popen(
            [
                sys.executable, *program, "serve", "--model", str(model),
                "--engine", str(engine or folder.executable), "--port", "0",
                "--run-dir", str(folder.run_dir), "--drain-s", "0.2", *flags,
            ],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder.path,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, **(environment or {})},
        )  # fmt: skip
    return Served(folder, process, log)


@contextlib.asynccontextmanager
async def served(
    folder: ChaosFolder,
    *flags: str,
    engine: Path | None = None,
    model: Path = MODEL,
    is_unlimited: bool = True,
    environment: dict[str, str] | None = None,
    waits: bool = True,
) -> AsyncIterator[Served]:
    """`waits`: until it is ready."""
    service = launch(
        folder, *flags, engine=engine, model=model, is_unlimited=is_unlimited,
        environment=environment,
    )  # fmt: skip
    try:
        if waits:
            async with aiohttp.ClientSession() as session:
                await service.ready(session)
        yield service
    finally:
        await service.stop()
