"""Writes crash bundles in a thread of its own, so that neither the event loop nor the next
engine's start waits for a disk. A full disk or a missing directory costs the bundle, not the
service, and is told once.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from strata.engines.crash_report import Crash
from strata.engines.restart import Decision
from strata.observe.bundle import Scene, bundle_files, bundle_signature, utc_now
from strata.observe.bundle_store import crashes_path, new_id, write_bundle
from strata.observe.redaction import Redactor
from strata.observe.status import Status
from strata.observe.words import command_line
from strata.serving.request_facts import RequestFacts

PENDING_MAX = 4
CLOSE_WAIT_S = 5.0

log = logging.getLogger("strata.crashes")


class BundleWriter:
    """Implements `CrashReporter`. `close` waits for what is being written.

    `requests`: what the engine had, asked at the moment of its end with the ids of those that its
    last step served. `config`: settings as they may
    be shown; `secrets`: values that must not appear.
    """

    def __init__(
        self,
        run_dir: Path,
        requests: Callable[[Collection[int]], Sequence[RequestFacts]],
        *,
        config: Mapping[str, str],
        secrets: Sequence[str] = (),
        version: str = "",
    ) -> None:
        self._run_dir = run_dir
        self._requests = requests
        self._config = config
        self._redactor = Redactor(secrets)
        self._version = version
        self.status: Callable[[], Status] | None = None  # known once the owner is
        self._scene: Scene | None = None
        self._written = (0, "")  # epoch and id of the newest bundle; replaced by the thread
        self._has_problem = False  # the thread's
        self._queue: queue.Queue[tuple[Scene, Decision] | None] = queue.Queue(PENDING_MAX)
        self._thread: threading.Thread | None = None

    def on_crashed(self, crash: Crash) -> None:
        status = self.status() if self.status is not None else None
        view = crash.exited.beacon
        requests = self._requests(frozenset(view.rids) if view is not None else frozenset())
        self._scene = Scene(crash, utc_now(), time.monotonic(), requests, status)

    def on_decided(self, decision: Decision) -> None:
        scene, self._scene = self._scene, None
        if scene is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="crash bundles", daemon=True)
            self._thread.start()
        try:
            self._queue.put_nowait((scene, decision))
        except queue.Full:
            log.warning(
                "no crash bundle of epoch %d: the disk is too slow", scene.crash.exited.epoch
            )

    def bundle_of(self, epoch: int) -> str:
        written, bundle_id = self._written
        return bundle_id if written == epoch else ""

    def close(self) -> None:
        """Writes what is pending, for at most CLOSE_WAIT_S."""
        if self._thread is None:
            return
        try:
            self._queue.put(None, timeout=CLOSE_WAIT_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_WAIT_S)

    # --- in the thread

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            self._write(*job)

    def _write(self, scene: Scene, decision: Decision) -> None:
        epoch = scene.crash.exited.epoch
        try:
            bundle_id = new_id(self._run_dir, scene.when, bundle_signature(scene.crash))
            files = bundle_files(
                scene,
                bundle_id,
                decision,
                config=self._config,
                version=self._version,
                redactor=self._redactor,
            )
            write_bundle(self._run_dir, bundle_id, files)
        except OSError as error:
            if not self._has_problem:
                self._has_problem = True
                log.warning(
                    "a crash bundle cannot be written to %s: %s; crashes are in the log alone until"
                    " it can",
                    crashes_path(self._run_dir),
                    error.strerror or error,
                )
            return
        self._has_problem = False
        self._written = (epoch, bundle_id)
        log.warning(
            "what is known of this crash: %s",
            command_line(f"crashes show {bundle_id}", self._run_dir),
        )
