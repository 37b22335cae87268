"""An engine that speaks the real protocol, computes tokens that a test can foretell, and fails on
script: `chaos_script.py` says where and how, `chaos_faults.py` does it.

    chaos_engine.py SCRIPT.json [engine flags] --ipc COMMAND_FD,EVENT_FD[,BEACON_FD]

Threads as in the real one: the main thread computes and owns the sequences, the reader takes
commands, answers PING and ends the process at end-of-file, the writer alone writes to the event
pipe. Started engines are noted in SCRIPT.json.starts; one that finds another of its script alive
writes SCRIPT.json.twins, by a lock that the system gives back at death, however that comes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import resource
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import strata_protocol.messages as m
from strata_protocol.beacon_writer import BeaconWriter
from strata_protocol.codec import ToEngineMessage, ToSupervisorMessage
from strata_protocol.exit_codes import ExitCode
from strata_protocol.peer import EnginePeer

from tests.fakes.chaos_faults import KERNEL, carry_out
from tests.fakes.chaos_script import (
    EpochScript,
    Place,
    Stream,
    fingerprint,
    next_epoch,
    note_pid,
)

PAGE_TOKENS = 32
MOVE_S = 0.1
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Sequence:
    rid: int
    prompt_tokens: int
    prompt: list[int]
    generated: list[int]
    params: m.SamplingParams
    credit: int
    stream: Stream | None = None  # once the whole prompt is there
    print: str = ""  # fingerprint of the prompt
    rows_done: int = 0  # of prompt and generated ids, in prefill

    @property
    def rows(self) -> int:
        return self.prompt_tokens + len(self.generated)


@dataclass(slots=True)
class Work:
    """What one step computes."""

    prefills: list[Sequence] = field(default_factory=list)
    decodes: list[Sequence] = field(default_factory=list)
    prompt_rows: int = 0

    @property
    def sequences(self) -> list[Sequence]:
        return self.prefills + self.decodes


class ChaosEngine:
    """Implements `chaos_faults.Victim`."""

    def __init__(
        self, script: Path, epoch: EpochScript, command_fd: int, event_fd: int, beacon_fd: int
    ) -> None:
        self.script = script
        self.s = epoch
        self.command_fd, self.event_fd = command_fd, event_fd
        self.beacon = BeaconWriter(beacon_fd, build="chaos") if beacon_fd >= 0 else None
        self.is_io_frozen = False
        self.is_term_ignored = False
        self.extra_step_ms = 0.0
        self._peer = EnginePeer()
        self._peer_lock = threading.Lock()  # of the peer and the order of what is written
        self._inbox: queue.SimpleQueue[ToEngineMessage] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes | threading.Event] = queue.SimpleQueue()
        self._sequences: dict[int, Sequence] = {}  # written by the compute thread only
        self._passed: dict[int, int] = {}  # fault -> how often its place was passed
        self._step = 0
        self._batch = epoch.batch
        self._is_draining = False
        self._totals = [0, 0]  # prompt, output tokens

    # --- pipes

    def send(self, message: ToSupervisorMessage) -> None:
        with self._peer_lock:
            self._outbox.put(self._peer.send(message))

    def write(self, data: bytes) -> None:
        with self._peer_lock:
            self._outbox.put(data)

    def flush(self, within_s: float | None = None) -> bool:
        written = threading.Event()
        self._outbox.put(written)
        return written.wait(within_s)

    def mark(self, name: str) -> None:
        self.script.with_name(f"{self.script.name}.{name}").touch()

    def note_child(self, pid: int) -> None:
        note_pid(self.script, pid, start_time(pid))

    def _write_all(self) -> None:
        while True:
            item = self._outbox.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                while item:
                    item = item[os.write(self.event_fd, item) :]
            except OSError:
                os._exit(ExitCode.PARENT_DIED)

    def _read_all(self) -> None:
        while True:
            data = os.read(self.command_fd, 1 << 16)
            if self.is_io_frozen:
                threading.Event().wait()
            if not data:
                os._exit(ExitCode.PARENT_DIED)
            with self._peer_lock:
                messages = self._peer.feed(data)
            for message in messages:
                if isinstance(message, m.Ping):
                    busy = bool(self._sequences)
                    self.send(m.Pong(nonce=message.nonce, step=self._step, busy=busy))
                else:
                    self._inbox.put(message)

    # --- faults

    def at(self, place: Place, prints: frozenset[str] = frozenset()) -> None:
        """Everything the script wants here; `prints`: prompts that are part of it."""
        for index, fault in enumerate(self.s.faults):
            if fault.at != place or (fault.prompt and fault.prompt not in prints):
                continue
            passed = self._passed.get(index, 0)
            self._passed[index] = passed + 1
            if passed == fault.after:
                carry_out(fault, self)

    def _says(self, phase: str, mode: str = "") -> None:
        if self.beacon is not None:
            self.beacon.set(phase=phase, mode=mode)

    # --- boot

    def run(self) -> int:
        if not any(f.do == "no_parent_death" for f in self.s.faults):
            die_with_parent()
        for target in (self._read_all, self._write_all):
            threading.Thread(target=target, daemon=True).start()
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGUSR2, self._on_dump)
        self.at("launch")
        low, high = self.s.protocol
        self.send(
            m.Hello(
                proto_min=low, proto_max=high, build="chaos", backend="cpu",
                device="a scripted device", pid=os.getpid(),
            )
        )  # fmt: skip
        offer = self._inbox.get()
        assert isinstance(offer, m.Offer), offer
        self._says("handshake")
        self.at("handshake")
        caps = self._caps(offer)
        self.send(caps)
        chosen = self._inbox.get()
        assert isinstance(chosen, m.Plan), chosen
        self._load("map")
        self._load("pack")
        self._says("probe", "batch" if chosen.plan.batch > 1 else "prefill")
        self.at("probe")
        if chosen.plan.batch > 1:
            self.send(m.Probe(mode="batch", ok=True, ms=0.1))
        self._batch = chosen.plan.batch
        self._says("ready")
        pages = chosen.plan.kv_tokens // PAGE_TOKENS
        self.send(
            m.Ready(
                plan=chosen.plan, load_ms=2 * self.s.load_ms, warm_ms=0.1, kv_pages=pages,
                page_tokens=PAGE_TOKENS, serving=[m.ServingMode(features=self.s.features)],
            )
        )  # fmt: skip
        self.at("ready")
        return self._serve()

    def _load(self, phase: str) -> None:
        self._says(phase)
        for done in range(3):
            self.send(m.Progress(phase=phase, done=done, total=2))
            time.sleep(self.s.load_ms / 3000)
        self.at("map" if phase == "map" else "pack")

    def _caps(self, offer: m.Offer) -> m.Caps:
        """What was asked first, then one sequence at a time, which always runs."""
        asked = offer.want.batch
        out = "batch" in offer.quarantine
        best = 1 if out or self.s.missing else min(asked, self.s.batch)
        reasons: list[m.Reason] = []
        if best < asked:
            text = f"no kernel for {asked} sequences together, the most is {best}"
            if out:
                text = "the mode batch is in quarantine"
            code = "mode.quarantined" if out else "kernel.missing"
            reasons.append(m.Reason(code=code, text=self.s.missing or text))
        configurations = [
            m.Configuration(plan=self._plan(offer, count), missing=missing)
            for count, missing in ((asked, [0] if reasons else []), (best, []), (1, []))
        ]
        return m.Caps(
            host=m.HostFacts(os="test", cpu="a scripted processor", isa="portable", cores=1),
            model=m.ModelFacts(architecture="chaos", name="chaos", vocab=self.s.vocab[1]),
            configurations=configurations,
            reasons=reasons,
        )

    def _plan(self, offer: m.Offer, batch: int) -> m.ModePlan:
        return m.ModePlan(
            batch=batch,
            max_context=self.s.max_context,
            kv="f16",
            prefill=1 if "prefill" in offer.quarantine else self.s.prefill,
            activations="int8",
            threads=1,
            kv_tokens=batch * self.s.max_context,
        )

    def _on_term(self, _number: int, _frame: object) -> None:
        """Finishes what runs, refuses what comes, and ends with status 0, as the real one."""
        self._is_draining = True

    def _on_dump(self, number: int, _frame: object) -> None:
        """Shows where the compute thread stands."""
        if self.beacon is not None:
            self.beacon.crash(number, frames=[0x10, 0x20], kernel=KERNEL, slot="dump")

    # --- steps

    def _serve(self) -> int:
        while True:
            work = self._next_work()
            self._take_all(wait=not work.sequences)
            if self._is_draining and not self.is_term_ignored:
                self._says("drain")
                self.at("drain")
                if not self._sequences:
                    self.flush()
                    return ExitCode.OK
            if work.sequences:
                work = self._next_work()  # what was taken may have changed it
                if work.sequences:
                    self._do_step(work)

    def _take_all(self, *, wait: bool) -> None:
        with contextlib.suppress(queue.Empty):
            if wait:
                self._take(self._inbox.get(timeout=0.05))  # SIGTERM is looked at in between
            while True:
                self._take(self._inbox.get_nowait())

    def _take(self, message: ToEngineMessage) -> None:
        match message:
            case m.Submit() | m.Resume():
                self._open(message)
            case m.Prompt():
                if message.rid in self._sequences:
                    sequence = self._sequences[message.rid]
                    sequence.prompt += message.ids
                    self._begin(sequence)
            case m.Cancel():
                if message.rid in self._sequences:
                    self._done(self._sequences[message.rid], m.FinishReason.CANCELLED)
            case m.Credit():
                if message.rid in self._sequences:
                    sequence = self._sequences[message.rid]
                    sequence.credit = max(sequence.credit, message.upto)
            case m.Drain():
                self._is_draining = True
            case _:
                raise AssertionError(message)

    def _open(self, message: m.Submit | m.Resume) -> None:
        generated = list(message.generated) if isinstance(message, m.Resume) else []
        sequence = Sequence(
            message.rid, message.prompt_tokens, list(message.ids), generated, message.params,
            message.credit,
        )  # fmt: skip
        self._sequences[message.rid] = sequence
        lacking = [need for need in message.params.needs if need not in self.s.features]
        if self._is_draining:
            self._fail(sequence, m.ErrorKind.OVERLOADED, "engine_draining", "told to end")
        elif lacking:
            text = f"the request needs {lacking[0]}"
            self._fail(sequence, m.ErrorKind.UNSUPPORTED, "mode_unsupported", text)
        elif sequence.rows >= self.s.max_context:
            text = f"{sequence.rows} tokens do not fit into {self.s.max_context}"
            self._fail(sequence, m.ErrorKind.INVALID_REQUEST, "context_length_exceeded", text)
        else:
            self._begin(sequence)

    def _begin(self, sequence: Sequence) -> None:
        if len(sequence.prompt) < sequence.prompt_tokens:
            return
        sequence.print = fingerprint(sequence.prompt)
        sequence.stream = Stream(sequence.prompt, sequence.params, self.s.vocab)
        for token in sequence.generated:
            sequence.stream.take(token)
        self.at("submit", frozenset({sequence.print}))

    def _next_work(self) -> Work:
        work = Work()
        runnable = [
            s for s in self._sequences.values()
            if s.stream is not None and len(s.generated) < s.credit
        ]  # fmt: skip
        for sequence in runnable[: self._batch]:
            if sequence.rows_done >= sequence.rows:
                work.decodes.append(sequence)
            elif work.prompt_rows < self.s.prefill:
                work.prefills.append(sequence)
                work.prompt_rows += min(sequence.rows - sequence.rows_done, self.s.prefill)
        return work

    def _do_step(self, work: Work) -> None:
        self._step += 1
        begin = time.monotonic()
        phase: Place = "prefill" if work.prefills else "decode"
        if self.beacon is not None:
            self.beacon.set(
                phase=phase,
                step=self._step,
                rids=[s.rid for s in work.sequences],
                sequences=len(work.sequences),
                rows=len(work.decodes) + work.prompt_rows,
            )
            self.beacon.launch(KERNEL, layer=3)
        self.at(phase, frozenset(s.print for s in work.sequences))
        self._compute(self.s.step_ms + self.extra_step_ms)
        room = self.s.prefill
        ready = list(work.decodes)
        for sequence in work.prefills:
            rows = min(sequence.rows - sequence.rows_done, room)
            room -= rows
            sequence.rows_done += rows
            if sequence.rows_done == sequence.rows:
                ready.append(sequence)
        self._emit(ready)
        if self.beacon is not None:
            elapsed_ms = (time.monotonic() - begin) * 1000
            self.beacon.end_step(self._step, elapsed_ms, len(ready), len(work.sequences), phase)
            self.beacon.launch("")
            self.beacon.set(phase="ready", rids=[], sequences=0)

    def _compute(self, step_ms: float) -> None:
        """Takes its time; the beacon moves as often as the real one must."""
        end_s = time.monotonic() + step_ms / 1000
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(left_s, MOVE_S))
            if self.beacon is not None:
                self.beacon.move()

    def _emit(self, ready: list[Sequence]) -> None:
        items: list[m.TokensItem] = []
        ended: list[tuple[Sequence, m.FinishReason, int]] = []
        for s in ready:
            assert s.stream is not None
            token, place = s.stream.next(), len(s.generated)
            p = s.params
            if token in p.stop_ids and not p.ignore_eos and place >= p.min_tokens:
                ended.append((s, m.FinishReason.STOP, token))
                continue
            logprobs = []
            if p.logprobs >= 0:
                value = -(token % 16) / 16
                top = [m.TopLogprob(token, value)][: p.logprobs]
                logprobs = [m.TokenLogprob(value, top)]
            items.append(m.TokensItem(rid=s.rid, offset=place, ids=[token], logprobs=logprobs))
            s.stream.take(token)
            s.generated.append(token)
            s.rows_done += 1
            if len(s.generated) >= p.max_tokens or s.rows >= self.s.max_context:
                ended.append((s, m.FinishReason.LENGTH, -1))
        if items:
            self.send(m.Tokens(step=self._step, items=items))
        for sequence, reason, stop_id in ended:
            self._done(sequence, reason, stop_id)

    def _done(self, s: Sequence, reason: m.FinishReason, stop_id: int = -1) -> None:
        del self._sequences[s.rid]
        self._totals[0] += s.prompt_tokens
        self._totals[1] += len(s.generated)
        pages = sum(-(-other.rows // PAGE_TOKENS) for other in self._sequences.values())
        self.send(
            m.Stats(
                step=self._step, running=len(self._sequences), waiting=0, kv_pages_used=pages,
                kv_pages_cached=0, kv_pages_total=self._batch * self.s.max_context // PAGE_TOKENS,
                prompt_tokens=self._totals[0], cached_tokens=0, output_tokens=self._totals[1],
                step_ms=self.s.step_ms, rss_bytes=0,
            )
        )  # fmt: skip
        self.send(
            m.Done(
                rid=s.rid, reason=reason, prompt_tokens=s.prompt_tokens, cached_tokens=0,
                output_tokens=len(s.generated), stop_id=stop_id,
            )
        )  # fmt: skip

    def _fail(self, s: Sequence, kind: m.ErrorKind, code: str, text: str) -> None:
        del self._sequences[s.rid]
        self.send(
            m.Done(
                rid=s.rid, reason=m.FinishReason.ERROR, prompt_tokens=s.prompt_tokens,
                cached_tokens=0, output_tokens=0, error_kind=kind, code=code, text=text,
            )
        )  # fmt: skip


def die_with_parent() -> None:
    """The kernel ends this process together with its supervisor, also in the middle of a step."""
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux":
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if str(os.getppid()) != os.environ.get("STRATA_PPID", str(os.getppid())):
        os._exit(ExitCode.PARENT_DIED)


def start_time(pid: int) -> str:
    """As the system counts it; with the pid it names a process for good."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def is_only_one(script: Path) -> int:
    """Takes the lock that says that one engine of this script lives; returns its descriptor, to be
    kept. A second engine leaves its mark and goes on, so that the test sees what comes of it."""
    lock = os.open(script.with_name(script.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by a child
    except OSError:
        with script.with_name(script.name + ".twins").open("a") as file:
            file.write(f"{os.getpid()}\n")
    return lock


def main() -> int:
    script = Path(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    lock = is_only_one(script)
    epoch = next_epoch(script)
    with script.with_name(script.name + ".starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    note_pid(script, os.getpid(), start_time(os.getpid()))
    fds = [int(fd) for fd in sys.argv[sys.argv.index("--ipc") + 1].split(",")]
    status = ChaosEngine(script, epoch, *fds[:2], fds[2] if len(fds) > 2 else -1).run()
    os.close(lock)
    return status


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # daemon threads are in the middle of reads and writes
