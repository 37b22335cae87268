"""What becomes of each request when its engine dies: whether it goes on with the next engine, in
what order, and with which message. Joins journal, trials, quarantine and shapes; pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from strata_protocol.features import declare
from strata_protocol.messages import ErrorKind, Resume, Submit

from strata.engines.port import EngineLost
from strata.serving.entry import Entry
from strata.serving.journal import Journal
from strata.serving.poison import TRIAL_TOKENS, Quarantine, Trials, fingerprint
from strata.serving.request import Failed, RequestSpec
from strata.serving.shapes import Shape, Shapes

LOSSES_MAX = 2  # engines that may die with a request; with the next it is given up


@dataclass(frozen=True, slots=True)
class Loss:
    """An engine died."""

    # These end with it; None where an end of their own was under way.
    ended: Sequence[tuple[Entry, Failed | None]]
    again: Sequence[Entry]  # these go on with the next one, in their former order
    guilty: bytes | None  # fingerprint that is refused from now on


class Recovery:
    """The journal of what runs, and what is known of requests that engines died with."""

    def __init__(self, journal_bytes: int) -> None:
        self.journal = Journal(journal_bytes)
        self.quarantine = Quarantine()
        self.trials = Trials()
        self.shapes = Shapes()
        self._build = ""

    def on_lost(
        self, lost: EngineLost, running: Sequence[Entry], now: float, *, has_others: bool
    ) -> Loss:
        """`running`: what the engine had, in order of submission. `has_others`: it also had some
        that nobody waits for any more."""
        suspects = set() if lost.is_external else self._suspects(lost.suspects, running)
        self.quarantine.on_acquitted(bytes.fromhex(found) for found in lost.acquitted)
        guilty = None
        prints = {fingerprint(e.spec) for e in running if e.rid in suspects}
        if lost.is_lower:
            # What came before was on a rung that is given up: it is evidence of nothing below.
            self.quarantine.on_acquitted(prints)
            self.shapes = Shapes()
        elif suspects:
            # A crash for which a mode was taken out convicts nobody; should one of them crash again
            # alone without it, it was not the mode.
            is_known = suspects <= {e.rid for e in running} and (
                bool(lost.suspects) or not has_others
            )
            # Nor does the first crash after a reload, for which the settings before it come back:
            # it counts, and what crashes alone with those as well is convicted.
            is_alone = is_known and len(prints) == 1 and not lost.blamed_mode and not lost.is_back
            guilty = self.quarantine.on_crash(prints, now, is_alone=is_alone)
            if is_known and not lost.blamed_mode and not lost.is_back:
                of_shape = {(Shape.of(e.spec), fingerprint(e.spec)) for e in running}
                self.shapes.on_crash({s for s in of_shape if s[1] in prints}, now)
                if guilty is not None:
                    self.shapes.on_convicted({s for s, found in of_shape if found == guilty}, now)
        is_trial = self.trials.is_on
        self.trials.on_lost(e.rid for e in running if e.rid in suspects)
        ended: list[tuple[Entry, Failed | None]] = []
        again: list[Entry] = []
        for entry in running:
            is_suspect = entry.rid in suspects
            # Who stood by while a suspect was tried does not pay for the suspect's crash. Nor does
            # anybody, once, for the crash that leads to a lower rung: that rung was not tried yet.
            counts = not lost.is_planned and (is_suspect or not (is_trial and suspects))
            if counts and (lost.is_lower or lost.is_back) and not entry.is_spared:
                entry.is_spared = True
            else:
                entry.losses += counts
            if entry.is_cancelled or entry.ending is not None:
                ended.append((entry, None))
            elif is_suspect and guilty is not None:
                ended.append((entry, self.quarantine.verdict(guilty, lost.cause)))
            elif (failed := self._failed(entry, lost.cause)) is not None:
                ended.append((entry, failed))
            else:
                again.append(entry)
        return Loss(ended, again, guilty)

    def prints(self, suspects: Collection[int], running: Sequence[Entry]) -> frozenset[str]:
        """Fingerprints of those of `running` that may have ended the engine."""
        named = self._suspects(suspects, running)
        return frozenset(fingerprint(e.spec).hex() for e in running if e.rid in named)

    def are_known(self, prints: Collection[str]) -> bool:
        """Whether one of these fingerprints was in a crash before."""
        return self.quarantine.are_known(bytes.fromhex(found) for found in prints)

    def message(self, entry: Entry, mode: int) -> Submit | Resume:
        """What makes an engine begin the request or go on with it, in its serving mode of that
        index. While suspects are tried, its credit ends the trial."""
        credit = entry.granted
        if self.trials.current == entry.rid:
            credit = entry.held_at = entry.received + TRIAL_TOKENS
            entry.granted = max(entry.granted, credit)
        prompt = list(entry.spec.prompt_ids)
        params = declare(entry.spec.params)
        generated = self.journal.generated(entry.rid)
        if generated is None:
            raise RuntimeError("a request that cannot be resumed was kept")
        if not generated:
            return Submit(
                rid=entry.rid,
                prompt_tokens=len(prompt),
                ids=prompt,
                params=params,
                credit=credit,
                priority=entry.engine_priority,
                mode=mode,
            )
        if entry.scored >= len(prompt):
            # All of them are out.
            params = declare(msgspec.structs.replace(entry.spec.params, prompt_logprobs=-1))
        return Resume(
            rid=entry.rid,
            prompt_tokens=len(prompt),
            ids=prompt,
            generated=generated,
            params=params,
            credit=credit,
            mode=mode,
        )

    def keeps(self, entry: Entry) -> bool:
        """Whether an engine could go on with it: nothing of what it was given is lost."""
        return self.journal.generated(entry.rid) is not None

    def on_build(self, build: str) -> None:
        """An engine of this build is ready: what others of another build died of says nothing."""
        if build != self._build:
            self._build = build
            self.quarantine, self.shapes = Quarantine(), Shapes()

    def check(self, spec: RequestSpec, now: float) -> None:
        """Raises RejectedError for a request that is refused."""
        self.quarantine.check(spec, now)
        self.shapes.check(spec, now)

    def on_tokens(self, entry: Entry, ids: Sequence[int], now: float) -> bool:
        """`ids` are new, and `entry.received` counts them. True when that ends a trial."""
        self.journal.append(entry.rid, entry.prompt_tokens, ids)
        is_over = (
            self.trials.current == entry.rid
            and entry.held_at is not None
            and entry.received >= entry.held_at
        )
        if is_over:
            self.quarantine.on_cleared(fingerprint(entry.spec))
            self.shapes.on_passed(entry.spec, now)
            self.trials.clear()
        return is_over

    def on_ended(self, entry: Entry, now: float, *, is_survived: bool) -> None:
        """It is forgotten. `is_survived`: an engine computed it to its end."""
        self.journal.close(entry.rid)
        if self.trials.forget(entry.rid) and is_survived:
            self.shapes.on_passed(entry.spec, now)
            self.quarantine.on_cleared(fingerprint(entry.spec))

    def sharing(self, guilty: bytes, entries: Iterable[Entry]) -> list[Entry]:
        """Those of `entries` that would kill the next engine the same way."""
        return [e for e in entries if fingerprint(e.spec) == guilty]

    def _suspects(self, named: Collection[int], running: Sequence[Entry]) -> set[int]:
        """Who may have killed the engine, also where it has been cancelled since. `named`: what the
        engine itself left word of."""
        if named:
            return set(named)
        current = self.trials.current
        if current is not None:
            return {current}
        return {e.rid for e in running if not e.is_stalled and e.rid not in self.trials.held}

    def _failed(self, entry: Entry, cause: str) -> Failed | None:
        """Why the request does not go on; None where it does."""
        if entry.losses > LOSSES_MAX:
            text = f"the engine ended {entry.losses} times with this request: {cause}"
        elif self.journal.generated(entry.rid) is None:
            text = (
                "the engine ended while the request ran, and what it would need to go on did not"
                f" fit journal_bytes = {self.journal.bytes_max}: {cause}"
            )
        else:
            return None
        return Failed(ErrorKind.INTERNAL, "engine_restarted", text)
