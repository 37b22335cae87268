"""A scripted engine that speaks the real protocol: the same descriptors, frames and exit codes as
the real one, and on demand every misbehaviour a test needs.

    fake_engine.py SCRIPT.json [engine flags] --ipc COMMAND_FD,EVENT_FD[,BEACON_FD]

SCRIPT.json holds a list of behaviours, one per start (the last one repeats); starts are counted in
SCRIPT.json.starts, and each one's quarantine list is a line of SCRIPT.json.offers. A behaviour's
keys are the fields of `Behaviour`. What it can run is a world of rules: it reports the
configurations near what was asked, as the real one does. Output token i of a request is
prompt[i % len(prompt)], so tests know what to expect.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import strata_protocol.messages as m
from strata_protocol.beacon_writer import BeaconWriter
from strata_protocol.codec import ToEngineMessage, ToSupervisorMessage
from strata_protocol.exit_codes import ExitCode
from strata_protocol.features import FIELDS
from strata_protocol.peer import EnginePeer


@dataclass
class Behaviour:
    # launch, hello, offer, plan, progress, probe:MODE, ready, submit, tokens, shared (a step of
    # several sequences), draft (one with drafts), long (one with more prompt rows than one)
    die_at: str = ""
    die_after: int = 0  # with die_at or stuck_at = tokens: after so many steps
    last: str = ""  # its last line of output before it dies
    gather: int = 0  # computes nothing before so many requests have come
    poison: int = -1  # dies in any step of a request whose prompt has this token
    exit: int | None = None  # how it dies: exit status, or
    signal: int = signal.SIGKILL  # this signal
    kernel: str = "matmul_fake"  # that the beacon names when it dies
    assert_text: str = ""  # that the beacon holds then
    handler: str = "own"  # own, external, none: the crash record that a fatal signal leaves
    probes: list[str] = field(default_factory=lambda: ["batch"])  # modes proven before READY
    ignore_quarantine: bool = False
    build: str = "fake"
    stop_at: str = ""  # any point: stops itself as SIGSTOP does
    spec: int = 0  # drafts per sequence and step of the model file's own layers; 0: it has none
    silent_at: str = ""  # hello, caps, progress, probe:MODE, run: says nothing more from then on
    garbage_at: str = ""  # hello, run: bytes that are no frame
    stuck_at: str = ""  # submit, tokens: computes no further, but answers PING
    wakes_on_dump: bool = False  # with stuck_at: goes on when SIGUSR2 comes
    close_at: str = ""  # run: closes the event pipe and stays
    refuse: list[dict[str, str]] = field(default_factory=list)
    features: list[str] = field(default_factory=lambda: [f.value for f in FIELDS])
    draft_features: list[str] | None = None  # of sequences with drafts; None: the same
    lacks: list[str] = field(default_factory=list)  # stated, but a request that needs it is refused
    # {"axis": "batch", "above": 4 | "value": "f16", "code": ..., "text": ...}: missing there;
    # with "limits": true (numbers only) no more than "above" is given, and the rest is a shortfall.
    rules: list[dict[str, object]] = field(default_factory=list)
    runs: dict[str, object] = field(default_factory=dict)  # READY's differences from PLAN
    unproven: dict[str, list[dict[str, str]]] = field(default_factory=dict)  # probes that fail
    notes: list[dict[str, str]] = field(default_factory=list)  # of CAPS
    kv_types: list[str] = field(default_factory=list)  # of CAPS
    bad_reason: bool = False  # CAPS refers to a reason that is not there
    model_context: int = 256  # the context length the model was made for
    device: str = "fake device"
    batch: int = 4
    max_context: int = 256
    tokens_max: int = 1 << 30  # a request gets so many tokens and then nothing until cancelled
    prefill_steps: int = 0  # steps before a request's first token; -1: never
    ignore_credit: bool = False
    gap: bool = False  # the second token of a request gets a wrong offset
    repeat: bool = False  # each step repeats the whole output so far
    error: str = ""  # requests end with this error kind
    ignore_cancel: bool = False
    ignore_term: bool = False
    ignore_drain: bool = False
    stderr_bytes: int = 0
    progress_steps: int = 3


@dataclass
class Sequence:
    rid: int
    prompt_tokens: int
    ids: list[int]
    params: m.SamplingParams
    credit: int
    produced: int = 0
    steps: int = 0

    def token(self, index: int) -> int:
        return self.ids[index % len(self.ids)]


@dataclass(frozen=True)
class Rule:
    """What the scripted engine lacks."""

    axis: str
    code: str
    text: str
    above: int | None = None
    value: object = None
    limits: bool = False

    def hits(self, plan: m.ModePlan) -> bool:
        has: object = getattr(plan, self.axis)
        if self.above is None:
            return has == self.value
        return isinstance(has, int) and has > self.above


def differences(plan: m.ModePlan, asked: m.ModePlan) -> int:
    """On how many axes a plan is not what was asked."""
    return sum(getattr(plan, f) != getattr(asked, f) for f in plan.__struct_fields__)


class FakeEngine:
    def __init__(
        self, behaviour: Behaviour, offers: Path, command_fd: int, event_fd: int, beacon_fd: int
    ) -> None:
        self.b = behaviour
        self.offers = offers
        self.beacon = BeaconWriter(beacon_fd) if beacon_fd >= 0 else None
        self.batch, self.spec = behaviour.batch, behaviour.spec
        self.command_fd, self.event_fd = command_fd, event_fd
        self.peer = EnginePeer()
        self.inbox: deque[ToEngineMessage] = deque()
        self.sequences: dict[int, Sequence] = {}
        self.step = self.gathered = 0
        self.prompt_total = self.output_total = 0
        self.serving: list[m.ServingMode] = []  # of the plan that runs
        self.is_draining = False
        self.is_awake = False

    # --- pipes

    def send(self, message: ToSupervisorMessage) -> None:
        self.write(self.peer.send(message))

    def write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self.event_fd, data) :]

    def receive(self, *, block: bool) -> bool:
        """Takes what came; False when nothing did and `block` is off."""
        if not block and not select.select([self.command_fd], [], [], 0)[0]:
            return False
        data = os.read(self.command_fd, 1 << 16)
        if not data:
            os._exit(ExitCode.PARENT_DIED)
        self.inbox.extend(self.peer.feed(data))
        return True

    def expect(self) -> ToEngineMessage:
        while not self.inbox:
            self.receive(block=True)
        return self.inbox.popleft()

    # --- misbehaviour

    def at(self, point: str) -> None:
        """Everything the script wants at one point of the engine's life."""
        if self.b.garbage_at == point:
            self.write(b"this is no frame, it is a stray print\n" * 4)
        if self.b.close_at == point:
            os.close(self.event_fd)
        if point in (self.b.silent_at, self.b.close_at):
            while True:
                if not os.read(self.command_fd, 1 << 16):
                    os._exit(ExitCode.PARENT_DIED)
        if self.b.stop_at == point:
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.b.stuck_at == point:
            self.answer_pings()
        if self.b.die_at == point:
            self.die()

    def answer_pings(self) -> None:
        """What the reader thread does while the compute thread hangs in a step."""
        while not self.is_awake:
            message = self.expect()
            if isinstance(message, m.Ping):
                self.send(m.Pong(nonce=message.nonce, step=self.step, busy=True))
        self.b.stuck_at = ""

    def says(self, **facts: Any) -> None:
        """What the beacon shows from now on."""
        if self.beacon is not None:
            self.beacon.set(**facts)

    def die(self) -> NoReturn:
        if self.b.last:
            print(self.b.last, flush=True)
        if self.beacon is not None:
            self.beacon.launch(self.b.kernel, layer=3)
            if self.b.assert_text:
                self.says(assert_text=self.b.assert_text)
            if self.b.exit is not None:
                self.says(exit_status=self.b.exit)
            elif self.b.handler != "none":
                self.beacon.crash(
                    self.b.signal,
                    frames=[0x10, 0x20],
                    kernel=self.b.kernel,
                    is_external=self.b.handler == "external",
                    sender_pid=4711 if self.b.handler == "external" else 0,
                )
        if self.b.exit is None:
            os.kill(os.getpid(), self.b.signal)
        os._exit(self.b.exit if self.b.exit is not None else 1)

    # --- life

    def run(self) -> int:
        self.at("launch")
        signal.signal(signal.SIGUSR2, self.on_dump)
        if self.b.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            signal.signal(signal.SIGTERM, self.on_term)
        if self.b.stderr_bytes:
            line = b"noise " * 10 + b"\n"
            for _ in range(self.b.stderr_bytes // len(line)):
                os.write(2, line)
        print("fake engine: a line of log", flush=True)
        self.at("hello")
        self.send(
            m.Hello(
                proto_min=1,
                proto_max=1,
                build=self.b.build,
                backend="cpu",
                device=self.b.device,
                pid=os.getpid(),
            )
        )
        offer = self.expect()
        assert isinstance(offer, m.Offer)
        with self.offers.open("a") as file:
            file.write(json.dumps(offer.quarantine) + "\n")
        out = set() if self.b.ignore_quarantine else set(offer.quarantine)
        self.at("offer")
        self.at("caps")
        if self.b.refuse:
            reasons = [m.Reason(**r) for r in self.b.refuse]
            self.send(m.Refuse(reasons=reasons, exit_code=ExitCode.CONFIG_REFUSED))
            return ExitCode.CONFIG_REFUSED
        self.send(self.caps(offer))
        wanted = self.expect()
        assert isinstance(wanted, m.Plan)
        self.batch, self.spec = wanted.plan.batch, wanted.plan.spec
        self.at("plan")
        for i in range(self.b.progress_steps):
            self.send(m.Progress(phase="map", done=i + 1, total=self.b.progress_steps))
            self.at("progress")
        for mode in self.b.probes:
            if mode not in out:
                self.says(phase="probe", mode=mode, sequences=2 if mode == "batch" else 1, rows=1)
                self.at("probe:" + mode)
                why = [m.Reason(**r) for r in self.b.unproven.get(mode, [])]
                self.send(m.Probe(mode=mode, ok=not why, ms=1.0, reasons=why))
        self.says(phase="ready", mode="")
        self.at("ready")
        plan = msgspec.structs.replace(wanted.plan, **self.b.runs)
        self.serving = self.serving_modes(plan)
        ready = m.Ready(
            plan=plan,
            load_ms=5.0,
            warm_ms=1.0,
            kv_pages=wanted.plan.kv_tokens // 32,
            page_tokens=32,
            memory=[m.MemoryPart(name="kv", bytes=4096)],
            serving=self.serving,
        )
        self.send(ready)
        self.at("run")
        return self.serve()

    def on_dump(self, number: int, _frame: object) -> None:
        self.is_awake = self.b.wakes_on_dump
        if self.beacon is not None:
            if self.is_awake:
                self.beacon.move()
            self.beacon.crash(number, frames=[0x30], kernel=self.b.kernel, slot="dump")

    def on_term(self, _number: int, _frame: object) -> None:
        """Finishes what runs and ends with status 0, as the real one does."""
        self.is_draining = True
        if not self.sequences:
            os._exit(ExitCode.OK)

    def caps(self, offer: m.Offer) -> m.Caps:
        rules = [Rule(**r) for r in self.b.rules]  # type: ignore[arg-type]
        rules += [
            Rule("batch", above=self.b.batch, code="fake.batch", limits=True,
                 text=f"the script takes {self.b.batch} sequences"),
            Rule("max_context", above=self.b.max_context, code="model.context", limits=True,
                 text=f"the model was made for {self.b.max_context} tokens"),
        ]  # fmt: skip
        reasons = [m.Reason(code=rule.code, text=rule.text) for rule in rules]
        asked = self.as_asked(offer.want)
        plans = sorted(self.plans(asked), key=lambda plan: differences(plan, asked))
        configurations = [self.configuration(plan, rules) for plan in plans]
        return m.Caps(
            host=m.HostFacts(os="test", cpu="fake processor", isa="portable", cores=1),
            model=m.ModelFacts(
                architecture="fake",
                name="fake-model",
                vocab=1000,
                context=self.b.model_context,
            ),
            configurations=configurations,
            reasons=[] if self.b.bad_reason else reasons,
            notes=[m.Reason(**note) for note in self.b.notes],
            kv_types=self.b.kv_types,
            device=m.DeviceFacts(
                name=self.b.device, backend="cpu", memory_total_bytes=2 << 30,
                memory_available_bytes=1 << 30,
            ),
        )  # fmt: skip

    def as_asked(self, want: m.WantedModes) -> m.ModePlan:
        drafts = 0 if want.mtp == "off" else want.spec or self.b.spec
        return m.ModePlan(
            batch=want.batch,
            max_context=want.max_context or self.b.max_context,
            kv="f16" if want.kv == "auto" else want.kv,
            prefill=want.prefill,
            activations="int8" if want.activations == "auto" else want.activations,
            threads=1,
            kv_tokens=want.kv_tokens,
            prefix_cache=want.prefix_cache,
            mtp="off" if not drafts else "model" if want.mtp == "auto" else want.mtp,
            spec=drafts,
            spec_min_p=want.spec_min_p,
            batch_mtp=bool(drafts) and want.batch_mtp != "off",
            mmap=want.mmap,
            mlock=want.mlock,
        )

    @staticmethod
    def plans(asked: m.ModePlan) -> list[m.ModePlan]:
        """All near what was asked: halved batches, one-row prefill, plain types, fewer drafts."""
        replace = msgspec.structs.replace
        found = [asked]
        if asked.batch_mtp:
            found += [replace(p, batch_mtp=False) for p in found]
        if asked.spec:
            found += [replace(asked, spec=0, mtp="off", batch_mtp=False)]
        batches = [b for b in (asked.batch >> i for i in range(1, 10)) if b]
        found += [replace(p, batch=b) for p in found for b in batches]
        found += [replace(p, prefill=1) for p in found if p.prefill > 1]
        found += [replace(p, kv="f32") for p in found if p.kv != "f32"]
        found += [replace(p, activations="f32") for p in found if p.activations != "f32"]
        return found

    @staticmethod
    def configuration(plan: m.ModePlan, rules: list[Rule]) -> m.Configuration:
        missing, shortfalls = [], []
        for index, rule in enumerate(rules):
            if not rule.hits(plan):
                continue
            if rule.limits:
                plan = msgspec.structs.replace(plan, **{rule.axis: rule.above})
                shortfalls.append(m.Shortfall(axis=rule.axis, reason=index))
            else:
                missing.append(index)
        pool = plan.kv_tokens or plan.batch * plan.max_context
        return m.Configuration(
            plan=msgspec.structs.replace(plan, kv_tokens=pool),
            missing=missing,
            shortfalls=shortfalls,
            memory=[
                m.MemoryPart(name="weights.mapped", bytes=1 << 20),
                m.MemoryPart(name="kv", bytes=pool * 64, text=f"{pool} tokens of 64 bytes"),
            ],
        )

    def serve(self) -> int:
        while True:
            while self.inbox:
                self.take(self.inbox.popleft())
            if self.is_draining and not self.sequences and not self.b.ignore_drain:
                return ExitCode.OK
            produced = self.do_step()
            if not self.inbox:
                if not produced:
                    self.says(phase="ready")
                self.receive(block=not produced)

    def take(self, message: ToEngineMessage) -> None:
        match message:
            case m.Submit():
                self.at("submit")
                lacking = self.lacking(message)
                if self.is_draining:
                    self.refuse(message, m.ErrorKind.OVERLOADED, "engine_draining", "as scripted")
                    return
                if lacking:
                    text = f"the request needs {lacking[0]}, which its mode does not have"
                    self.refuse(message, m.ErrorKind.UNSUPPORTED, "mode_unsupported", text)
                    return
                self.sequences[message.rid] = Sequence(
                    message.rid, message.prompt_tokens, list(message.ids), message.params,
                    message.credit,
                )  # fmt: skip
            case m.Resume():
                self.at("submit")
                if self.lacking(message):
                    raise AssertionError(f"RESUME of request {message.rid} in a mode that lacks it")
                s = self.sequences[message.rid] = Sequence(
                    message.rid, message.prompt_tokens, list(message.ids), message.params,
                    message.credit, len(message.generated),
                )  # fmt: skip
                self.check_resumed(s, message.generated)
            case m.Prompt():
                if message.rid in self.sequences:
                    self.sequences[message.rid].ids += message.ids
            case m.Cancel():
                if message.rid in self.sequences and not self.b.ignore_cancel:
                    self.done(self.sequences[message.rid], m.FinishReason.CANCELLED)
            case m.Credit():
                if message.rid in self.sequences:
                    self.sequences[message.rid].credit = message.upto
            case m.Ping():
                self.send(m.Pong(nonce=message.nonce, step=self.step, busy=bool(self.sequences)))
            case m.Drain():
                self.is_draining = True
            case _:
                raise AssertionError(message)

    def do_step(self) -> bool:
        """One step of up to `batch` sequences; False when none can go on."""
        items = []
        finished = []
        self.gathered = max(self.gathered, len(self.sequences))
        if self.gathered < self.b.gather:
            return False
        working = 0
        for s in list(self.sequences.values()):
            if working == self.batch:
                break
            if len(s.ids) < s.prompt_tokens:
                continue
            limit = min(s.params.max_tokens, self.b.tokens_max)
            if self.b.prefill_steps < 0 or s.produced >= limit:
                continue
            if s.produced >= s.credit and not self.b.ignore_credit:
                continue
            working += 1  # one without credit keeps no place from others
            s.steps += 1
            if s.steps <= self.b.prefill_steps:
                continue
            if self.b.error:
                self.done(s, m.FinishReason.ERROR, m.ErrorKind(self.b.error))
                continue
            offset = s.produced + (5 if self.b.gap and s.produced == 1 else 0)
            first = 0 if self.b.repeat else s.produced
            offset = 0 if self.b.repeat else offset
            made = range(first, s.produced + 1)
            items.append(m.TokensItem(s.rid, offset, [s.token(i) for i in made]))
            s.produced += 1
            if s.produced >= s.params.max_tokens:
                finished.append(s)
        if items:
            self.step += 1
            self.show_step([item.rid for item in items])
            self.send(m.Tokens(step=self.step, items=items))
            if self.step >= self.b.die_after:
                self.at("tokens")
        for s in finished:
            self.done(s, m.FinishReason.LENGTH)
        return working > 0

    def show_step(self, rids: list[int]) -> None:
        """The step in the beacon, and the misbehaviours that depend on what it consists of."""
        count = len(rids)
        prompt_rows = max(
            len(self.sequences[rid].ids) if self.sequences[rid].produced <= 1 else 1 for rid in rids
        )
        self.says(
            phase="prefill" if prompt_rows > 1 else "decode",
            step=self.step,
            rids=rids,
            sequences=count,
            rows=count * (1 + self.spec) + prompt_rows - 1,
        )
        if any(self.b.poison in self.sequences[rid].ids for rid in rids):
            self.die()
        if count > 1:
            self.at("shared")
        if prompt_rows > 1:
            self.at("long")
        elif self.spec:
            self.at("draft")

    def lacking(self, message: m.Submit | m.Resume) -> list[str]:
        """Needs that the mode of the request lacks; the mode is a line of SCRIPT.json.modes."""
        with self.offers.with_suffix(".modes").open("a") as file:
            file.write(f"{message.mode}\n")
        served = set(self.serving[message.mode].features) - set(self.b.lacks)
        return [need for need in message.params.needs if need not in served]

    def serving_modes(self, plan: m.ModePlan) -> list[m.ServingMode]:
        plain = m.ServingMode(features=self.b.features)
        if not plan.spec:
            return [plain]
        drafting = m.ServingMode(drafts=plan.spec, features=self.b.features)
        if self.b.draft_features is None:
            return [drafting]
        return [msgspec.structs.replace(drafting, features=self.b.draft_features), plain]

    def check_resumed(self, s: Sequence, generated: list[int]) -> None:
        """What an earlier engine is said to have made must be what this one would have made."""
        if len(s.ids) == s.prompt_tokens and generated != [s.token(i) for i in range(s.produced)]:
            raise AssertionError(f"RESUME of request {s.rid} with other ids than were generated")
        if s.produced >= s.params.max_tokens:
            self.done(s, m.FinishReason.LENGTH)

    def refuse(self, message: m.Submit, kind: m.ErrorKind, code: str, text: str) -> None:
        self.send(
            m.Done(
                rid=message.rid,
                reason=m.FinishReason.ERROR,
                prompt_tokens=message.prompt_tokens,
                cached_tokens=0,
                output_tokens=0,
                error_kind=kind,
                code=code,
                text=text,
            )
        )

    def done(self, s: Sequence, reason: m.FinishReason, error: m.ErrorKind | None = None) -> None:
        del self.sequences[s.rid]
        self.prompt_total += s.prompt_tokens
        self.output_total += s.produced
        self.send(
            m.Stats(
                step=self.step,
                running=len(self.sequences),
                waiting=0,
                kv_pages_used=2,
                kv_pages_cached=1,
                kv_pages_total=32,
                prompt_tokens=self.prompt_total,
                cached_tokens=self.prompt_total // 2,
                output_tokens=self.output_total,
                step_ms=1.5,
                rss_bytes=4096,
            )
        )
        self.send(
            m.Done(
                rid=s.rid,
                reason=reason,
                prompt_tokens=s.prompt_tokens,
                cached_tokens=0,
                output_tokens=s.produced,
                error_kind=error,
                code=error.value if error else "",
                text="as scripted" if error else "",
            )
        )


def main() -> int:
    script = Path(sys.argv[1])
    counter = script.with_name(script.name + ".starts")
    start = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(start + 1))
    behaviours = json.loads(script.read_text())
    behaviour = Behaviour(**behaviours[min(start, len(behaviours) - 1)])
    fds = [int(fd) for fd in sys.argv[sys.argv.index("--ipc") + 1].split(",")]
    offers = script.with_name(script.name + ".offers")
    return FakeEngine(behaviour, offers, *fds[:2], fds[2] if len(fds) > 2 else -1).run()


if __name__ == "__main__":
    sys.exit(main())
