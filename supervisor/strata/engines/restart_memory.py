"""What the owner remembers of restarts: joins policy, its file and the decision log.

One object for the life of the service. Called on the event loop; what touches the disk runs in a
thread and is awaited.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

from strata.engines.decision_log import DecisionLog
from strata.engines.decision_text import decision_sentence, step_sentence
from strata.engines.less import Less
from strata.engines.modes import Choice
from strata.engines.restart import (
    CRASH_WINDOW_S,
    STARTS_WINDOW_S,
    Decision,
    Ended,
    Hold,
    RestartPolicy,
    StartAfter,
)
from strata.engines.restart_state import RestartView
from strata.engines.restart_store import Clocks, RestartStore
from strata.engines.rungs import Ladder

CONVICTED_MAX = 1024  # fingerprints that a step down can free


class RestartMemory:
    """`is_strict`: no rung but the first may run. `jitter` as in RestartPolicy."""

    def __init__(
        self,
        run_dir: Path,
        clocks: Clocks,
        jitter: Callable[[], float],
        decisions: DecisionLog,
        *,
        is_strict: bool,
    ) -> None:
        self._store = RestartStore(run_dir, clocks)
        self._steady = clocks.steady
        self._policy = RestartPolicy(jitter, is_strict=is_strict)
        self._decisions = decisions
        self._is_strict = is_strict
        self._convicted: list[str] = []  # fingerprints, since the last step down
        self._is_loaded = False
        self._is_saving = asyncio.Lock()

    @property
    def view(self) -> RestartView:
        policy, state, now = self._policy, self._policy.state, self._steady()
        return RestartView(
            rung=state.rung,
            rung_index=policy.rung,
            rung_count=policy.rung_count,
            rung_why=state.why if state.limit is not None else "",
            is_pinned=state.pin is not None,
            crashes_in_window=sum(now - c.at <= CRASH_WINDOW_S for c in state.crashes),
            starts_in_hour=sum(now - s.at < STARTS_WINDOW_S for s in state.starts),
            holds=state.holds,
        )

    async def on_place(self, *facts: object) -> None:
        """Before each start: `facts` are all that a start depends on."""
        if not self._is_loaded:
            self._is_loaded = True
            self._policy.state = await asyncio.to_thread(self._store.load)
        place = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
        if self._policy.on_place(place, self._steady()):
            self._decisions.add(
                "restart.forgotten",
                "What was counted of crashes and starts is forgotten: the engine's build, the model"
                " file or the modes asked for have changed.",
            )

    def first_start(self) -> Decision:
        """When a supervisor that has just come up may start its first engine."""
        decision = self._policy.first_start(self._steady())
        if decision != StartAfter(0.0):
            code, text = decision_sentence(decision)
            self._decisions.add(code, f"An earlier run of the service left a count. {text}")
        return decision

    async def on_started(self) -> None:
        """Right before each start."""
        before = self._policy.state.less
        self._policy.on_started(self._steady())
        if before is not None and self._policy.state.less is None:
            text = f"The engine is asked for all again, not for {before.text} at most."
            self._decisions.add("restart.stepped_up", text)
        await self.save()

    def choose(self, choice: Choice) -> tuple[int, str]:
        """Index of the rung that runs, and a sentence why it is not the first."""
        index, step = self._policy.choose(self._ladder_of(choice), self._steady())
        if step is not None:
            self._decisions.add(
                "restart.stepped_up",
                f"The engine tries rung {step.new} again, above {step.old}: {step.why}.",
            )
        rung = choice.ladder[index].name
        return index, f"the service went down to rung {rung}: {self._policy.state.why}"

    @property
    def bounds(self) -> tuple[Callable[[Choice], tuple[int, str]], Callable[[], Less | None]]:
        """What chooses the rung, and what says what to ask for at most: for courses."""
        return self.choose, self.less

    def less(self) -> Less | None:
        """What an engine is asked for at most, after memory ran out."""
        return self._policy.state.less

    def peek(self, choice: Choice) -> tuple[int, str]:
        """As `choose`, for an engine beside the one that runs: nothing changes by it."""
        index = self._policy.peek(self._ladder_of(choice))
        rung = choice.ladder[index].name
        return index, f"the service went down to rung {rung}: {self._policy.state.why}"

    async def take_over(self, choice: Choice) -> None:
        """An engine whose rung `peek` chose goes on from the one that ran."""
        self._policy.take_over(self._ladder_of(choice), self._steady())
        await self.save()

    def _ladder_of(self, choice: Choice) -> Ladder:
        ladder = Ladder.of(choice.ladder, choice.offered.configurations)
        return ladder.top if self._is_strict else ladder

    async def on_ready(self) -> None:
        self._policy.on_ready(self._steady())
        await self.save()

    def on_request_finished(self) -> None:
        self._policy.on_request_finished()

    def on_exited(self, ended: Ended) -> Decision:
        decision = self._policy.on_exited(ended, self._steady())
        step = decision.step if isinstance(decision, StartAfter | Hold) else None
        if step is not None:
            self._decisions.add("restart.stepped_down", step_sentence(step))
        self._decisions.add(*decision_sentence(decision))
        return decision

    def on_convicted(self, request: str, signature: str) -> None:
        """A request, by fingerprint, is convicted of the crashes of this signature."""
        self._policy.on_convicted(signature)
        self._convicted = [*self._convicted, request][-CONVICTED_MAX:]

    def freed(self, decision: Decision | None) -> tuple[str, ...]:
        """Fingerprints convicted on the rung that a decision gives up: it may have been the rung's
        doing, so they are tried again."""
        if not isinstance(decision, StartAfter | Hold) or decision.step is None:
            return ()
        freed, self._convicted = tuple(self._convicted), []
        return freed

    def on_made_room(self) -> Decision:
        """The engine was ended for a step up."""
        return self._policy.on_made_room(self._steady())

    def look(self) -> bool:
        """Now and then beside a ready engine. Returns whether it should be ended for a step up as
        soon as it is idle."""
        now = self._steady()
        self._policy.look(now)
        return self._policy.is_step_up_due(now)

    async def on_stopped(self) -> None:
        """The service was told to end: whoever starts it again wants it to try at once."""
        self._policy.state.next_start = None
        await self.save()

    async def save(self) -> None:
        async with self._is_saving:
            await asyncio.to_thread(self._store.save, self._policy.state)
