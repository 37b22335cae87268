"""The compute threads: every item exactly once, for any number of threads, items and chunks."""

from __future__ import annotations

import pytest

engine = pytest.importorskip("strata_engine_testing", reason="the engine's module is not built")


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(("items", "chunk"), [(0, 1), (1, 1), (7, 3), (64, 1), (1000, 7), (5, 9)])
def test_every_item_once_per_run(threads: int, items: int, chunk: int) -> None:
    assert engine.count_items(threads, items, chunk, 300) == [300] * items


def test_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(engine.EngineError, match="start at 1"):
        engine.count_items(2, 10, 0, 1)
