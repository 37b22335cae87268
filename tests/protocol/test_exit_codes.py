from __future__ import annotations

from strata_protocol.exit_codes import ExitCode


def test_one_is_never_used() -> None:
    """1 is what an interpreter, a shell or a C library exits with when nobody decided anything."""
    assert 1 not in {int(code) for code in ExitCode}
    assert all(0 <= code <= 125 for code in ExitCode)  # above: signals as a shell shows them


def test_each_says_what_it_means_and_whether_to_retry() -> None:
    retryable = {code for code in ExitCode if code.retryable}
    assert retryable == {
        ExitCode.INTERNAL,
        ExitCode.OUT_OF_MEMORY,
        ExitCode.DEVICE_LOST,
        ExitCode.PROTOCOL_BROKEN,
    }
    assert len({code.meaning for code in ExitCode}) == len(ExitCode)
    assert ExitCode(78) is ExitCode.CONFIG_REFUSED
