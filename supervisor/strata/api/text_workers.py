"""Threads for work on text: templates, tokenising, large bodies. One that does not come back is
given up and replaced, so that it costs its own request and no other.

A job may take JOB_S; then its caller gets TextStuckError, and another thread takes the place of the
one that runs it, which ends by itself should it ever come back. With STUCK_MAX given up and not
back the rest cannot be trusted either: `failed` is set, and the service ends (71) to be started
again. Nothing waits for these threads: they are daemons, unlike those of an executor, which the
interpreter joins at its end.

The event loop owns everything here but `_Worker.since`, which the worker writes and the loop reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from strata.errors import TextStuckError

WORKERS = 2  # so that one long text delays nobody else much
JOB_S = 60.0  # the longest body takes a tenth of it
READ_S = 300.0  # the tokeniser of a model, once; seconds as a rule
STUCK_MAX = 4
LOOKS = 8  # within a job's limit
LATE_S = 1.0  # our own lateness, which makes all times start anew

T = TypeVar("T")

log = logging.getLogger("strata.api")


async def read_text(work: Callable[[], T]) -> T:
    """The text part of a model, read in a thread that nothing waits for. Raises TextStuckError
    where that takes READ_S, and what `work` raises."""
    worker = TextWorkers(count=1, job_s=READ_S)
    try:
        return await worker.run(work)
    finally:
        worker.close()


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[], Any]
    result: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop

    def run(self) -> None:
        """In the worker."""
        value: Any = None
        error: BaseException | None = None
        try:
            value = self.work()
        except BaseException as caught:  # the caller's, whatever it is
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self.settle, value, error)

    def settle(self, value: Any, error: BaseException | None) -> None:
        if self.result.done():
            return  # cancelled, or given up
        if error is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(value)


class _Worker:
    """One thread. Takes jobs until it is given up or `None` comes."""

    def __init__(self, jobs: queue.SimpleQueue[_Job | None], name: str) -> None:
        self.since: tuple[_Job, float] | None = None  # what it does and since when
        self.is_given_up = False
        self._jobs = jobs
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_back(self) -> bool:
        """It was given up and has ended all the same."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self.is_given_up and (job := self._jobs.get()) is not None:
            if job.result.cancelled():
                continue
            self.since = (job, time.monotonic())
            job.run()
            self.since = None


class TextWorkers:
    """`run` from the event loop; `close` once."""

    def __init__(
        self, count: int = WORKERS, job_s: float = JOB_S, stuck_max: int = STUCK_MAX
    ) -> None:
        self.failed = asyncio.Event()
        self._job_s = job_s
        self._stuck_max = stuck_max
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._workers = [self._start() for _ in range(count)]
        self._stuck: list[_Worker] = []
        self._open = 0  # jobs that are waited for
        self._counted_from_s = 0.0  # what came before is not held against a job
        self._look_at: asyncio.TimerHandle | None = None

    @property
    def stuck(self) -> int:
        """Threads that were given up and are not back."""
        self._stuck = [worker for worker in self._stuck if not worker.is_back]
        return len(self._stuck)

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises; TextStuckError where it takes too long."""
        loop = asyncio.get_running_loop()
        job = _Job(work, loop.create_future(), loop)
        self._open += 1
        if self._look_at is None:
            self._plan_look(loop)
        self._jobs.put(job)
        try:
            found: T = await job.result
            return found
        finally:
            self._open -= 1

    def close(self) -> None:
        """Threads end after their job; none is waited for."""
        if self._look_at is not None:
            self._look_at.cancel()
        for _ in self._workers:
            self._jobs.put(None)

    # --- inside

    def _start(self) -> _Worker:
        return _Worker(self._jobs, f"text_{next(self._numbers)}")

    def _plan_look(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = loop.time() + self._job_s / LOOKS
        self._look_at = loop.call_at(due_s, self._look, loop, due_s)

    def _look(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        """Gives up what has taken too long. Ends by itself where no job is waited for."""
        now = time.monotonic()
        if loop.time() - due_s > LATE_S:
            self._counted_from_s = now  # we stood still ourselves, and perhaps the threads did too
        for index, worker in enumerate(self._workers):
            if (current := worker.since) is None:
                continue
            job, since_s = current
            if now - max(since_s, self._counted_from_s) > self._job_s:
                self._give_up(index, worker, job)
        self._look_at = None
        if self._open:
            self._plan_look(loop)

    def _give_up(self, index: int, worker: _Worker, job: _Job) -> None:
        worker.is_given_up = True
        self._stuck.append(worker)
        self._workers[index] = self._start()
        stuck = self.stuck
        log.error(
            "work on a text did not end within %g s; its thread is replaced, %d of at most %d"
            " are stuck",
            self._job_s, stuck, self._stuck_max,
        )  # fmt: skip
        job.settle(None, TextStuckError(f"the text took longer than {self._job_s:g} s to prepare"))
        if stuck >= self._stuck_max:
            self.failed.set()
