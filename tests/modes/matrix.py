"""Combinations of backend table, file and wanted modes, and what must be true of each.

A combination is offered to a real engine. Of what the engine reports as runnable, the first and
another one are run, and all of them in a sample of the combinations: handshake, probe and real
requests. What it reports as missing is asked for all the same and must be refused, and its reasons
are held against what the combination hides or lacks.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from strata_protocol import messages as m
from strata_protocol.exit_codes import ExitCode

from tests.system.engine_driver import Engine, submit
from tools.random_blocks import QUANTISED
from tools.synth_model import Shape, write_model

HIDDEN: tuple[tuple[str, ...], ...] = (
    (),
    ("*:sequences>1",),
    ("*:rows>1",),
    ("attention*:sequences>2",),
    ("attention*:kv=f16",),
    ("kv_append*:kv=f16", "matmul*:rows>32"),
    ("matmul*:act=int8",),
    ("matmul*:weight=q4_0", "embed*:weight=q8_0"),
    ("*matmul*:weight=iq4_nl", "matmul*:weight=q2_0", "matmul*:weight=iq3_s"),
    ("rope*:rows>4", "add*:rows>100"),
    ("rms_norm_quantize*",),
    ("gather_rows*",),
)

# One type per part of the name, or one for all matrices.
TYPES: dict[str, dict[str, str]] = {
    "f32": {"": "f32"},
    "f16": {"": "f16"},
    "bf16": {"": "bf16"},
    "q4_0": {"": "q4_0"},
    "q4_1": {"": "q4_1"},
    "q5_0": {"": "q5_0"},
    "q5_1": {"": "q5_1"},
    "q8_0": {"": "q8_0"},
    "k mix": {"ffn_down": "q6_k", "attn_v.weight": "q5_k", "": "q4_k"},
    "iq4_nl down": {"ffn_down": "iq4_nl", "": "q4_0"},
    "q2_0 outputs": {"output.weight": "q2_0", "": "q8_0"},
    "iq3_s": {"attn_q.weight": "iq3_s", "": "q4_1"},
    "iq mix": {
        "ffn_down": "iq4_xs",
        "attn_v.weight": "iq3_xxs",
        "attn_output": "tq2_0",
        "": "iq2_s",
    },
    "fp4 mix": {"ffn_down": "nvfp4", "attn_v.weight": "q1_0", "": "mxfp4"},
    "q8_k down": {"ffn_down": "q8_k", "": "q5_0"},  # a type that no kernel takes
}

_WIDE = {"width": 256, "ff": 256, "heads": 4, "kv_heads": 2, "head_dim": 64}
_RECURRENT = _WIDE | {"attention_interval": 2, "state_size": 32, "value_heads": 8}
SHAPES: dict[str, Shape] = {
    "llama": Shape(**_WIDE),
    "llama untied": Shape(tied=False, biases=True, **_WIDE),
    "llama odd": Shape(heads=16, kv_heads=4, head_dim=48, width=256, ff=256, layers=1),
    "llama with drafts": Shape(draft_layers=1, **_WIDE),
    "qwen3": Shape(architecture="qwen3", **_WIDE),
    "qwen3moe": Shape(architecture="qwen3moe", expert_ff=256, experts=5, **_WIDE),
    "qwen3moe fused": Shape(
        architecture="qwen3moe",
        expert_ff=256,
        experts=12,
        experts_used=10,
        shared_ff=256,
        fused_gate_up=True,
        layers=1,
        **_WIDE,
    ),
    "qwen3 fused": Shape(architecture="qwen3", fused_qkv=True, rope_factors=False, **_WIDE),
    "qwen35": Shape(architecture="qwen35", **_RECURRENT),
    "qwen3next": Shape(architecture="qwen3next", expert_ff=256, shared_ff=256, **_RECURRENT),
    "qwen35moe with drafts": Shape(
        architecture="qwen35moe", expert_ff=256, shared_ff=256, draft_layers=1, **_RECURRENT
    ),
    "qwen4exp with drafts": Shape(
        architecture="qwen4exp",
        expert_ff=256,
        shared_ff=256,
        low_rank=256,
        table_width=256,
        top_k=32,
        index_dim=64,
        draft_layers=1,
        **_RECURRENT,
    ),
}

WANTED: dict[str, tuple[object, ...]] = {
    "batch": (1, 2, 4, 8),
    "kv": ("auto", "f32", "f16", "bf16", "int8", "q4_0"),
    "prefill": (1, 16, 256),
    "activations": ("auto", "int8", "f32"),
    "max_context": (0, 96, 512),
    "drafts": ("off", "solo", "batch"),
    "device_memory": (0, 1 << 30, 4 << 20, 700_000),
    "mmap": (True, False),
}
DRAFTS: dict[str, dict[str, object]] = {
    "off": {"mtp": "off"},
    "solo": {"spec": 2, "batch_mtp": "off"},
    "batch": {"spec": 4, "batch_mtp": "on"},
}
FACTORS: dict[str, Sequence[object]] = {
    "isa": (),  # what the machine has
    "hidden": HIDDEN,
    "shape": tuple(SHAPES),
    "types": tuple(TYPES),
    **WANTED,
}


PAGE_TOKENS = 32
MEMORY_PAGE = 4096
READY_LEAST = 2  # ready configurations of each combination that are run, where there are so many

Served = tuple[str, str, str]  # an operation, "weight" or "kv", and a type that it serves


@dataclass(frozen=True)
class Combination:
    levels: tuple[tuple[str, object], ...]

    def __getitem__(self, factor: str) -> object:
        return dict(self.levels)[factor]

    @property
    def hidden(self) -> tuple[str, ...]:
        return msgspec.convert(self["hidden"], tuple[str, ...])

    @property
    def want(self) -> dict[str, object]:
        want = {name: self[name] for name in WANTED if name != "drafts"}
        return want | DRAFTS[str(self["drafts"])]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.levels)


def combinations(isas: Sequence[str], count: int, seed: int = 1) -> list[Combination]:
    """`count` different combinations; every pair of levels of two factors is among them.

    Each is drawn so that it covers what is not covered yet: the best of some random ones.
    """
    factors = {**FACTORS, "isa": tuple(isas)}
    rng = random.Random(seed)

    def draw() -> tuple[tuple[str, object], ...]:
        return tuple((name, rng.choice(list(levels))) for name, levels in factors.items())

    open_pairs = set(all_pairs(isas))
    chosen: dict[Combination, None] = {}
    while len(chosen) < count:
        drawn = [draw() for _ in range(12 if open_pairs else 1)]
        best = max(drawn, key=lambda levels: len(open_pairs.intersection(pairs(levels))))
        chosen[Combination(best)] = None
        open_pairs.difference_update(pairs(best))
    if open_pairs:
        raise ValueError(f"{count} combinations leave {len(open_pairs)} pairs of levels out")
    return list(chosen)


def pairs(levels: Sequence[tuple[str, object]]) -> Iterator[tuple[object, ...]]:
    return itertools.combinations(levels, 2)


def all_pairs(isas: Sequence[str]) -> Iterator[tuple[object, ...]]:
    factors = {**FACTORS, "isa": tuple(isas)}
    for (a, a_levels), (b, b_levels) in itertools.combinations(factors.items(), 2):
        for x, y in itertools.product(a_levels, b_levels):
            yield ((a, x), (b, y))


@dataclass
class Models:
    """The files, each written once."""

    folder: Path
    written: dict[tuple[str, str], Path] = field(default_factory=dict)

    def path(self, shape: str, types: str) -> Path:
        key = (shape, types)
        if key not in self.written:
            kinds = TYPES[types]
            name = "-".join(key).replace(" ", "_") + ".gguf"
            # A drafter that is never right is refused, whatever kernels there are.
            self.written[key] = write_model(
                self.folder / name,
                SHAPES[shape],
                kind=kinds[""],
                kinds=_named(kinds),
                draft_kinds=None if kinds[""] in QUANTISED else {"eh_proj": "q8_0"},
                predictable=SHAPES[shape].draft_layers > 0,
            )
        return self.written[key]


def _named(kinds: dict[str, str]) -> dict[str, str]:
    return {part: kind for part, kind in kinds.items() if part}


@dataclass
class Outcome:
    accepted: bool = False  # the engine said it runs what was asked
    fallback: bool = False  # something less ran
    refused: bool = False  # nothing runs
    ready: int = 0  # configurations that the engine said it can run
    runs: int = 0  # of these, that were run
    failures: list[str] = field(default_factory=list)


class Checker:
    """Holds one engine program against combinations."""

    def __init__(self, engine: Path, models: Models, served: AbstractSet[Served]) -> None:
        self._engine = engine
        self._models = models
        self._served = served

    def check(self, combination: Combination, *, all_ready: bool) -> Outcome:
        """Runs what is ready of it: all, or the nearest to what was asked and one drawn from the
        others."""
        outcome = Outcome()
        caps = self._caps(combination, outcome)
        asked = caps.configurations[0]
        ready = [c for c in caps.configurations if not c.missing]
        outcome.ready = len(ready)
        outcome.accepted = not asked.missing
        outcome.refused = not ready
        outcome.fallback = bool(asked.missing and ready)
        outcome.failures += memory_failures(caps, combination)
        if asked.missing:
            reasons = [caps.reasons[i] for i in asked.missing]
            self._check_reasons(combination, caps, reasons, outcome)
        if outcome.fallback:
            self._insist(combination, asked, outcome)
        if not all_ready and len(ready) > READY_LEAST:
            drawn = random.Random(str(combination)).sample(ready[1:], READY_LEAST - 1)
            ready = [ready[0], *drawn]
        for configuration in ready:
            self._run(combination, configuration, outcome)
        outcome.runs = len(ready)
        return outcome

    def _start(self, combination: Combination) -> Engine:
        return Engine(self._engine, "--isa", str(combination["isa"]))

    def _model(self, combination: Combination) -> Path:
        return self._models.path(str(combination["shape"]), str(combination["types"]))

    def _offer(self, engine: Engine, combination: Combination) -> m.Caps:
        engine.expect(m.Hello)
        model = self._model(combination)
        engine.send(engine.offer(model, combination.hidden, **combination.want))
        return engine.expect(m.Caps)

    def _caps(self, combination: Combination, outcome: Outcome) -> m.Caps:
        """What can run; where that is nothing, the engine must refuse by itself."""
        with self._start(combination) as engine:
            caps = self._offer(engine, combination)
            if all(configuration.missing for configuration in caps.configurations):
                reasons = engine.expect(m.Refuse).reasons
                self._check_reasons(combination, caps, reasons, outcome)
                if engine.exit_code() != ExitCode.CONFIG_REFUSED:
                    outcome.failures.append(f"exit {engine.process.returncode} behind REFUSE")
        return caps

    def _run(
        self, combination: Combination, configuration: m.Configuration, outcome: Outcome
    ) -> None:
        """What is reported to run must: probe, then real requests beside each other."""
        plan = configuration.plan
        with self._start(combination) as engine:
            self._offer(engine, combination)
            engine.send(m.Plan(plan=plan))
            while not isinstance(answer := engine.expect(msgspec.Struct), m.Ready):
                if isinstance(answer, m.Probe) and not answer.ok:
                    outcome.failures.append(f"probe {answer.mode}: {answer.reasons}")
                if isinstance(answer, m.Refuse | m.Dying):
                    outcome.failures.append(f"{plan}: {answer}")
                    return
            if answer.plan != plan:
                outcome.failures.append(f"planned {plan}, runs {answer.plan}")
            ways = max(len(answer.serving), 1)
            rids = range(1, plan.batch + 2)
            room = min(plan.max_context, plan.kv_tokens)
            for rid in rids:
                length = min(room - 4, 5 + 40 * (rid % 2)) if room > 5 else 1
                ids = [(7 * rid + 3 * i) % 256 for i in range(length)]
                request = submit(rid, ids, max_tokens=3, logprobs=1)
                engine.send(msgspec.structs.replace(request, mode=rid % ways))
            for output in engine.finish(*rids):
                done = output.done
                if done is None or done.reason is m.FinishReason.ERROR or not output.ids:
                    outcome.failures.append(f"{plan}: {done}")

    def _insist(
        self, combination: Combination, configuration: m.Configuration, outcome: Outcome
    ) -> None:
        """What is reported missing must not run when asked for in spite of it."""
        with self._start(combination) as engine:
            self._offer(engine, combination)
            engine.send(m.Plan(plan=configuration.plan))
            answer = engine.expect(msgspec.Struct)
            if not isinstance(answer, m.Refuse) or not answer.reasons:
                outcome.failures.append(f"reported missing, yet PLAN is answered {answer}")
            elif engine.exit_code() != ExitCode.CONFIG_REFUSED:
                outcome.failures.append(f"exit {engine.process.returncode} behind REFUSE")

    def _check_reasons(
        self,
        combination: Combination,
        caps: m.Caps,
        reasons: Sequence[m.Reason],
        outcome: Outcome,
    ) -> None:
        if not reasons:
            outcome.failures.append("refused without a reason")
        outcome.failures += [
            f"not true: {reason.code}: {reason.text}"
            for reason in reasons
            if not self._is_true(combination, caps, reasons, reason)
        ]

    def _is_true(
        self,
        combination: Combination,
        caps: m.Caps,
        reasons: Sequence[m.Reason],
        reason: m.Reason,
    ) -> bool:
        """Whether the combination has what one of `reasons` says."""
        match reason.code.split("."):
            case ["kernel", "missing"]:
                if any(mask in reason.text for mask in combination.hidden):
                    return True
                op = reason.text.partition("no kernel for ")[2].split()[0]
                types = re.findall(r"(weight|kv)=(\w+)", reason.text)
                return any((op, field, name) not in self._served for field, name in types)
            case ["kernel", "kv_type"]:
                found = re.search(r"runs kv (.+) here and has no kernels for (\w+)", reason.text)
                runs = self._kv_types(combination)
                return found is not None and set(found[1].split(", ")) == runs - {found[2]} == runs
            case ["mem", "insufficient"]:
                # Of a configuration in CAPS, which memory_failures() holds against its parts.
                return any(reason in reasons_of(caps, c) for c in caps.configurations)
            case ["caps", "shortened"]:
                return reason == reasons[-1] and left_out(caps, reasons) == int(
                    re.findall(r"and (\d+) more", reason.text)[0]
                )
            case ["drafter", "none"] | ["mode", "no_drafts"]:
                return combination["drafts"] != "off" and "drafts" not in str(combination["shape"])
            case ["kv", "block"]:
                return combination["kv"] in {"int8", "q4_0"} and combination["shape"] == "llama odd"
            case _:
                return False

    def _kv_types(self, combination: Combination) -> set[str]:
        """Types of keys and values whose kernels are there and not hidden."""
        types = {name for op, field, name in self._served if (op, field) == ("attention", "kv")}
        return {name for name in types if not any(f"kv={name}" in h for h in combination.hidden)}


def reasons_of(caps: m.Caps, configuration: m.Configuration) -> list[m.Reason]:
    return [caps.reasons[i] for i in configuration.missing]


def memory_failures(caps: m.Caps, combination: Combination) -> list[str]:
    """Of each configuration whose memory says otherwise than its reasons: the sum of its parts
    against what may be used, which is what is there or allowed less a twentieth. Keys and values
    are budgeted by the token; the rounding of their buffers, two a layer, comes from the margin."""
    allowed, there = int(str(combination["device_memory"])), caps.device.memory_available_bytes
    available = min(there, allowed) if allowed else there
    usable = available - available // 20
    failures = []
    for configuration in caps.configurations:
        plan = configuration.plan
        parts = {part.name: part.bytes for part in configuration.memory}
        needed = sum(parts.values())
        codes = {reason.code for reason in reasons_of(caps, configuration)}
        unrounded = needed - 2 * MEMORY_PAGE * (caps.model.layers + 1)
        is_refused = "mem.insufficient" in codes
        if (is_refused and needed <= usable) or (not is_refused and unrounded > usable):
            failures.append(f"not true: {needed} bytes of {usable}, yet {codes}: {plan}")
        page = PAGE_TOKENS * (parts["kv"] + parts.get("drafter.kv", 0)) // plan.kv_tokens
        for shortfall in configuration.shortfalls:
            reason = caps.reasons[shortfall.reason]
            if reason.code == "mem.kv_budget" and needed + page <= usable:
                failures.append(f"not true: a page of {page} bytes would fit: {reason.text}")
    return failures


def left_out(caps: m.Caps, reasons: Sequence[m.Reason]) -> int:
    """Kinds of reasons of the configurations of CAPS that are not among `reasons`."""
    said = {kind_of(reason) for reason in reasons}
    every = itertools.chain.from_iterable(reasons_of(caps, c) for c in caps.configurations)
    return len({kind_of(reason) for reason in every} - said)


def kind_of(reason: m.Reason) -> str:
    """What reasons share that differ in numbers only."""
    return reason.code + re.sub(r"\d", "", reason.text.replace(" sequences=", "", 1))
