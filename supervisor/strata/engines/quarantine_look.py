"""What of a run directory's quarantine the next engine start would apply, without starting it.

Only looks: the file stays as it is, records that are due for a trial included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from strata_protocol.messages import Hello

from strata.engines import quarantine_file
from strata.engines.place import hash_of, place_of, size_and_time
from strata.engines.quarantine import Quarantine, QuarantineRecord, QuarantineRow


@dataclass(frozen=True, slots=True)
class QuarantineLook:
    """The records of a run directory at one moment. `problem`: why they could not be read."""

    records: Sequence[QuarantineRecord]
    model: Path
    stat: tuple[int, int]  # of the model files
    build: str  # hash of the engine's executable
    trial_wait_s: float
    now: float  # seconds of the wall clock
    problem: str = ""

    def out(self, hello: Hello) -> list[QuarantineRecord]:
        """Those of modes that would not be offered to the engine that says HELLO."""
        place = place_of(hello, self.build, self.model, self.stat)
        return list(self._memory(self.records).on_start(place).out)

    def rows(self, records: Sequence[QuarantineRecord]) -> list[QuarantineRow]:
        """As status and command line show them."""
        return self._memory(records).rows()

    def _memory(self, records: Sequence[QuarantineRecord]) -> Quarantine:
        return Quarantine(self.trial_wait_s, lambda: self.now, records)


def look(
    run_dir: Path,
    files: Sequence[Path],
    executable: Path,
    trial_wait_s: float,
    clock: Callable[[], float],
) -> QuarantineLook:
    """Reads the files; `files` are the model's. A quarantine that cannot be read applies to
    nothing, as at a start."""
    records: Sequence[QuarantineRecord] = ()
    problem = ""
    path = run_dir / quarantine_file.FILE_NAME
    try:
        records = quarantine_file.read(run_dir) or ()
    except quarantine_file.UnreadableError as error:
        problem = f"{path} cannot be understood: {error}"
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror or error}"
    return QuarantineLook(
        records,
        files[0],
        size_and_time(files),
        hash_of(executable),
        trial_wait_s,
        clock(),
        problem,
    )
