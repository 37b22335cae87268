"""Which refusals of the first start end the service: those that no change of file or engine can
help. Any other one is waited out: the service stays up and tries again when either changes.
"""

from __future__ import annotations

from strata_protocol.exit_codes import ExitCode
from strata_protocol.messages import DeviceFacts, Reason

from strata.engines.exits import UNUSABLE
from strata.engines.handshake import Refused, Wanted
from strata.engines.modes import bytes_text, sentence
from strata.errors import EngineUnusableError, RefusedError, StrictError

# Reasons that lie in the configuration alone.
_CONFIGURATION = "config."
_DEVICE = "device.unknown"
_QUARANTINE = "config.quarantine"  # the list is ours, not the operator's
_MEMORY = "mem."


def reasons_of(refused: Refused | None, ended: str) -> list[Reason]:
    """Why the engine stays down; `ended` says how it ended, where it gave no reason."""
    if refused is not None and refused.reasons:
        return list(refused.reasons)
    return [Reason(code="engine.refused", text=ended)]


def end_where_pointless(refused: Refused, wanted: Wanted, device: DeviceFacts) -> None:
    """Raises EngineUnusableError where this engine can never run here, StrictError where --strict
    wants no less than what was asked, RefusedError (78) where the configuration has to change."""
    if refused.exit_code in UNUSABLE:
        raise EngineUnusableError("; ".join(r.text for r in refused.reasons), refused.exit_code)
    if wanted.is_strict and refused.exit_code == ExitCode.CONFIG_REFUSED:
        raise StrictError(list(refused.lines) or [sentence(r) for r in refused.reasons])
    wrong = [sentence(reason) for reason in refused.reasons if _is_configuration(reason)]
    allowed, free = wanted.modes.device_memory, device.memory_available_bytes
    if not wrong and 0 < allowed < free and all(map(_is_memory, refused.reasons)):
        # The machine has more: only the bound that was set is in the way.
        wrong = [sentence(reason) for reason in refused.reasons]
        wrong.append(
            f"raise device_memory (--device-memory), which is {bytes_text(allowed)}, or leave it"
            f" out: {bytes_text(free)} are free"
        )
    if wrong:
        title = "the configuration has to change before anything can run"
        raise RefusedError(title, wrong, ExitCode.CONFIG_REFUSED)


def _is_memory(reason: Reason) -> bool:
    return reason.code.startswith(_MEMORY)


def _is_configuration(reason: Reason) -> bool:
    if reason.code == _QUARANTINE:
        return False
    return reason.code == _DEVICE or reason.code.startswith(_CONFIGURATION)
