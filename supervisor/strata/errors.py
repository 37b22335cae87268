"""The exceptions that end a command, and the exit status each stands for.

    StrataError             70  a bug or a fault with no better name
    ├── ConfigError         78  a flag, a key of strata.toml, or what they ask for together
    ├── RefusedError        --  `plan`: the engine refuses; the status is the engine's
    │   └── StrictError     78  --strict and a requested mode that cannot run as asked
    ├── EngineUnusableError --  the engine cannot run here at all; the status is the engine's
    ├── TextStuckError      71  threads that work on text and do not come back; a restart mends it
    ├── EngineStuckError    70  an engine that nothing ends: no second one may start beside it
    ├── ModelMissingError   66  the model file is not there
    ├── ModelDataError      65  the file is not a GGUF model
    ├── ModelReadError      74  the file is there but cannot be read
    ├── EngineMissingError  72  the engine's executable is not installed
    ├── AddressError        69  the port is taken or the address is not ours
    ├── HeldError           75  --exit-on-hold and an engine that has crashed too often
    └── RunDirError         73  the run directory is taken by another supervisor or unusable

The numbers are those of sysexits.h; docs/operations.md lists them for operators. A text is one
sentence that names the thing and what is allowed. Errors of single requests are not here: they
are `serving.request.RejectedError` and `Failed`.
"""

from __future__ import annotations


class StrataError(Exception):
    """Ends the command with `exit_code` after printing its text, without a traceback."""

    exit_code = 70


class ConfigError(StrataError):
    exit_code = 78


class RefusedError(StrataError):
    """Carries one line per reason."""

    def __init__(self, text: str, lines: list[str], exit_code: int) -> None:
        super().__init__(text)
        self.lines = lines
        self.exit_code = exit_code


class StrictError(RefusedError):
    """Carries a line for each mode that was set and cannot run as set, and one per reason."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("--strict: not all can run as asked", lines, ConfigError.exit_code)


class EngineUnusableError(StrataError):
    """The engine's own sentence: its command line (64) or the processor (69)."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class TextStuckError(StrataError):
    exit_code = 71


class EngineStuckError(StrataError):
    """A process that waits in the kernel and does not end after SIGKILL."""


class ModelMissingError(StrataError):
    exit_code = 66


class ModelDataError(StrataError):
    exit_code = 65


class ModelReadError(StrataError):
    exit_code = 74


class EngineMissingError(StrataError):
    exit_code = 72


class AddressError(StrataError):
    exit_code = 69


class RunDirError(StrataError):
    exit_code = 73


class HeldError(StrataError):
    exit_code = 75
