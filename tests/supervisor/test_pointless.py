"""Which refusals end the service at its first start."""

from __future__ import annotations

import pytest
from strata.config import Config
from strata.engines.handshake import Refused, Wanted
from strata.engines.modes import wanted_modes
from strata.engines.pointless import end_where_pointless
from strata.errors import RefusedError
from strata_protocol.exit_codes import ExitCode
from strata_protocol.messages import DeviceFacts, Reason

MIB = 1 << 20
SHORT = Reason(code="mem.insufficient", text="need 104 MiB, have 50 MiB")
DEVICE = DeviceFacts(memory_available_bytes=1024 * MIB)


def wanted(device_memory: int) -> Wanted:
    config = Config(device_memory=device_memory)
    return Wanted("run", "m.gguf", wanted_modes(config), frozenset({"device_memory"}), False)


def refused(*reasons: Reason) -> Refused:
    return Refused(reasons, exit_code=ExitCode.CONFIG_REFUSED)


def test_too_little_device_memory_ends_the_start_and_names_the_flag() -> None:
    with pytest.raises(RefusedError) as caught:
        end_where_pointless(refused(SHORT), wanted(50 * MIB), DEVICE)
    assert caught.value.exit_code == 78
    short, mend = caught.value.lines
    assert short == "need 104 MiB, have 50 MiB [mem.insufficient]"
    assert mend.startswith("raise device_memory (--device-memory), which is 50.0 MiB, or leave it")
    assert mend.endswith("out: 1.0 GiB are free")


@pytest.mark.parametrize(
    ("device_memory", "reasons"),
    [
        (0, [SHORT]),
        (2048 * MIB, [SHORT]),  # more than is free: it is the machine that has too little
        (50 * MIB, [SHORT, Reason(code="kernel.missing", text="no kernel")]),
    ],
)
def test_what_the_machine_or_the_files_may_mend_is_waited_out(
    device_memory: int, reasons: list[Reason]
) -> None:
    end_where_pointless(refused(*reasons), wanted(device_memory), DEVICE)
