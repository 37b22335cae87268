"""The histogram of each token's gap says what Prometheus' own would."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from strata.observe.step_histogram import StepHistogram

BOUNDS = (0.001, 0.0025, 0.5, 1, 5)


def test_it_renders_as_prometheus_own() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    one = StepHistogram("gap_seconds", "time between tokens", BOUNDS, ours)
    other = Histogram("gap_seconds", "time between tokens", buckets=BOUNDS, registry=theirs)
    assert generate_latest(ours) == generate_latest(theirs).replace(_created(theirs), b"")
    values = [0.0, 0.001, 0.00100001, 0.4, 1.0, 5.0, 7.5]
    one.observe(values[:3])
    one.observe(values[3:])
    for value in values:
        other.observe(value)
    assert generate_latest(ours) == generate_latest(theirs).replace(_created(theirs), b"")


def _created(registry: CollectorRegistry) -> bytes:
    """The sample that `Metrics` turns off."""
    return b"".join(
        line for line in generate_latest(registry).splitlines(keepends=True) if b"_created" in line
    )
