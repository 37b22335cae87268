"""The lane for shapes: requests of one kind that keep ending engines, though no two are the same.

A shape is the class of a prompt's length and what a request needs. What crashes with several
requests of one shape, but of no other, makes that shape suspect: for LANE_S its requests wait until
nothing else runs and go on alone for the length of a trial (poison.py), so that nobody else pays.
PASSES_MAX of them in a row that live clear the shape; once REFUSED_AFTER of them are convicted
there, requests of that shape are refused until the lane ends. Pure; only numbers and hashes are
kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from strata_protocol.features import asked_fields
from strata_protocol.messages import ErrorKind

from strata.serving.poison import CODE
from strata.serving.request import RejectedError, RequestSpec

CRASHES_MIN = 3  # of one shape within LANE_S, until it is suspect
REQUESTS_MIN = 2  # that they must have come from: of one alone poison.py has the answer
LANE_S = 3600.0
PASSES_MAX = 3
REFUSED_AFTER = 2
LANE_WAIT_S = 30.0  # for the engine to be idle; from then on nothing new is started beside it
RECORDS_MAX = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """`length`: prompts of 2^(length-1) up to 2^length - 1 tokens."""

    length: int
    needs: tuple[str, ...]

    @classmethod
    def of(cls, spec: RequestSpec) -> Shape:
        needs = tuple(sorted(feature.value for feature in asked_fields(spec.params)))
        return cls(len(spec.prompt_ids).bit_length(), needs)

    @property
    def text(self) -> str:
        """ "prompts of 4096 to 8191 tokens with logprobs, top_p"."""
        most = (1 << self.length) - 1
        least = (most + 1) >> 1
        tokens = f"{least} tokens" if least == most else f"{least} to {most} tokens"
        return f"prompts of {tokens}" + (f" with {', '.join(self.needs)}" if self.needs else "")


@dataclass(frozen=True, slots=True)
class Apart:
    """A shape in the lane, in words."""

    text: str
    is_refused: bool


@dataclass(slots=True)
class _Record:
    crashes_s: list[float] = field(default_factory=list)  # within LANE_S
    prints: set[bytes] = field(default_factory=set)
    lane_until_s: float = 0.0
    passes: int = 0
    convicted: int = 0  # requests, in the lane

    @property
    def is_refused(self) -> bool:
        return self.convicted >= REFUSED_AFTER


class Shapes:
    """What is known of shapes. Times: seconds, one clock."""

    def __init__(self) -> None:
        self._records: dict[Shape, _Record] = {}

    def apart(self, now: float) -> list[Apart]:
        """Shapes that run alone or are refused."""
        return [
            Apart(shape.text, r.is_refused)
            for shape, r in self._records.items()
            if r.lane_until_s > now
        ]

    def is_apart(self, spec: RequestSpec, now: float) -> bool:
        """Whether the request must run alone at first."""
        if not self._records:
            return False  # the rule: no request pays for the look
        record = self._records.get(Shape.of(spec))
        return record is not None and record.lane_until_s > now

    def on_crash(self, suspects: Collection[tuple[Shape, bytes]], now: float) -> None:
        """An engine died in a step of these shapes and fingerprints, by no mode's doing. Only where
        all are of one shape does it say anything of that shape."""
        shapes = {shape for shape, _ in suspects}
        if len(shapes) != 1:
            return
        (shape,) = shapes
        record = self._records.pop(shape, None) or _Record()
        self._records[shape] = record  # the least recent first
        record.passes = 0
        record.crashes_s = [at for at in record.crashes_s if now - at <= LANE_S]
        if not record.crashes_s:
            record.prints.clear()
        record.crashes_s.append(now)
        record.prints.update(found for _, found in suspects)
        is_enough = len(record.crashes_s) >= CRASHES_MIN and len(record.prints) >= REQUESTS_MIN
        if record.lane_until_s <= now and is_enough:
            record.lane_until_s, record.convicted = now + LANE_S, 0
        while len(self._records) > RECORDS_MAX:
            del self._records[next(iter(self._records))]

    def on_convicted(self, shapes: Collection[Shape], now: float) -> None:
        """A request of this shape is convicted."""
        for shape in shapes:
            record = self._records.get(shape)
            if record is not None and record.lane_until_s > now:
                record.convicted += 1

    def on_passed(self, spec: RequestSpec, now: float) -> None:
        """A request lived through its time alone."""
        if not self.is_apart(spec, now):
            return
        shape = Shape.of(spec)
        self._records[shape].passes += 1
        if self._records[shape].passes >= PASSES_MAX and not self._records[shape].is_refused:
            del self._records[shape]

    def check(self, spec: RequestSpec, now: float) -> None:
        """Raises RejectedError for a request of a shape that is refused."""
        if not self.is_apart(spec, now):
            return
        shape = Shape.of(spec)
        record = self._records[shape]
        if record.is_refused:
            minutes = max((record.lane_until_s - now) / 60, 1.0)
            raise RejectedError(
                ErrorKind.INVALID_REQUEST,
                CODE,
                f"requests like this one ({shape.text}) ended the engine {len(record.crashes_s)}"
                f" times, also alone, and are refused for another {minutes:.0f} min",
            )
