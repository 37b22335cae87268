"""A rig with a chaos engine, and what holds after every single test: each accepted request got
exactly one terminal event, no process is left, and no two engines ever lived together."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.chaos_folder import ChaosFolder
from bench.chaos.rig import Rig, running, unlimited_restarts
from tests.fakes.chaos_script import EpochScript

ENDS_WITHIN_S = 2.0  # the last processes, once the supervisor has ended

RigMaker = Callable[..., "contextlib.AbstractAsyncContextManager[Rig]"]


@pytest.fixture
def folder_of(tmp_path: Path) -> Iterator[Callable[..., ChaosFolder]]:
    made: list[ChaosFolder] = []

    def make(*epochs: EpochScript, name: str = "chaos") -> ChaosFolder:
        made.append(ChaosFolder(tmp_path / name, epochs or (EpochScript(),)))
        return made[-1]

    yield make
    left = [pid for folder in made for pid in folder.end_all(ENDS_WITHIN_S)]
    assert not left, f"processes {left} are left"
    assert not sum(folder.twins for folder in made), "two engines lived at once"


@pytest.fixture
def chaos(folder_of: Callable[..., ChaosFolder]) -> RigMaker:
    """`chaos(epoch, ...)` runs engines by these scripts; restarts come at once."""

    @contextlib.asynccontextmanager
    async def make(*epochs: EpochScript, **settings: Any) -> AsyncIterator[Rig]:
        with unlimited_restarts():
            async with running(folder_of(*epochs), **settings) as rig:
                yield rig
        for call in rig.calls:
            assert len(call.terminals) == 1, f"terminal events of one request: {call.terminals}"

    return make
