"""Waiting for what another process or thread does and nobody is told of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WITHIN_S = 60.0  # only a failing test waits so long; a busy machine may be slow
LOOK_S = 0.005  # between two looks: the one who is waited for needs the processor


async def until(condition: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Returns once `condition` holds. Raises TimeoutError after `within_s`."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
