"""The command `reload` inside the service: settings as they are now, what of them an engine can be
replaced for, and the answers while that happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import msgspec

from strata.config import Config
from strata.config_source import Settings, fields
from strata.control_protocol import Answer, ReloadCommand
from strata.engines.epoch import EngineSetup
from strata.engines.modes import MODE_KEYS, row_text, wanted_modes
from strata.engines.process import Launch
from strata.engines.reload import Reload, ReloadError
from strata.model_source import engine_arguments, find_engine, find_model, find_ple

TAKEN = frozenset(
    {*MODE_KEYS, "model", "ple", "engine", "isa", "backend", "without_kernel", "strict"}
)


def new_setup(old: EngineSetup, settings: Settings, command: ReloadCommand) -> EngineSetup:
    """What the new engine is started with. Raises the StrataErrors of a start with it."""
    config = settings.config
    if command.model:
        config = msgspec.structs.replace(config, model=command.model)
    if command.engine:
        config = msgspec.structs.replace(config, engine=command.engine)
    wanted = replace(
        old.wanted,
        model=str(find_model(config)),
        ple=str(find_ple(config) or ""),
        modes=wanted_modes(config),
        explicit=frozenset(k for k in MODE_KEYS if settings.is_set(k)),
        is_strict=config.strict,
        without_kernels=config.without_kernel,
    )
    return replace(old, launch=Launch(find_engine(config), engine_arguments(config)), wanted=wanted)


def not_taken(running: Config, now: Config) -> list[str]:
    """Settings that have changed and that only a restart of the service takes over."""
    return [
        key for key in fields() if key not in TAKEN and getattr(running, key) != getattr(now, key)
    ]


async def answers(
    reload: Callable[[Reload], Awaitable[str]],
    setup: EngineSetup,
    ignored: list[str],
    *,
    is_forced: bool,
) -> AsyncIterator[Answer]:
    """Progress, then the outcome. Whoever stops listening changes nothing about it."""
    said: asyncio.Queue[str] = asyncio.Queue()
    wanted = Reload(setup, said.put_nowait, is_forced)
    work = asyncio.ensure_future(reload(wanted))
    work.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, whoever asks
    yield Answer(text="the reload has begun")
    if ignored:
        keys = ", ".join(ignored)
        yield Answer(text=f"not taken over, which needs a restart of the service: {keys}")
    next_said = asyncio.ensure_future(said.get())
    try:
        while not work.done():
            await asyncio.wait({work, next_said}, return_when=asyncio.FIRST_COMPLETED)
            if next_said.done():
                yield Answer(text=next_said.result())
                next_said = asyncio.ensure_future(said.get())
    finally:
        next_said.cancel()
    try:
        text = await work
    except ReloadError as error:
        yield Answer(text=str(error), reasons=error.reasons, status=error.exit_code, is_final=True)
    else:
        reasons = [row_text(row) for row in wanted.lost]
        yield Answer(text=text, reasons=reasons, modes=list(wanted.lost), is_final=True)
