"""An engine inside the test's own process that dies when told to: no pipes, no processes, so that
hundreds of lives take seconds. It drives a real `EngineService`.

Each token is a hash of everything a real engine's choice depends on: prompt, all generated tokens
(penalties), seed, choice and position. An engine that is resumed with anything else goes astray.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import strata_protocol.messages as m
from strata.engines.port import EngineLost, EngineReady
from strata.serving.service import EngineService
from strata_protocol.features import FIELDS

Death = Callable[["MortalEngine"], EngineLost | None]  # asked before each step


def hashed(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=6).digest())


@dataclass
class Running:
    message: m.Submit | m.Resume
    generated: list[int] = field(default_factory=list)
    credit: int = 0

    @property
    def is_able(self) -> bool:
        return len(self.generated) < min(self.credit, self.message.params.max_tokens)


class MortalEngine:
    """Implements `EnginePort`; after each death the next life is ready at once."""

    def __init__(
        self, service: EngineService, tokens: Sequence[int], death: Death, batch: int = 4
    ) -> None:
        self.service = service
        self.tokens = tokens  # what it may say
        self.death = death
        self.batch = batch
        self.lives = 0
        self.step_count = 0
        self.resumes = 0
        self.loses_last = False  # the last step's tokens before a death never arrive
        self.running: dict[int, Running] = {}
        self._is_due = False
        self.come_up()

    def come_up(self) -> None:
        self.lives += 1
        self.running = {}
        plan = m.ModePlan(
            batch=self.batch, max_context=4096, kv="f16", prefill=64, activations="f32", threads=1,
            kv_tokens=16384,
        )  # fmt: skip
        ready = m.Ready(
            plan=plan,
            load_ms=0,
            warm_ms=0,
            kv_pages=512,
            page_tokens=32,
            serving=[m.ServingMode(features=list(FIELDS))],
        )
        self.service.on_ready(EngineReady(m.ModelFacts(), ready, ()), self)

    def die(self, lost: EngineLost) -> None:
        self.running = {}
        self.service.on_lost(lost)
        asyncio.get_running_loop().call_soon(self.come_up)

    # --- EnginePort

    def send(self, message: m.Submit | m.Resume | m.Cancel | m.Credit) -> None:
        match message:
            case m.Submit():
                self.running[message.rid] = Running(message, [], message.credit)
            case m.Resume():
                self.resumes += 1
                assert message.generated
                self.running[message.rid] = Running(
                    message, list(message.generated), message.credit
                )
            case m.Credit():
                if message.rid in self.running:
                    self.running[message.rid].credit = message.upto
            case m.Cancel():
                if message.rid in self.running:
                    self._done(message.rid, m.FinishReason.CANCELLED)
        self._wake()

    def fault(self, text: str) -> None:
        raise AssertionError(text)

    # --- work

    def _wake(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._is_due = False
        able = [rid for rid, r in self.running.items() if r.is_able][: self.batch]
        full = [r for r in self.running.values() if len(r.generated) >= r.message.params.max_tokens]
        for running in full:  # resumed with all it asked for
            self._done(running.message.rid, m.FinishReason.LENGTH)
        if not able:
            return
        self.step_count += 1
        lost = self.death(self)
        if lost is not None and self.loses_last:
            self.die(lost)
            return
        items = []
        stopped: list[tuple[int, int]] = []
        for rid in able:
            running = self.running[rid]
            params = running.message.params
            offset = len(running.generated)
            token = self._choose(running)
            if token in params.stop_ids and offset >= params.min_tokens:
                stopped.append((rid, token))
                continue
            running.generated.append(token)
            scored = []
            if params.logprobs >= 0:
                top = [m.TopLogprob(self.tokens[k], -k / 8) for k in range(params.logprobs)]
                scored = [m.TokenLogprob(-(hashed(token, offset) % 997) / 100, top)]
            items.append(m.TokensItem(rid, offset, [token], scored))
        self.service.on_message(m.Tokens(self.step_count, items))
        if lost is not None:
            self.die(lost)
            return
        for rid, token in stopped:
            self._done(rid, m.FinishReason.STOP, token)
        for rid in [rid for rid in able if rid in self.running]:
            if len(self.running[rid].generated) >= self.running[rid].message.params.max_tokens:
                self._done(rid, m.FinishReason.LENGTH)
        self._wake()

    def _choose(self, running: Running) -> int:
        params, message = running.message.params, running.message
        parts = (message.ids, running.generated, params.seed, params.choice, params.temperature)
        token = self.tokens[hashed(*parts) % len(self.tokens)]
        # Now and then a stop id, where it may come.
        if params.stop_ids and hashed("stop", *parts) % 40 == 0:
            return params.stop_ids[0] if len(running.generated) >= params.min_tokens else token
        return token

    def _done(self, rid: int, reason: m.FinishReason, stop_id: int = -1) -> None:
        running = self.running.pop(rid)
        prompt = running.message.prompt_tokens
        count = len(running.generated)
        self.service.on_message(m.Done(rid, reason, prompt, 0, count, stop_id=stop_id))
