"""Prometheus metrics of the service, and the few figures of them that status shows.

Names follow `strata_<thing>_<unit>`. Dashboards made for vLLM work too: the `vllm:` names are
copies made when scraped, at no cost per token.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from strata_protocol.messages import Stats

from strata.engines.exits import EngineExit
from strata.observe.status import Status
from strata.observe.step_histogram import StepHistogram
from strata.serving.request import CancelReason

RATE_WINDOW_S = 10
SAMPLES_KEPT = 256

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)
_LAG_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
STATES = ("ready", "degraded", "loading", "restarting", "hold", "refused", "draining", "stopped")


class _Aliases(Collector):
    """Existing metrics again under the names that other dashboards expect."""

    def __init__(self, names: dict[str, Collector]) -> None:
        self._names = names

    def collect(self) -> Iterator[Metric]:
        for alias, wrapper in self._names.items():
            for metric in wrapper.collect():
                copy = Metric(alias, metric.documentation, metric.type)
                for sample in metric.samples:
                    suffix = sample.name.removeprefix(metric.name)
                    copy.add_sample(alias + suffix, sample.labels, sample.value)
                yield copy


class Metrics:
    """Implements `serving.recorder.Recorder`. All methods are called on the event loop."""

    def __init__(self) -> None:
        # Else each series has a second sample that nothing reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        registry = self._registry = CollectorRegistry()

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter("strata_" + name, text, labels, registry=registry)

        def gauge(name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
            return Gauge("strata_" + name, text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram("strata_" + name, text, buckets=buckets, registry=registry)

        self._engine_up = gauge("engine_up", "1 while the engine is ready")
        self._engine_state = gauge("engine_state", "1 for the state of the service", ["state"])
        self._mode_disabled = gauge(
            "mode_disabled", "1 where a mode runs with less than asked", ["mode", "code"]
        )
        self._engine_uptime = gauge("engine_uptime_seconds", "time since the engine's launch")
        self._engine_rss = gauge("engine_rss_bytes", "resident memory of the engine")
        self._starts = counter("engine_starts", "launches of the engine")
        self._crashes = counter("engine_crashes", "unasked ends of the engine", ["class"])
        self._load = gauge("load_seconds", "time the running engine took to become ready")
        self._requests = counter("requests", "requests that ended", ["outcome"])
        self._accepted = counter("requests_accepted", "requests accepted")
        self._rejected = counter("rejected", "requests refused at the door", ["reason"])
        self._rejected_by: dict[str, Counter] = {}  # what its labels find, looked up once
        self._requeued = counter("requeued", "requests sent again after an engine died")
        self._resumed = counter("resumed", "requests that went on with another engine")
        self._resume_gap = histogram(
            "resume_gap_seconds", "from an engine's end to the next one's work", _LATENCY_S
        )
        self._quarantined = counter(
            "poison_quarantined", "requests found to kill engines, refused from then on"
        )
        self._parked = gauge("parked", "requests that lost their engine and wait for the next")
        self._refused = gauge("quarantined_requests", "requests refused for killing engines")
        self._journal = gauge("journal_bytes", "memory for what running requests need to go on")
        self._deadlines = counter("deadline_expired", "requests that were late", ["where"])
        self._cancelled = counter("cancelled", "requests ended before their own end", ["why"])
        self._running = gauge("running", "requests in the engine")
        self._queue_depth = gauge("queue_depth", "requests that wait")
        self._queue_tokens = gauge("queue_tokens", "prompt tokens that wait")
        self._queue_eta = gauge("queue_eta_seconds", "expected wait of a request that comes now")
        self._kv_pages = gauge("kv_pages", "pages of the KV pool", ["use"])
        self._kv_usage = gauge("kv_usage_ratio", "share of the KV pool that is in use")
        self._prompt_tokens = counter("prompt_tokens", "prompt tokens of finished requests")
        self._cached_tokens = counter("prompt_cached_tokens", "of these, from the prefix cache")
        self._tokens = counter("generated_tokens", "tokens produced")
        self._ttft = histogram("time_to_first_token_seconds", "arrival to first token", _LATENCY_S)
        self._itl = StepHistogram(
            "strata_inter_token_seconds", "time between tokens", _TOKEN_S, registry
        )
        self._queue_s = histogram("queue_seconds", "arrival to submission", _LATENCY_S)
        self._request_s = histogram("request_seconds", "arrival to end", _LATENCY_S)
        self._lag = histogram("loop_lag_seconds", "how late the event loop ran", _LAG_S)
        self._drafts = counter("draft_steps", "times that a sequence's drafts were verified")
        self._drafted = counter("drafted_tokens", "drafts that were verified")
        self._draft_accepted = counter("draft_accepted_tokens", "of these the ones that were right")
        self._accepted_at = counter(
            "draft_accepted_tokens_per_pos", "the same by place behind the last token", ["position"]
        )
        success = Counter(
            "vllm:request_success", "requests that finished", ["finished_reason"], registry=registry
        )
        self._success = success
        registry.register(
            _Aliases(
                {
                    "vllm:num_requests_running": self._running,
                    "vllm:num_requests_waiting": self._queue_depth,
                    "vllm:kv_cache_usage_perc": self._kv_usage,
                    "vllm:time_to_first_token_seconds": self._ttft,
                    "vllm:inter_token_latency_seconds": self._itl,
                    "vllm:e2e_request_latency_seconds": self._request_s,
                    "vllm:request_queue_time_seconds": self._queue_s,
                    "vllm:prompt_tokens": self._prompt_tokens,
                    "vllm:generation_tokens": self._tokens,
                    "vllm:spec_decode_num_drafts": self._drafts,
                    "vllm:spec_decode_num_draft_tokens": self._drafted,
                    "vllm:spec_decode_num_accepted_tokens": self._draft_accepted,
                    "vllm:spec_decode_num_accepted_tokens_per_pos": self._accepted_at,
                }
            )
        )
        self._ttft_samples: deque[float] = deque(maxlen=SAMPLES_KEPT)
        self._per_second: deque[tuple[int, int]] = deque(maxlen=RATE_WINDOW_S + 1)
        self.lag_s = 0.0
        self.resumed = 0

    # --- Recorder

    def on_accepted(self) -> None:
        self._accepted.inc()

    def on_rejected(self, code: str) -> None:
        counter = self._rejected_by.get(code)
        if counter is None:
            counter = self._rejected_by[code] = self._rejected.labels(code)
        counter.inc()

    def on_submitted(self, queue_s: float) -> None:
        self._queue_s.observe(queue_s)

    def on_requeued(self) -> None:
        self._requeued.inc()

    def on_resumed(self, gap_s: float) -> None:
        self._resumed.inc()
        self._resume_gap.observe(gap_s)
        self.resumed += 1

    def on_quarantined(self) -> None:
        self._quarantined.inc()

    def on_deadline(self, where: str) -> None:
        self._deadlines.labels(where).inc()

    def on_cancelled(self, why: CancelReason) -> None:
        self._cancelled.labels(why.value).inc()

    def on_tokens(self, now: float, first_s: list[float], gaps_s: list[float], count: int) -> None:
        self._tokens.inc(count)
        for ttft_s in first_s:
            self._ttft.observe(ttft_s)
            self._ttft_samples.append(ttft_s)
        self._itl.observe(gaps_s)
        second = int(now)
        if self._per_second and self._per_second[-1][0] == second:
            self._per_second[-1] = (second, self._per_second[-1][1] + count)
        else:
            self._per_second.append((second, count))

    def on_ended(self, outcome: str, total_s: float, prompt: int, cached: int) -> None:
        self._requests.labels(outcome).inc()
        self._request_s.observe(total_s)
        self._prompt_tokens.inc(prompt)
        self._cached_tokens.inc(cached)
        if outcome in ("stop", "length"):
            self._success.labels(outcome).inc()

    def on_stats(self, stats: Stats, before: Stats | None) -> None:
        was = (
            (before.draft_steps, before.drafted_tokens, before.accepted_tokens) if before else None
        )
        steps, drafted, accepted = was or (0, 0, 0)
        self._drafts.inc(stats.draft_steps - steps)
        self._drafted.inc(stats.drafted_tokens - drafted)
        self._draft_accepted.inc(stats.accepted_tokens - accepted)
        earlier = before.accepted_at if before else [0] * len(stats.accepted_at)
        for place, (now, then) in enumerate(zip(stats.accepted_at, earlier, strict=False)):
            if now > then:
                self._accepted_at.labels(str(place)).inc(now - then)

    def on_loop_lag(self, lag_s: float) -> None:
        self.lag_s = lag_s
        self._lag.observe(lag_s)

    # --- engine

    def on_started(self) -> None:
        self._starts.inc()

    def on_exited(self, exited: EngineExit) -> None:
        if exited.is_crash:
            self._crashes.labels(exited.exit_class.value).inc()

    # --- reading

    def tokens_per_s(self, now: float | None = None) -> float:
        """Tokens per second over the last ten whole seconds."""
        second = int(time.monotonic() if now is None else now)
        recent = sum(n for s, n in self._per_second if second - RATE_WINDOW_S <= s < second)
        return recent / RATE_WINDOW_S

    def ttft_s(self, quantile: float) -> float | None:
        """A quantile of the last first-token times; None before there are any."""
        if not self._ttft_samples:
            return None
        ordered = sorted(self._ttft_samples)
        return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)]

    def render(self, status: Status) -> bytes:
        """The text exposition, with gauges from `status`."""
        engine, load = status.engine, status.load
        self._engine_up.set(status.state in ("ready", "degraded", "draining"))
        for state in STATES:
            self._engine_state.labels(state).set(status.state == state)
        self._mode_disabled.clear()
        for row in status.modes:
            if not row.is_as_asked:
                for reason in row.because:
                    self._mode_disabled.labels(row.name, reason.code).set(1)
        self._engine_uptime.set(engine.uptime_s if engine else 0)
        self._engine_rss.set(engine.rss_bytes if engine else 0)
        self._load.set(engine.load_ms / 1000 if engine else 0)
        self._running.set(load.running)
        self._queue_depth.set(load.waiting)
        self._queue_tokens.set(load.waiting_tokens)
        self._queue_eta.set(load.eta_s)
        self._parked.set(load.parked)
        self._refused.set(load.quarantined)
        self._journal.set(load.journal_bytes)
        for use, pages in (
            ("used", load.kv_pages_used),
            ("cached", load.kv_pages_cached),
            ("total", load.kv_pages_total),
        ):
            self._kv_pages.labels(use).set(pages)
        self._kv_usage.set(load.kv_pages_used / max(load.kv_pages_total, 1))
        return generate_latest(self._registry)
