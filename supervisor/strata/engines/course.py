"""What engines are started with until a reload changes it: settings, the memory of crashes that
goes with model file and executable, and the facts by which the restart policy knows the place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from strata.engines.crash_memory import CrashMemory
from strata.engines.epoch import EngineSetup
from strata.engines.handshake import nothing_less
from strata.engines.less import Less
from strata.engines.modes import Choice


@dataclass(frozen=True, slots=True)
class Course:
    setup: EngineSetup
    memory: CrashMemory

    @classmethod
    def of(
        cls,
        setup: EngineSetup,
        rung: Callable[[Choice], tuple[int, str]],
        less: Callable[[], Less | None] = nothing_less,
    ) -> Course:
        """`rung` chooses the rung of the ladder at CAPS, `less` says what to ask for at most."""
        memory = CrashMemory(
            setup.run_dir,
            setup.wanted.files,
            setup.launch.executable,
            setup.quarantine_trial_s,
            setup.clock,
        )
        wanted = replace(setup.wanted, quarantine=memory.offer, rung=rung, less=less)
        return cls(replace(setup, wanted=wanted), memory)

    def with_rung(
        self,
        rung: Callable[[Choice], tuple[int, str]],
        less: Callable[[], Less | None] = nothing_less,
    ) -> Course:
        wanted = replace(self.setup.wanted, rung=rung, less=less)
        return replace(self, setup=replace(self.setup, wanted=wanted))

    @property
    def files(self) -> tuple[Path, ...]:
        """Of the model, the one that it is known by first."""
        return self.setup.wanted.files

    @property
    def inputs(self) -> tuple[Path, ...]:
        """Model files and, last, the executable."""
        return (*self.files, self.setup.launch.executable)

    @property
    def key(self) -> tuple[object, ...]:
        """Tells courses apart, contents of model file and executable included, as of the last
        look at them."""
        return (repr((self.inputs, self.memory.inputs, self.place)),)

    def can_return_from(self, new: Course) -> bool:
        """Whether an engine of this course can be started again once `new` has replaced it: not
        where nothing differs but what the executable's file holds."""
        return (self.inputs, self.place) != (new.inputs, new.place)

    @property
    def place(self) -> tuple[object, ...]:
        """What was asked for."""
        asked = self.setup.wanted
        modes = (asked.modes, sorted(asked.explicit), asked.is_strict, asked.without_kernels)
        return (asked.model, asked.ple, *modes)
