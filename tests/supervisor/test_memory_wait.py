"""Waiting for the memory of an engine that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from strata.engines import memory_wait
from strata.engines.memory_wait import bytes_needed, wait_for_memory
from strata_protocol.messages import MemoryPart


def coming_back(*values: int) -> Callable[[], int]:
    left = list(values)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


async def test_enough_is_no_wait_and_what_comes_back_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_wait, "LOOK_S", 0.0)
    assert await wait_for_memory(0) == 0
    assert await wait_for_memory(100, coming_back(100)) == 0
    async with asyncio.timeout(4):
        assert await wait_for_memory(100, coming_back(0, 50, 99, 120)) == 0


async def test_wait_is_bounded_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_wait, "WAIT_MAX_S", 0.02)
    monkeypatch.setattr(memory_wait, "LOOK_S", 0.001)
    assert await wait_for_memory(100, coming_back(40)) == 60


def test_pages_of_the_file_need_not_be_free() -> None:
    parts = [MemoryPart(name="weights.mapped", bytes=1000), MemoryPart(name="kv", bytes=7)]
    assert bytes_needed(parts) == 7
