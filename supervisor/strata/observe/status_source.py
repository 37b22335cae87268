"""Builds the status record from those who own its parts. Reads only."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from importlib import metadata

from strata.engines import stale
from strata.engines.epoch import Epoch
from strata.engines.modes import ModeRow, row_text, sentences
from strata.engines.owner import EngineOwner
from strata.engines.owner_view import EngineState
from strata.observe import words
from strata.observe.metrics import Metrics
from strata.observe.status import (
    EngineStatus,
    LastExit,
    LoadProgress,
    LoadStatus,
    ModelStatus,
    RestartStatus,
    Status,
    SupervisorStatus,
)
from strata.serving.service import EngineService


def version() -> str:
    """Version of the installed package."""
    try:
        return metadata.version("strata-supervisor")
    except metadata.PackageNotFoundError:
        return "0 (not installed)"


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What does not change while the service runs."""

    model_name: str
    model_path: str
    file_bytes: int
    url: str
    run_dir: str
    started_s: float  # monotonic
    version: str


class StatusSource:
    """Call it for the status as of now."""

    def __init__(
        self, facts: ServiceFacts, owner: EngineOwner, service: EngineService, metrics: Metrics
    ) -> None:
        self._facts = facts
        self._owner = owner
        self._service = service
        self._metrics = metrics
        self._boot_id = stale.boot_id()
        self._start_time = stale.start_time(os.getpid()) or ""
        self.is_draining = False
        self.text_problem = ""  # why no text can be served yet

    def __call__(self) -> Status:
        facts, view = self._facts, self._owner.view
        now = asyncio.get_running_loop().time()
        epoch = view.epoch
        rows = self.mode_rows()
        degraded = self._degraded(rows)
        ready = epoch.handshake.ready if epoch is not None else None
        state, reason = self._state(degraded)
        last = view.last_exit
        return Status(
            state=state,
            reason=reason,
            model=self._model(),
            modes=rows,
            engine=_engine(epoch, self._service, now),
            restarts=RestartStatus(
                starts=view.starts,
                crashes=view.crashes,
                boot_attempts=view.boot_attempts,
                policy=self._owner.restarts(),
                decisions=view.decisions.entries(),
                last=None
                if last is None
                else LastExit(
                    exit_class=last.exit_class.value,
                    text=last.text,
                    ago_s=now - view.last_exit_s,
                    bundle=self._owner.last_bundle(),
                ),
                next_start_s=None
                if view.next_start_s is None
                else max(view.next_start_s - now, 0.0),
            ),
            load=self._load(),
            supervisor=SupervisorStatus(
                pid=os.getpid(),
                version=facts.version,
                uptime_s=time.monotonic() - facts.started_s,
                url=facts.url,
                run_dir=facts.run_dir,
                loop_lag_s=self._metrics.lag_s,
                start_time=self._start_time,
                boot_id=self._boot_id,
            ),
            memory=ready.memory if ready is not None else [],
            quarantine=self._owner.quarantine(),
            reasons=view.reasons or [r for row in degraded for r in row.because],
        )

    def mode_rows(self) -> list[ModeRow]:
        """The table of modes; empty before the engine's first CAPS."""
        epoch = self._owner.view.epoch
        return [] if epoch is None else list(epoch.handshake.rows)

    def _degraded(self, rows: list[ModeRow]) -> list[ModeRow]:
        return [row for row in rows if row.is_set and not row.is_as_asked]

    def _state(self, degraded: list[ModeRow]) -> tuple[str, str]:
        view = self._owner.view
        if self.is_draining and view.state is not EngineState.STOPPED:
            return "draining", "the service is shutting down"
        match view.state:
            case EngineState.READY:
                if self.text_problem:
                    return "loading", self.text_problem
                epoch = view.epoch
                if epoch is not None and epoch.is_draining:
                    return "restarting", "the engine was told to end and finishes what runs"
                if epoch is not None and epoch.is_stopped:
                    return "degraded", "the engine is stopped by a signal or a debugger"
                if degraded:
                    return "degraded", "; ".join(row_text(row) for row in degraded)
                return "ready", ""
            case EngineState.LOADING:
                return "loading", self._loading_reason()
            case EngineState.RESTARTING:
                return "restarting", f"the engine {view.last_exit.text}" if view.last_exit else ""
            case EngineState.HOLD | EngineState.REFUSED:
                return view.state.value, sentences(view.reasons)
            case EngineState.STOPPED:
                return "stopped", "the engine has been ended"

    def _loading_reason(self) -> str:
        epoch = self._owner.view.epoch
        if epoch is None or epoch.handshake.hello is None:
            return "the engine is starting"
        progress = epoch.handshake.progress
        if progress is None:
            return "the engine is finding out what it can run"
        amount = words.progress(progress.done, progress.total, progress.unit)
        return f"the model is loading: {progress.phase} {amount}"

    def _model(self) -> ModelStatus:
        facts, epoch = self._facts, self._owner.view.epoch
        caps = epoch.handshake.caps if epoch is not None else None
        if caps is None:
            return ModelStatus(
                name=facts.model_name, path=facts.model_path, file_bytes=facts.file_bytes
            )
        model = caps.model
        return ModelStatus(
            name=facts.model_name,
            path=facts.model_path,
            architecture=model.architecture,
            parameters=model.parameters,
            file_bytes=model.file_bytes or facts.file_bytes,
            context=model.context,
            types=model.types,
        )

    def _load(self) -> LoadStatus:
        load, stats = self._service.load(), self._service.stats
        epoch = self._owner.view.epoch
        ready = epoch.handshake.ready if epoch is not None else None
        total = ready.kv_pages if ready is not None else 0
        return LoadStatus(
            running=load.running,
            waiting=load.waiting,
            waiting_tokens=load.waiting_tokens,
            oldest_wait_s=load.oldest_wait_s,
            eta_s=load.eta_s,
            parked=load.parked,
            resumed=self._metrics.resumed,
            quarantined=load.quarantined,
            shapes_apart=[
                f"{apart.text} ({'refused' if apart.is_refused else 'run alone'})"
                for apart in load.shapes_apart
            ],
            journal_bytes=load.journal_bytes,
            kv_pages_used=stats.kv_pages_used if stats else 0,
            kv_pages_cached=stats.kv_pages_cached if stats else 0,
            kv_pages_total=stats.kv_pages_total if stats else total,
            prompt_tokens=stats.prompt_tokens if stats else 0,
            cached_tokens=stats.cached_tokens if stats else 0,
            output_tokens=stats.output_tokens if stats else 0,
            draft_steps=stats.draft_steps if stats else 0,
            drafted_tokens=stats.drafted_tokens if stats else 0,
            accepted_tokens=stats.accepted_tokens if stats else 0,
            tokens_per_s=self._metrics.tokens_per_s(),
            ttft_p50_s=self._metrics.ttft_s(0.5),
            ttft_p95_s=self._metrics.ttft_s(0.95),
        )


def _device(epoch: Epoch) -> str:
    """The device's own name: CAPS knows the one that was chosen, HELLO the backend's first."""
    caps, hello = epoch.handshake.caps, epoch.handshake.hello
    if caps is not None and caps.device.name:
        return caps.device.name
    return hello.device if hello is not None else ""


def _engine(epoch: Epoch | None, service: EngineService, now: float) -> EngineStatus | None:
    if epoch is None or epoch.process is None or epoch.process.returncode is not None:
        return None
    shake, stats = epoch.handshake, service.stats
    progress = shake.progress if shake.ready is None else None
    return EngineStatus(
        pid=epoch.process.pid,
        epoch=epoch.number,
        phase=shake.phase,
        uptime_s=now - epoch.process.started_s,
        build=shake.hello.build if shake.hello else "",
        backend=shake.hello.backend if shake.hello else "",
        device=_device(epoch),
        isa=shake.caps.host.isa if shake.caps else "",
        load_ms=shake.ready.load_ms + shake.ready.warm_ms if shake.ready else 0.0,
        rss_bytes=stats.rss_bytes if stats else 0,
        step=stats.step if stats else 0,
        step_ms=stats.step_ms if stats else 0.0,
        progress=None
        if progress is None
        else LoadProgress(
            phase=progress.phase, done=progress.done, total=progress.total, unit=progress.unit
        ),
    )
