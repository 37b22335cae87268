"""Waits until the memory of an engine that has ended is free again: its end is known before the
kernel has taken everything back, and the next engine plans with what is free."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import psutil
from strata_protocol.messages import MemoryPart

WAIT_MAX_S = 5.0
LOOK_S = 0.05
MAPPED = "weights.mapped"  # pages of the file: the kernel gives them back by itself


def bytes_needed(memory: Sequence[MemoryPart]) -> int:
    """What a plan needs to be free."""
    return sum(part.bytes for part in memory if part.name != MAPPED)


def bytes_available() -> int:
    """Memory that can be had without swapping."""
    return int(psutil.virtual_memory().available)


async def wait_for_memory(needed_bytes: int, available: Callable[[], int] = bytes_available) -> int:
    """Returns what is missing: 0 as soon as enough is free, else after WAIT_MAX_S."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + WAIT_MAX_S
    while (missing := needed_bytes - available()) > 0 and loop.time() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)  # nobody tells when memory is free
    return max(missing, 0)
