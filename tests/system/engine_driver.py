"""Drives a real engine process over its pipes, as the supervisor does, but blocking and visible:
each test says what it sends and what must come back. Every wait has a time limit.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec
from strata_protocol import messages as m
from strata_protocol.codec import ToEngineMessage, ToSupervisorMessage
from strata_protocol.peer import SupervisorPeer

LIMIT_S = 60.0
M = TypeVar("M", bound=msgspec.Struct)


@dataclass
class Output:
    """What has come for one request."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[m.TokenLogprob] = field(default_factory=list)
    prompt_logprobs: dict[int, m.TokenLogprob] = field(default_factory=dict)
    done: m.Done | None = None


class Engine:
    """One engine process. Use as a context manager; it is killed at the end if still there."""

    def __init__(
        self,
        program: Path,
        *flags: str,
        parent: int | None = None,
        first: bytes = b"",
        before_exec: Callable[[], None] | None = None,
        beacon_fd: int | None = None,
        fault: str = "",
    ) -> None:
        """`before_exec` runs in the child before it becomes the engine (limits, say)."""
        self.peer = SupervisorPeer()
        self.unread: list[ToSupervisorMessage] = []
        self.outputs: dict[int, Output] = defaultdict(Output)
        self.stats: list[m.Stats] = []
        self.pongs: list[m.Pong] = []
        self.dying: m.Dying | None = None
        command_read, self.command_fd = os.pipe()
        self.event_fd, event_write = os.pipe()
        if first:
            os.write(self.command_fd, first)
        inherited = [command_read, event_write] + ([] if beacon_fd is None else [beacon_fd])
        self.process = subprocess.Popen(
            [program, "--ipc", ",".join(map(str, inherited)), *flags],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=before_exec,  # noqa: PLW1509 - the tests have one thread
            env=os.environ | {"STRATA_PPID": str(parent or os.getpid()), "STRATA_FAULT": fault},
        )
        os.close(command_read)
        os.close(event_write)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close_commands()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=LIMIT_S)
        os.close(self.event_fd)

    def close_commands(self) -> None:
        if self.command_fd >= 0:
            os.close(self.command_fd)
            self.command_fd = -1

    # --- bytes

    def send(self, *messages: ToEngineMessage) -> None:
        self.send_bytes(b"".join(self.peer.send(message) for message in messages))

    def send_bytes(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.command_fd, data) :]

    def read(self) -> bool:
        """Waits for bytes and takes in what they complete; False at the end of the pipe."""
        ready, _, _ = select.select([self.event_fd], [], [], LIMIT_S)
        assert ready, "the engine says nothing"
        data = os.read(self.event_fd, 1 << 16)
        self.unread += self.peer.feed(data)
        return bool(data)

    def expect(self, kind: type[M]) -> M:
        """The next message, which must be of `kind` (in the handshake)."""
        while not self.unread:
            assert self.read(), f"the engine is gone before {kind.__name__}; {self.errors()}"
        message = self.unread.pop(0)
        assert isinstance(message, kind), message
        return message

    def errors(self) -> str:
        self.process.wait(LIMIT_S)
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def exit_code(self) -> int:
        """Reads the event pipe to its end and waits for the process."""
        while self.read():
            pass
        self.take()
        return self.process.wait(LIMIT_S)

    # --- handshake

    def offer(self, model: Path | str, without: Iterable[str] = (), **want: object) -> m.Offer:
        wanted = msgspec.convert({"threads": 1} | want, m.WantedModes)
        return m.Offer(
            proto=1,
            run_id="test",
            epoch=1,
            model=str(model),
            want=wanted,
            without_kernels=list(without),
        )

    def boot(
        self,
        model: Path | str,
        without: Iterable[str] = (),
        chosen: dict[str, object] | None = None,
        **want: object,
    ) -> m.Ready:
        """The whole handshake with the first configuration of CAPS that can run, but for the
        values of `chosen`."""
        self.expect(m.Hello)
        self.send(self.offer(model, without, **want))
        caps = self.expect(m.Caps)
        plan = first_ready(caps).plan
        self.send(m.Plan(plan=msgspec.structs.replace(plan, **(chosen or {}))))
        self.caps = caps
        self.progress: list[m.Progress] = []
        self.probes: list[m.Probe] = []
        while True:
            match self.expect(msgspec.Struct):
                case m.Progress() as progress:
                    self.progress.append(progress)
                case m.Probe() as probe:
                    self.probes.append(probe)
                case m.Ready() as ready:
                    self.ready = ready
                    return ready
                case other:
                    raise AssertionError(other)

    # --- serving

    def take(self) -> None:
        """Files what has come; checks offsets and that nothing follows a DONE."""
        for message in self.unread:
            match message:
                case m.Tokens(items=items):
                    for item in items:
                        output = self.outputs[item.rid]
                        assert output.done is None
                        assert item.offset == len(output.ids)
                        output.ids += item.ids
                        output.logprobs += item.logprobs
                case m.PromptLogprobs(rid=rid, offset=offset, logprobs=logprobs):
                    for i, logprob in enumerate(logprobs):
                        self.outputs[rid].prompt_logprobs[offset + i] = logprob
                case m.Done(rid=rid):
                    assert self.outputs[rid].done is None
                    self.outputs[rid].done = message
                case m.Stats():
                    self.stats.append(message)
                case m.Pong():
                    self.pongs.append(message)
                case m.Dying():
                    self.dying = message
                case _:
                    raise AssertionError(message)
        self.unread = []

    def run_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        self.take()
        while not condition():
            assert time.monotonic() < deadline, "the condition does not come true"
            assert self.read(), f"the engine is gone; {self.errors()}"
            self.take()

    def finish(self, *rids: int) -> list[Output]:
        """Runs until each of the requests is done."""
        self.run_until(lambda: all(self.outputs[rid].done for rid in rids))
        return [self.outputs[rid] for rid in rids]

    def done(self, rid: int) -> m.Done:
        self.finish(rid)
        done = self.outputs[rid].done
        assert done is not None
        return done


def first_ready(caps: m.Caps) -> m.Configuration:
    """The configuration that can run and is nearest to what was asked."""
    return next(found for found in caps.configurations if not found.missing)


def submit(rid: int, ids: list[int], *, credit: int = 0xFFFF_FFFF, **params: object) -> m.Submit:
    sampling = msgspec.convert({"temperature": 0.0} | params, m.SamplingParams)
    return m.Submit(rid=rid, prompt_tokens=len(ids), ids=ids, params=sampling, credit=credit)
