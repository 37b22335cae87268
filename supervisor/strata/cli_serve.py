"""`serve`: joins engine, serving, HTTP and observation, and takes them down in reverse order.

HTTP answers from the first second, before the model's text part is read. SIGTERM or SIGINT drains;
a second one ends at once. Whatever ends this function ends the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from strata.config import Config, take_notify_environment
from strata.config_source import Settings, hidden, shown
from strata.control_protocol import Answer, Command, DrainCommand, ReloadCommand
from strata.control_server import close_control, serve_control
from strata.engines import stale, strays
from strata.engines.epoch import EngineSetup, Epoch
from strata.engines.exits import EngineExit
from strata.engines.handshake import Wanted
from strata.engines.model_files import bytes_of
from strata.engines.modes import MODE_KEYS, row_text, sentences, wanted_modes
from strata.engines.owner import EngineOwner
from strata.engines.owner_view import EngineState
from strata.engines.process import Launch
from strata.errors import HeldError, StrataError
from strata.listener import LISTEN_BACKLOG, listen, raise_descriptor_limit
from strata.memory_return import settle
from strata.model_source import engine_arguments, find_engine, find_model, find_ple, model_name
from strata.observe import log as service_log
from strata.observe.bundle_writer import BundleWriter
from strata.observe.decision_file import DecisionFile
from strata.observe.metrics import Metrics
from strata.observe.output import Output
from strata.observe.status_socket import StateWriter, StatusServer
from strata.observe.status_source import ServiceFacts, StatusSource, version
from strata.observe.terminal import Terminal
from strata.reload_command import answers as reload_answers
from strata.reload_command import new_setup, not_taken
from strata.service_notify import ServiceNotifier
from strata.serving.service import EngineService

if TYPE_CHECKING:
    from aiohttp import web

# How long a thread that computes in Python (a template, an import) keeps the event loop waiting,
# each time that it wants to go on; the interpreter's own 5 ms make 10 for reading and answering.
SWITCH_S = 0.001

log = logging.getLogger("strata.service")


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is settled before the event loop starts."""

    config: Config
    explicit: frozenset[str]
    model: Path
    ple: Path | None
    name: str
    engine: Path
    run_dir: Path
    listener: socket.socket

    @property
    def url(self) -> str:
        host, port = self.listener.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class AppBuilder(Protocol):
    """Makes the whole HTTP application, which needs the text part of the model."""

    async def __call__(
        self, service: EngineService, config: Config, name: str, model: Path,
        routes: Sequence[web.RouteDef],
    ) -> web.Application: ...  # fmt: skip


def serve(settings: Settings, build_http: AppBuilder, reread: Callable[[], Settings]) -> int:
    """Runs the service; `reread` reads the settings again, for a reload. Returns the exit status.
    Raises StrataError for what stops its start."""
    raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_S)
    config = settings.config
    model, ple, engine = find_model(config), find_ple(config), find_engine(config)
    run_dir = Path(config.run_dir).expanduser().absolute()
    lock = stale.RunDirLock(run_dir)
    try:
        listener = listen(config)
        ended = stale.end_stale_engine(run_dir)
        strays.adopt_orphans()
        left = strays.end_strays(run_dir)
        explicit = frozenset(k for k in MODE_KEYS if settings.is_set(k))
        name = model_name(config, model)
        inputs = Inputs(config, explicit, model, ple, name, engine, run_dir, listener)
        output = Output()
        terminal = Terminal(output, with_progress=config.log_format == "text")
        handler = service_log.set_up(
            config.log_level, config.log_format, output, terminal.write_log_line
        )
        try:
            if ended is not None:
                log.warning("ended the engine %d that an earlier run left behind", ended.pid)
            if left:
                log.warning("ended what an earlier run's engine left behind: %s", left)
            asyncio.run(_Service(inputs, terminal, build_http, reread).run())
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            terminal.close()
            service_log.tear_down(handler)
            output.close()
            listener.close()
    finally:
        lock.close()
    return 0


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that ended the service: ours where there is one, else the first."""
    ours, _ = group.split(StrataError)
    chosen: BaseException = ours if ours is not None else group
    while isinstance(chosen, BaseExceptionGroup):
        chosen = chosen.exceptions[0]
    return chosen


def _import_http() -> Callable[..., Awaitable[None]]:
    """In a thread: see `cli_http`."""
    from strata.cli_http import serve_http  # noqa: PLC0415

    return serve_http


class _Service:
    """One run of the service. Implements `OwnerObserver`."""

    def __init__(
        self,
        inputs: Inputs,
        terminal: Terminal,
        build_http: AppBuilder,
        reread: Callable[[], Settings],
    ) -> None:
        self._inputs = inputs
        self._reread = reread
        self._terminal = terminal
        self._build_http = build_http
        self._started_s = time.monotonic()
        self._was_shown_ready = False
        self._shown_modes: object = None
        self._announced: Epoch | None = None
        self._is_refused = False
        self._signals = 0
        self._told_to_end = asyncio.Event()
        self._second_signal = asyncio.Event()
        self._has_text = False
        config = inputs.config
        self._metrics = Metrics()
        self._service = EngineService(config, self._metrics)
        wanted = Wanted(
            run_id=secrets.token_hex(8),
            model=str(inputs.model),
            ple=str(inputs.ple or ""),
            modes=wanted_modes(config),
            explicit=inputs.explicit,
            is_strict=config.strict,
            without_kernels=config.without_kernel,
        )
        launch = Launch(inputs.engine, engine_arguments(config))
        self._setup = setup = EngineSetup(
            launch, wanted, inputs.run_dir, quarantine_trial_s=config.quarantine_trial_s
        )
        self._bundles = BundleWriter(
            inputs.run_dir,
            self._service.request_facts,
            config=shown(config),
            secrets=hidden(config),
            version=version(),
        )
        self._owner = EngineOwner(setup, self._service, self, reporter=self._bundles)
        self._service.judge = self._owner.judge
        facts = ServiceFacts(
            model_name=inputs.name,
            model_path=str(inputs.model),
            file_bytes=bytes_of(wanted.files),
            url=inputs.url,
            run_dir=str(inputs.run_dir),
            started_s=self._started_s,
            version=version(),
        )
        self._status = StatusSource(facts, self._owner, self._service, self._metrics)
        self._bundles.status = self._status
        self._status.text_problem = "the tokeniser is loading"
        self._state = StateWriter(inputs.run_dir, self._status)
        self._notifier = ServiceNotifier(take_notify_environment(), self._status)
        self._quarantined = 0  # requests that were refused for good when it was looked at last
        self._shapes_apart: dict[str, bool] = {}  # and whether refused, when it was looked at last

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        log.info(
            "strata %s: model %s, run directory %s, %s",
            version(),
            self._inputs.model,
            self._inputs.run_dir,
            self._inputs.url,
        )
        async with contextlib.AsyncExitStack() as stack:
            server = StatusServer(self._inputs.run_dir, self._status)
            stack.callback(server.close)
            decisions = DecisionFile(self._inputs.run_dir, self._owner.view.decisions)
            self._state = StateWriter(self._inputs.run_dir, self._status, server.note, decisions)
            control = await serve_control(self._inputs.run_dir, self._command)
            stack.push_async_callback(close_control, control, self._inputs.run_dir)
            stack.callback(self._notifier.close)
            self._decide("service.started", f"Supervisor {version()}, pid {os.getpid()}, starts.")
            try:
                async with asyncio.TaskGroup() as tasks:
                    background = [
                        tasks.create_task(self._service.run(), name="deadlines"),
                        tasks.create_task(self._state.run(), name="state file"),
                        tasks.create_task(self._notifier.run(), name="service manager"),
                    ]
                    owner = tasks.create_task(self._owner.run(), name="engine owner")
                    http = tasks.create_task(self._serve_http(), name="http")
                    await self._told_to_end.wait()
                    if self._is_held():
                        self._service.end_all()
                        raise HeldError(sentences(self._owner.view.reasons))
                    await self._drain()
                    # Before HTTP ends, which may take a while: no engine may start any more.
                    self._owner.stop()
                    http.cancel()
                    await asyncio.wait([http])
                    await owner
                    for task in background:
                        task.cancel()
            finally:
                await asyncio.to_thread(self._bundles.close)
                await self._state.write()
        log.info("ended")

    # --- OwnerObserver

    def on_changed(self) -> None:
        self._state.on_changed()
        self._notifier.on_changed()
        view = self._owner.view
        self._note_quarantined()
        if self._is_held():
            self._told_to_end.set()
        # Before the text part is read it may turn out that the file can never be served.
        is_refused = view.state is EngineState.REFUSED and self._has_text
        was_refused, self._is_refused = self._is_refused, is_refused
        if self._is_refused and not was_refused:
            log.warning(
                "the service stays up, answers 503 and tries again when %s or the engine changes;"
                " Ctrl-C ends it",
                self._inputs.model,
            )
        epoch = view.epoch
        if epoch is None:
            return
        progress = epoch.handshake.progress
        if view.state is EngineState.LOADING and progress is not None:
            self._terminal.show_progress(
                progress.phase, progress.done, progress.total, progress.unit
            )
        if view.state is EngineState.READY:
            self._show_ready()

    def on_started(self, epoch: int) -> None:
        self._metrics.on_started()

    def on_exited(self, exited: EngineExit) -> None:
        self._metrics.on_exited(exited)

    # --- commands

    async def _command(self, command: Command) -> AsyncIterator[Answer]:
        """What the control socket is told, and its answers."""
        match command:
            case DrainCommand():
                load, drain_s = self._service.load(), self._inputs.config.drain_s
                log.info("told to drain")
                self._told_to_end.set()
                text = f"{load.running} running and {load.waiting} waiting requests finish"
                yield Answer(
                    text=f"the service drains: {text}, within {drain_s:g} s", is_final=True
                )

            case ReloadCommand():
                settings = await asyncio.to_thread(self._reread)
                setup = await asyncio.to_thread(new_setup, self._setup, settings, command)
                ignored = not_taken(self._inputs.config, settings.config)
                log.info("told to reload")
                async for answer in reload_answers(
                    self._owner.reload, setup, ignored, is_forced=command.force
                ):
                    yield answer

    # --- inside

    def _is_held(self) -> bool:
        """Whether the engine is held and that is to end the service."""
        return self._inputs.config.exit_on_hold and self._owner.view.state is EngineState.HOLD

    def _decide(self, code: str, sentence: str) -> None:
        self._owner.view.decisions.add(code, sentence)
        self._state.on_changed()

    def _note_quarantined(self) -> None:
        before, self._quarantined = self._quarantined, self._service.load().quarantined
        if self._quarantined > before:
            text = "A request that ended engines, the last one alone, is refused from now on."
            self._decide("poison.refused", text)
        apart = {a.text: a.is_refused for a in self._service.load().shapes_apart}
        for shape, is_refused in apart.items():
            if self._shapes_apart.get(shape) != is_refused:
                code, what = "poison.shape_apart", "run alone at first"
                if is_refused:
                    code, what = "poison.shape_refused", "are refused"
                text = f"Several requests of one kind ended engines: {shape} {what} for an hour."
                self._decide(code, text)
        for shape in self._shapes_apart.keys() - apart.keys():
            self._decide(
                "poison.shape_free", f"Requests of one kind run with others again: {shape}."
            )
        self._shapes_apart = apart

    def _show_ready(self) -> None:
        """Modes when they are new, and the ready line once engine and text are both there."""
        epoch = self._owner.view.epoch
        if epoch is None or epoch.handshake.ready is None or not self._has_text:
            return
        rows = self._status.mode_rows()
        # Free memory differs at every start; that alone is no news.
        news = [row for row in rows if row.name != "device_memory" or row.is_set]
        if news != self._shown_modes:
            self._shown_modes = news
            for row in rows:
                if not row.is_as_asked:
                    log.log(logging.WARNING if row.is_set else logging.INFO, "%s", row_text(row))
            self._terminal.show_modes(rows, epoch.handshake.ready.memory)
        if not self._was_shown_ready:
            self._was_shown_ready = True
            seconds = time.monotonic() - self._started_s
            self._terminal.show_ready(self._inputs.url, self._inputs.name, seconds)
        elif self._announced is not epoch:
            log.warning("the engine is ready again, epoch %d", epoch.number)
        self._announced = epoch

    async def _serve_http(self) -> None:
        """HTTP until cancelled: first health and status only, then the whole application."""
        inputs, config = self._inputs, self._inputs.config
        serve_http = await asyncio.to_thread(_import_http)

        async def build(routes: Sequence[web.RouteDef]) -> web.Application:
            return await self._build_http(self._service, config, inputs.name, inputs.model, routes)

        await serve_http(
            inputs.listener,
            self._status,
            self._metrics.render,
            build,
            backlog=LISTEN_BACKLOG,
            api_keys=config.api_keys,
            on_whole=self._on_whole,
            on_stuck=self._service.end_all,
        )

    def _on_whole(self) -> None:
        """The whole application answers."""
        settle()
        self._status.text_problem = ""
        self._has_text = True
        self.on_changed()

    async def _drain(self) -> None:
        """Lets running requests finish, for `drain_s` or until a second signal."""
        config = self._inputs.config
        self._status.is_draining = True
        load = self._service.load()
        text = f"{load.running} running and {load.waiting} waiting requests finish"
        self._decide("service.draining", f"The service was told to end: {text}.")
        self._notifier.on_stopping()
        log.info(
            "draining: %d running, %d waiting, up to %g s; a second signal ends at once",
            load.running,
            load.waiting,
            config.drain_s,
        )
        async with asyncio.TaskGroup() as tasks:
            drained = tasks.create_task(self._service.drain(config.drain_s), name="drain")
            hurried = tasks.create_task(self._second_signal.wait(), name="second signal")
            await asyncio.wait({drained, hurried}, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            if not drained.done():
                drained.cancel()
                self._service.end_all()

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        log.info("received %s", number.name)
        self._told_to_end.set()
        if self._signals > 1:
            self._second_signal.set()
