"""The memory of modes that ended engines: which are out, for how long, and when they are tried
again. Pure: the clock is given and the disk is `quarantine_file.py`'s.

A record applies to one build, device and model file. A mode that is out comes back on trial at the
first engine start after a quiet time; a relapse takes it out at once for twice as long, a good
spell (restart.py) on trial clears the record. A mode that is out while the very crash comes again
had no part in it, nor had one whose crashes a request is convicted of: it is acquitted and offered
again. What one and the same request does twice is no second evidence against a mode.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from strata.engines.blame import Blame
from strata.engines.good_run import GOOD_READY_S, GOOD_SERVED
from strata.engines.signature import NUMERIC, Signature

RECORDS_MAX = 64
SUSPECTS_MAX = 256
TRIAL_WAIT_S = 6 * 3600.0
TRIAL_WAIT_MAX_S = 7 * 86_400.0


class QuarantineState(enum.StrEnum):
    SUSPECTED = "suspected"  # once more with the same signature and it is out; offered till then
    QUARANTINED = "quarantined"  # not offered
    TRIAL = "trial"  # offered again, on trial
    ACQUITTED = "acquitted"  # the same crash came without it; offered, and not blamed for it again


# Remembered only: the mode is offered as if there were no record. They lapse with the quiet time.
IDLE_STATES = frozenset({QuarantineState.SUSPECTED, QuarantineState.ACQUITTED})


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What a record is about besides the mode. `header` is the hash of the model file's header,
    empty before the engine's CAPS has told it."""

    build: str
    device: str
    path: str
    size: int
    mtime_ns: int
    header: str = ""

    def is_same(self, other: Place) -> bool:
        """Whether a record made at one applies at the other."""
        return (
            (self.build, self.device, self.path) == (other.build, other.device, other.path)
            and (self.size, self.mtime_ns) == (other.size, other.mtime_ns)
            and (self.header == other.header or not self.header or not other.header)
        )

    def is_outdated_by(self, other: Place) -> bool:
        """Whether `other` is what this place has become: another build or other file contents."""
        is_here = (self.path, self.device) == (other.path, other.device)
        return is_here and not self.is_same(other)


class QuarantineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One mode that ended an engine at one place."""

    mode: str  # entry of OFFER's list: "batch", "max_context=8192", "kv=f16", ...
    place: Place
    signature: str  # id of the crash
    sentence: str  # the crash in words
    state: QuarantineState
    count: int  # crashes that implicated it
    relapses: int = 0
    first: float  # seconds of the wall clock
    last: float
    suspects: tuple[str, ...] = ()  # fingerprints of requests that were in these crashes

    @property
    def id(self) -> str:
        """Short and stable: the same for the same mode at the same place."""
        place = self.place
        key = "\0".join((place.build, place.device, place.path, self.mode))
        return hashlib.sha256(key.encode()).hexdigest()[:8]

    @property
    def text(self) -> str:
        """Why the mode is out, in one sentence."""
        if self.signature == NUMERIC.id:
            return f"{self.mode} ended requests: {self.sentence} (quarantine {self.id})"
        times = "an engine" if self.count == 1 else f"{self.count} engines"
        return f"{self.mode} ended {times}: {self.sentence} (quarantine {self.id})"

    def is_acquitted_of(self, signature: Signature) -> bool:
        """Whether this crash has come without the mode before."""
        is_same = self.sentence == signature.sentence
        return self.state is QuarantineState.ACQUITTED and is_same

    @property
    def is_out(self) -> bool:
        return self.state is QuarantineState.QUARANTINED


class QuarantineRow(msgspec.Struct, frozen=True, kw_only=True):
    """A record as status and command line show it. Times: seconds of the wall clock."""

    id: str
    mode: str
    state: QuarantineState
    sentence: str
    signature: str
    count: int
    first: float
    last: float
    trial_from: float | None  # a start from then on offers the mode again; None: no trial is due
    build: str
    device: str
    model: str


@dataclass(frozen=True, slots=True)
class Started:
    """What the start of an engine did to the records."""

    out: Sequence[QuarantineRecord]  # must not be offered
    on_trial: Sequence[QuarantineRecord]  # from now on
    forgotten: Sequence[QuarantineRecord]


class Quarantine:
    """All records of one run directory.

    `trial_wait_s`: quiet time before the first trial, 0 for no trials; it doubles with each
    relapse, up to TRIAL_WAIT_MAX_S. `clock` is the wall clock: records outlive the process.
    """

    def __init__(
        self,
        trial_wait_s: float,
        clock: Callable[[], float],
        records: Iterable[QuarantineRecord] = (),
    ) -> None:
        self._trial_wait_s = trial_wait_s
        self._clock = clock
        self.records: list[QuarantineRecord] = list(records)

    def wait_s(self, record: QuarantineRecord) -> float | None:
        """Quiet seconds after the last crash until a trial; None for never."""
        if self._trial_wait_s <= 0:
            return None
        return min(self._trial_wait_s * 2.0 ** min(record.relapses, 32), TRIAL_WAIT_MAX_S)

    def rows(self) -> list[QuarantineRow]:
        """All records as they are shown."""
        rows = []
        for record in self.records:
            wait_s = self.wait_s(record) if record.is_out else None
            rows.append(
                QuarantineRow(
                    id=record.id,
                    mode=record.mode,
                    state=record.state,
                    sentence=record.sentence,
                    signature=record.signature,
                    count=record.count,
                    first=record.first,
                    last=record.last,
                    trial_from=None if wait_s is None else record.last + wait_s,
                    build=record.place.build,
                    device=record.place.device,
                    model=record.place.path,
                )
            )
        return rows

    def on_start(self, place: Place) -> Started:
        """An engine starts at `place`: forgets what another build or another content of the file
        did, and puts on trial what has been quiet for long enough."""
        now = self._clock()
        forgotten = self.forget_outdated(place)
        kept, on_trial = [], []
        for record in self.records:
            # Where the clock was set back the quiet time starts anew.
            found = msgspec.structs.replace(record, last=min(record.last, now))
            wait_s = self.wait_s(found)
            is_due = wait_s is not None and now - found.last >= wait_s
            if is_due and found.place.is_same(place):
                if found.state in IDLE_STATES:
                    forgotten.append(found)
                    continue
                if found.is_out:
                    found = msgspec.structs.replace(found, state=QuarantineState.TRIAL)
                    on_trial.append(found)
            kept.append(found)
        self.records = kept
        return Started(out=self.out(place), on_trial=on_trial, forgotten=forgotten)

    def forget_outdated(self, place: Place) -> list[QuarantineRecord]:
        """Removes and returns what another build or another content of the file did."""
        return self.forget(r.id for r in self.records if r.place.is_outdated_by(place))

    def out(self, place: Place) -> list[QuarantineRecord]:
        """Records of modes that are out at `place`."""
        return [r for r in self.records if r.is_out and r.place.is_same(place)]

    def on_crash(
        self,
        place: Place,
        signature: Signature,
        blame: Blame | None,
        suspects: frozenset[str] = frozenset(),
    ) -> list[QuarantineRecord]:
        """An engine crashed at `place`, with the requests of these fingerprints in its step.
        Returns the records that are out now and were not."""
        taken = []
        found: QuarantineRecord | None = None
        self._acquit(place, signature, blame)
        for record in list(self.records):
            if not record.place.is_same(place):
                continue
            is_blamed = blame is not None and blame.mode == record.mode
            if is_blamed:
                found = record
            is_relapse = record.state is QuarantineState.TRIAL and (
                is_blamed or record.signature == signature.id
            )
            if is_relapse:
                seen = _with(record, suspects)
                taken.append(self._take_out(seen, place, signature, is_relapse=True))
            elif is_blamed and record.is_acquitted_of(signature):
                continue
            elif is_blamed and blame is not None:
                is_same = record.signature == signature.id
                seen = _with(record if is_same else self._new(blame, place, signature), suspects)
                is_one_request = is_same and len(seen.suspects) == 1
                if record.is_out or blame.is_certain or (is_same and not is_one_request):
                    again = self._take_out(_with(record, suspects), place, signature)
                    if not record.is_out:
                        taken.append(again)
                elif is_same:
                    now = self._clock()
                    self._put(msgspec.structs.replace(seen, count=seen.count + 1, last=now))
                else:
                    self._put(seen)
        if found is None and blame is not None:
            record = _with(self._new(blame, place, signature), suspects)
            self._put(record)
            if record.is_out:
                taken.append(record)
        return taken

    def on_convicted(self, place: Place, suspect: str) -> list[QuarantineRecord]:
        """A request is convicted of its crashes: returns the records that are out for them at
        `place`, which are acquitted."""
        freed = [r for r in self.out(place) if suspect in r.suspects]
        for record in freed:
            self._put(msgspec.structs.replace(record, state=QuarantineState.ACQUITTED))
        return freed

    def on_good(self, place: Place, ready_s: float, served: int) -> list[QuarantineRecord]:
        """An engine at `place` has been ready for `ready_s` and served so many requests. Returns
        the records on trial that this clears."""
        if ready_s < GOOD_READY_S or served < GOOD_SERVED:
            return []
        cleared = [
            r for r in self.records if r.state is QuarantineState.TRIAL and r.place.is_same(place)
        ]
        self.forget(r.id for r in cleared)
        return cleared

    def forget(self, ids: Iterable[str]) -> list[QuarantineRecord]:
        """Removes records by id; returns those that were there."""
        gone = set(ids)
        removed = [r for r in self.records if r.id in gone]
        self.records = [r for r in self.records if r.id not in gone]
        return removed

    def adopt(self, records: Sequence[QuarantineRecord]) -> None:
        """Takes in records found on disk that are not known yet."""
        known = {r.id for r in self.records}
        for record in records:
            if record.id not in known:
                self._put(record)

    def _acquit(self, place: Place, signature: Signature, blame: Blame | None) -> None:
        """Of a crash that came although they were out. Sentences are compared: the frames within
        one kernel differ by the types that a mode chooses. A smaller size of the blamed axis is
        the same mode still."""
        axis = "" if blame is None else blame.mode.partition("=")[0]
        for record in self.out(place):
            is_other = record.mode.partition("=")[0] != axis
            if is_other and record.sentence == signature.sentence:
                self._put(msgspec.structs.replace(record, state=QuarantineState.ACQUITTED))

    def _new(self, blame: Blame, place: Place, signature: Signature) -> QuarantineRecord:
        now = self._clock()
        return QuarantineRecord(
            mode=blame.mode,
            place=place,
            signature=signature.id,
            sentence=signature.sentence,
            state=QuarantineState.QUARANTINED if blame.is_certain else QuarantineState.SUSPECTED,
            count=1,
            first=now,
            last=now,
        )

    def _take_out(
        self,
        record: QuarantineRecord,
        place: Place,
        signature: Signature,
        *,
        is_relapse: bool = False,
    ) -> QuarantineRecord:
        taken = msgspec.structs.replace(
            record,
            place=place if place.header else record.place,
            signature=signature.id,
            sentence=signature.sentence,
            state=QuarantineState.QUARANTINED,
            count=record.count + 1,
            relapses=record.relapses + is_relapse,
            last=self._clock(),
        )
        self._put(taken)
        return taken

    def _put(self, record: QuarantineRecord) -> None:
        """Adds or replaces; where there are too many, the least important one goes."""
        kept = [r for r in self.records if r.id != record.id]
        while len(kept) >= RECORDS_MAX:
            kept.remove(min(kept, key=lambda r: (r.state not in IDLE_STATES, r.last)))
        self.records = [*kept, record]


def _with(record: QuarantineRecord, suspects: frozenset[str]) -> QuarantineRecord:
    """The record with more suspects, the newest SUSPECTS_MAX of them."""
    known = [found for found in record.suspects if found not in suspects]
    kept = (*known, *sorted(suspects))[-SUSPECTS_MAX:]
    return msgspec.structs.replace(record, suspects=kept)
