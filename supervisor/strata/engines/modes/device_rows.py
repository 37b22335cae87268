"""The rows of axes that belong to the device and not to a plan: which device, how much of it."""

from __future__ import annotations

from strata_protocol.messages import Configuration, DeviceFacts, Reason, WantedModes

from strata.engines.modes.offered import Offered
from strata.engines.modes.rows import ModeRow, ModeState, bytes_text

DEVICE_MEMORY = "device.memory"


def usable_bytes(want: WantedModes, device: DeviceFacts) -> int:
    """Bytes of the device's memory that are available and may be used; 0: not known."""
    available = device.memory_available_bytes
    return min(want.device_memory, available) if want.device_memory and available else available


def build_device_rows(offered: Offered, chosen: Configuration) -> tuple[ModeRow, ModeRow]:
    """`device` and `device_memory`; the names are the device's own."""
    want, facts, explicit = offered.wanted, offered.device, offered.explicit
    device = ModeRow(
        name="device",
        state=ModeState.READY,
        requested=want.device,
        runs=facts.name or "not known",
        is_set="device" in explicit,
    )
    because = offered.shortfalls("device_memory", chosen)
    available, usable = facts.memory_available_bytes, usable_bytes(want, facts)
    if usable < want.device_memory and available and not because:
        text = f"{facts.name or 'the device'} has {bytes_text(available)} available"
        because.append(Reason(code=DEVICE_MEMORY, text=text))
    memory = ModeRow(
        name="device_memory",
        state=ModeState.LIMITED if because else ModeState.READY,
        requested=bytes_text(want.device_memory) if want.device_memory else "auto",
        runs=bytes_text(usable) if usable else "not known",
        because=because,
        is_set="device_memory" in explicit,
    )
    return device, memory
