"""The one status record: what `status`, `/v1/status`, `/health/ready` and state.json all show."""

from __future__ import annotations

import msgspec
from strata_protocol.messages import MemoryPart, Reason

from strata.engines.decision_log import Entry
from strata.engines.modes import ModeRow
from strata.engines.quarantine import QuarantineRow
from strata.engines.restart_state import RestartView


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the status."""


class ModelStatus(Record, frozen=True):
    name: str
    path: str
    architecture: str = ""
    parameters: int = 0
    file_bytes: int = 0
    context: int = 0  # the context length the model was made for
    types: list[str] = []


class LoadProgress(Record, frozen=True):
    phase: str
    done: int
    total: int
    unit: str


class EngineStatus(Record, frozen=True):
    pid: int
    epoch: int  # counts the engine starts of this run directory
    phase: str  # "launch", "handshake", "loading", "running"
    uptime_s: float
    build: str = ""
    backend: str = ""
    device: str = ""
    isa: str = ""
    load_ms: float = 0.0
    rss_bytes: int = 0
    step: int = 0
    step_ms: float = 0.0
    progress: LoadProgress | None = None


class LastExit(Record, frozen=True):
    exit_class: str
    text: str
    ago_s: float
    bundle: str = ""  # id for `crashes show`, once it is written


class RestartStatus(Record, frozen=True):
    starts: int
    crashes: int  # without boot attempts
    last: LastExit | None = None
    next_start_s: float | None = None  # seconds until the next start, where one is due
    boot_attempts: int = 0  # starts that ended while a mode was being proven
    policy: RestartView = RestartView()  # rung, window and ceiling
    decisions: list[Entry] = []  # the newest, oldest first


class LoadStatus(Record, frozen=True):
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    oldest_wait_s: float = 0.0
    eta_s: float = 0.0  # that a request which comes now is expected to wait
    parked: int = 0  # of those that wait: lost their engine and go on with the next
    resumed: int = 0  # requests that went on with another engine, since start
    quarantined: int = 0  # requests that are refused because they killed engines
    shapes_apart: list[str] = []  # kinds of requests that run alone, or are refused, for that
    journal_bytes: int = 0
    kv_pages_used: int = 0
    kv_pages_cached: int = 0
    kv_pages_total: int = 0
    prompt_tokens: int = 0  # by this engine since its start; cached_tokens are among them
    cached_tokens: int = 0  # from the prefix cache
    output_tokens: int = 0
    draft_steps: int = 0  # times that a sequence's drafts were verified
    drafted_tokens: int = 0  # these drafts; accepted_tokens of them were right
    accepted_tokens: int = 0
    tokens_per_s: float = 0.0  # over the last ten seconds
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None


class SupervisorStatus(Record, frozen=True):
    pid: int
    version: str
    uptime_s: float
    url: str
    run_dir: str
    loop_lag_s: float = 0.0
    start_time: str = ""  # with pid and boot_id it names the process, also after its end
    boot_id: str = ""
    loop_still_s: float = 0.0  # since its event loop moved, where that was too busy to answer
    record_age_s: float = 0.0  # of this record, where it is not of the moment of asking


class Status(Record, frozen=True):
    state: str  # ready, degraded, loading, restarting, hold, refused, draining, stopped, hung
    reason: str  # one sentence where the state is not "ready"
    model: ModelStatus
    modes: list[ModeRow]
    engine: EngineStatus | None
    restarts: RestartStatus
    load: LoadStatus
    supervisor: SupervisorStatus
    memory: list[MemoryPart] = []
    quarantine: list[QuarantineRow] = []  # modes that ended engines
    reasons: list[Reason] = []  # coded reasons of hold, refused and degraded

    @property
    def is_serving(self) -> bool:
        return self.state in ("ready", "degraded")


EXIT_STATUS = {
    "ready": 0,
    "degraded": 1,
    "loading": 2,
    "restarting": 2,
    "draining": 2,
    "hold": 3,
    "refused": 3,
    "stopped": 4,
    "hung": 4,
    "down": 4,
}
"""Exit status of `strata-supervisor status` by state; 4 also where no supervisor answers."""
