"""Finding a remembered rung on another start's ladder, and the way down."""

from __future__ import annotations

import msgspec
from strata.engines.modes import Rung
from strata.engines.rungs import Ladder, is_same_rung

from tests.supervisor.crash_facts import plan
from tests.supervisor.ladders import ladder, plans, without


def test_every_rung_is_found_again_by_its_limit() -> None:
    found = ladder()
    for index in range(len(found.rungs)):
        assert found.find(found.limit(index)) == index
    assert found.find(None) == 0


def test_a_rung_that_is_gone_gives_the_next_plainer_one() -> None:
    found = ladder()
    limit = found.limit(1)
    shorter = without(found, "no-drafts")
    assert shorter.rungs[shorter.find(limit)].name == "batch-1"
    bottom = found.limit(4)
    shortest = without(found, "prefill-1")
    assert shortest.rungs[shortest.find(bottom)].name == "context-4096"  # nothing is within


def test_sizes_that_follow_from_memory_do_not_lead_further_down() -> None:
    limit = ladder().limit(2)  # batch 1
    more = msgspec.structs.replace(plan(batch=1), max_context=9000, kv_tokens=1 << 20)
    assert Ladder((Rung("batch-1", more),), (1,)).find(limit) == 0


def test_way_down_goes_to_the_implicated_axis() -> None:
    found = ladder()
    assert found.below(0) == 1
    assert found.below(0, "batch") == 2
    assert found.below(0, "prefill") == 4
    assert found.below(2, "batch") == 3  # it has no less: the next
    assert found.below(0, "no such axis") == 1
    assert found.below(4) is None


def test_way_down_for_memory_goes_where_less_is_needed() -> None:
    found = ladder()
    assert found.below_in_memory(0) == 1
    assert found.below_in_memory(0, is_last=True) == 3
    assert found.below_in_memory(3) is None  # prefill-1 needs as much
    unknown = Ladder(found.rungs, (0,) * 5)
    assert unknown.below_in_memory(0) == 2  # batch
    assert unknown.below_in_memory(2) == 3  # context
    assert unknown.below_in_memory(3) is None


def test_memory_limit_keeps_a_start_that_would_need_as_much_away() -> None:
    found = ladder()
    limit = found.limit(3, for_memory=True)
    grown = Ladder(found.rungs, (1000, 900, 600, 410, 410))  # a little more this time
    assert grown.find(limit) == 3
    shrunk = Ladder(found.rungs, (500, 450, 300, 200, 200))
    assert shrunk.find(limit) == 3  # it has to be the smaller context all the same


def test_same_rung_is_about_features_and_context() -> None:
    full, drafts, batch, context, _ = plans(ladder())
    assert is_same_rung(full, msgspec.structs.replace(full, threads=7, kv_tokens=5))
    assert not is_same_rung(full, drafts)
    assert is_same_rung(batch, context)  # more context is the same rung again
    assert not is_same_rung(context, batch)
