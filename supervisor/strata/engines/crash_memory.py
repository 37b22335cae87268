"""What the owner remembers of crashes: joins signature, blame, the quarantine and its file.

One object for the life of the service. `offer` answers the handshake from memory; what touches the
disk runs in a thread and is awaited by the owner's tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from strata_protocol.messages import Hello, ModePlan

from strata.engines.blame import Blame, blame
from strata.engines.exits import EngineExit
from strata.engines.place import hash_of, place_of, size_and_time
from strata.engines.quarantine import (
    IDLE_STATES,
    Place,
    Quarantine,
    QuarantineRecord,
    QuarantineRow,
    QuarantineState,
)
from strata.engines.quarantine_file import QuarantineFile
from strata.engines.signature import NUMERIC, Signature, signature

TRIAL_LOOK_S = 60.0  # how often an engine on trial is looked at

log = logging.getLogger("strata.engine")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known of one exit."""

    signature: str = ""  # id; empty where it was no crash
    taken_out: tuple[str, ...] = ()  # modes that are out now and were not before
    acquitted: tuple[str, ...] = ()  # fingerprints of requests in earlier crashes of these modes


class CrashMemory:
    """`clock` is the wall clock. Methods are called on the event loop."""

    def __init__(
        self,
        run_dir: Path,
        files: Sequence[Path],  # of the model, the one that it is known by first
        executable: Path,
        trial_wait_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._quarantine = Quarantine(trial_wait_s, clock)
        self._file = QuarantineFile(run_dir)
        self._files = files
        self._executable = executable
        self._build = ""  # hash of the executable at the engine's start
        self._build_stat = (0, 0)  # of the executable when it was hashed
        self._stat = (0, 0)  # size and time of change of the model files at the engine's start
        self._place: Place | None = None  # of the engine that runs, from its HELLO on
        self._problem = ""
        self._is_kept = False
        self._has_news = asyncio.Event()

    def rows(self) -> list[QuarantineRow]:
        """All records, for people; without those that were cleared by hand since the last start."""
        cleared = self._file.cleared()
        return [row for row in self._quarantine.rows() if row.id not in cleared]

    @property
    def inputs(self) -> tuple[str, tuple[int, int]]:
        """Hash of the executable, and size and time of change of the model files, as of the last
        start."""
        return self._build, self._stat

    async def on_start(self) -> None:
        """Before each start: looks at the files and takes over what others changed."""
        self._place = None
        self._stat = await asyncio.to_thread(size_and_time, self._files)
        build_stat = await asyncio.to_thread(size_and_time, (self._executable,))
        if build_stat != self._build_stat:
            self._build_stat = build_stat
            self._build = await asyncio.to_thread(hash_of, self._executable)
        await self._sync()

    def offer(self, hello: Hello) -> Sequence[QuarantineRecord]:
        """Records of the modes that the engine that says HELLO must not offer."""
        self._place = place_of(hello, self._build, self._files[0], self._stat)
        started = self._quarantine.on_start(self._place)
        self._tell_forgotten(started.forgotten)
        for record in started.on_trial:
            log.info("mode %s is offered again, on trial: %s", record.mode, record.text)
        for record in started.out:
            log.warning("mode %s is not offered: %s", record.mode, record.text)
        if started.forgotten or started.on_trial:
            self._has_news.set()
        return started.out

    def on_header(self, header: str) -> None:
        """The hash of the model file's header, which CAPS tells; the same again changes nothing."""
        if self._place is None or self._place.header == header:
            return
        self._place = msgspec.structs.replace(self._place, header=header)
        forgotten = self._quarantine.forget_outdated(self._place)
        if forgotten:
            self._tell_forgotten(forgotten)
            self._has_news.set()

    def keep(
        self, ready_s: Callable[[], float], served: Callable[[], int]
    ) -> Coroutine[None, None, None]:
        """To be run beside a running engine until `stop_keeping`, which may come before its first
        turn: writes what changed, ends good trials. `ready_s`: for how long it has been ready;
        `served`: requests that it has finished."""
        self._is_kept = True
        return self._keep(ready_s, served)

    async def _keep(self, ready_s: Callable[[], float], served: Callable[[], int]) -> None:
        while self._is_kept:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TRIAL_LOOK_S):
                    await self._has_news.wait()
            has_news = self._has_news.is_set()
            self._has_news.clear()
            if self._clear_good(ready_s(), served()) or has_news:
                await self._sync()

    def stop_keeping(self) -> None:
        self._is_kept = False
        self._has_news.set()

    def on_exited(
        self,
        exited: EngineExit,
        plan: ModePlan | None,
        ready_s: float,
        served: int,
        suspects: frozenset[str] = frozenset(),
    ) -> Verdict:
        """What an exit means, to be followed by `save`. `plan`: what was being proven or ran;
        `suspects`: fingerprints of the requests that may have ended it."""
        self._clear_good(ready_s, served)
        if self._place is None or not exited.is_crash:
            return Verdict()
        guilty = blame(exited.exit_class, exited.status, exited.beacon, plan)
        return self._judged(guilty, signature(exited, plan), suspects)

    def on_doubt(self, mode: str) -> Verdict:
        """Requests failed in steps of `mode` and were fine alone, so none of them is suspected.
        `keep` writes it."""
        self._has_news.set()
        return self._judged(Blame(mode, is_certain=False), NUMERIC, frozenset())

    def _judged(self, guilty: Blame | None, crash: Signature, suspects: frozenset[str]) -> Verdict:
        if self._place is None:
            return Verdict()
        was_out = {record.mode for record in self._quarantine.out(self._place)}
        taken = self._quarantine.on_crash(self._place, crash, guilty, suspects)
        for mode in was_out - {record.mode for record in self._quarantine.out(self._place)}:
            log.warning("mode %s is offered again: the same crash came without it", mode)
        for record in taken:
            log.error(
                "mode %s is taken out: %s; the engine starts without it (quarantine %s)",
                record.mode,
                record.sentence,
                record.id,
            )
        for record in self._quarantine.records:
            if record.state is QuarantineState.SUSPECTED and record.signature == crash.id:
                log.warning("mode %s is suspected: %s", record.mode, record.sentence)
        earlier = {found for record in taken for found in record.suspects} - suspects
        return Verdict(crash.id, tuple(r.mode for r in taken), tuple(sorted(earlier)))

    def on_convicted(self, suspect: str) -> tuple[str, ...]:
        """A request is convicted of its crashes: returns the modes that are offered again for it,
        from the next start on. To be followed by `save`."""
        if self._place is None:
            return ()
        freed = self._quarantine.on_convicted(self._place, suspect)
        for record in freed:
            log.warning("mode %s is offered again: a request was convicted", record.mode)
        return tuple(record.mode for record in freed)

    async def save(self) -> None:
        """Awaited once `keep` has ended and before the next start."""
        await self._sync()

    def _clear_good(self, ready_s: float, served: int) -> bool:
        if self._place is None:
            return False
        cleared = self._quarantine.on_good(self._place, ready_s, served)
        for record in cleared:
            log.info("mode %s has passed its trial: its quarantine is cleared", record.mode)
        return bool(cleared)

    async def _sync(self) -> None:
        synced = await asyncio.to_thread(self._file.sync, list(self._quarantine.records))
        self._quarantine.adopt(synced.records)
        for record in self._quarantine.forget(synced.cleared):
            log.info("the quarantine of mode %s was cleared by hand", record.mode)
        if synced.problem != self._problem:
            self._problem = synced.problem
            if synced.problem:
                log.warning(
                    "%s; the quarantine is kept in memory until it can be written", synced.problem
                )
            else:
                log.info("the quarantine is written to disk again")

    def _tell_forgotten(self, records: Sequence[QuarantineRecord]) -> None:
        for record in records:
            if record.state not in IDLE_STATES:
                log.info(
                    "the quarantine of mode %s is forgotten: the engine's build or the model file"
                    " has changed",
                    record.mode,
                )
