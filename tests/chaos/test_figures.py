"""The short form of `make chaos`: figures that count things are held to what they must be, those
that are times to bounds that a busy machine keeps too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.chaos import cancels, failures, load, orphans, policy, soak, streams
from bench.chaos.figure import SHORT, Bench, Figure

pytestmark = pytest.mark.chaos
BUSY_S = 1.0  # what a busy machine may add to anything


@pytest.fixture
def bench(tmp_path: Path, engine_path: Path, faulty_engine_path: Path) -> Iterator[Bench]:
    """With both engines: a part that could not be measured without one of them is not left out."""
    made = Bench(SHORT, tmp_path, engine_path, faulty_engine_path)
    yield made
    made.close()
    assert not made.left
    assert not made.twins
    assert made.accepted == made.ended_once


def ms(facts: object, key: str = "p99_ms") -> float:
    assert isinstance(facts, dict)
    return float(facts[key])


async def test_exits_are_noticed_at_once(bench: Bench) -> None:
    figure = await failures.exit_noticed(bench)
    assert figure.facts["count"] == SHORT.exits
    assert ms(figure.facts, "p50_ms") <= BUSY_S * 1e3


async def test_hangs_are_noticed(bench: Bench) -> None:
    figure = await failures.hang_noticed(bench)
    for kind in ("freeze_compute_s", "freeze_s"):
        assert 0.9 <= ms(figure.facts, kind) <= 2.0 + BUSY_S


async def test_no_orphan(bench: Bench) -> None:
    figure = await orphans.orphan_gone(bench)
    assert figure.is_met, figure.facts
    assert isinstance(figure.facts["within a kernel of the real engine"], dict)


async def test_never_two_engines(bench: Bench) -> None:
    figure = await orphans.never_two(bench)
    assert figure.is_met, figure.facts


@pytest.mark.parametrize("engine", ["fake", "real"])
async def test_streams_go_on_as_they_would_have(bench: Bench, engine: str) -> None:
    measure = streams.identical_fake if engine == "fake" else streams.identical_real
    figure = await measure(bench)
    assert figure is not None
    assert figure.is_met, figure.facts


async def test_clients_see_no_kill(bench: Bench) -> None:
    figure = await soak.kill_soak(bench)
    assert figure.is_met, figure.facts


async def test_pause_is_the_reload(bench: Bench) -> None:
    figure = await failures.gap(bench)
    assert figure.facts["count"] == SHORT.gaps
    assert ms(figure.facts, "max_ms") <= 2 * BUSY_S * 1e3


async def test_poison_dies_alone(bench: Bench) -> None:
    figure = await failures.poison(bench)
    assert figure.facts["completed"] == 7 * 2 * SHORT.poisons
    assert ms(figure.facts, "crashes_max") <= 2
    assert figure.facts["refused"] == 2 * SHORT.poisons


async def test_engine_that_never_starts(bench: Bench) -> None:
    figure = await policy.never_starts(bench)
    starts = figure.facts["starts"]
    assert isinstance(starts, dict)
    assert max(starts.values()) <= policy.STARTS_MAX
    http = figure.facts["http"]
    assert ms(http, "p50_ms") <= 100
    assert isinstance(http, dict)
    assert f"HTTP {http['max_ms']:.1f} ms at most" in figure.measured
    assert 0 < http["service_loop_late_ms_at_most"] < float("inf")


async def test_full_service_says_no_to_each(bench: Bench) -> None:
    figure = await load.rejection(bench)
    for rate, facts in figure.facts.items():
        assert isinstance(facts, dict)
        offered = int(float(rate.removesuffix("/s")) * SHORT.load_s / 2) * 2
        assert abs(sum(facts["statuses"].values()) - offered) <= 2
        assert set(facts["statuses"]) == {"503"}
        assert ms(facts, "p50_ms") <= BUSY_S * 1e3


async def test_cancel_frees_pages(bench: Bench) -> None:
    figure: Figure = await cancels.cancel_to_freed(bench)
    fake = figure.facts["fake engine"]
    assert isinstance(fake, dict)
    assert fake["pages_left"] == 0  # the real one keeps pages for its prefix cache
    for engine, step_ms in (("fake engine", cancels.STEP_MS), ("real engine", 0.0)):
        facts = figure.facts[engine]
        assert isinstance(facts, dict)
        assert ms(facts["in all"], "p50_ms") <= step_ms + 200
        assert ms(facts["beyond the step"], "p50_ms") <= 200


async def test_supervisor_is_cheap(bench: Bench) -> None:
    figure = await load.supervisor_cost(bench)
    assert ms(figure.facts, "tokens") > 1000
    assert ms(figure.facts, "cpu_us_per_token") <= 300
    assert ms(figure.facts, "rss_mib") <= 150
