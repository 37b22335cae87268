"""How a chaos engine comes to harm: each kind of fault carried out for real, on its own process.

Owns no protocol state: what has to be written goes through the `Victim`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import struct
import threading
import time
import zlib
from typing import NoReturn, Protocol

import msgspec
import strata_protocol.messages as m
from strata_protocol.beacon_writer import BeaconWriter
from strata_protocol.exit_codes import ExitCode
from strata_protocol.framing import FRAME_VERSION, HEADER_BYTES, MAGIC, encode_frame

from tests.fakes.chaos_script import Fault

KERNEL = "matmul_chaos"
# Signals that the real engine's handlers catch; for all others the beacon has no record.
CAUGHT = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP}
)
GRANDCHILD_S = 30.0  # it ends by itself, should nobody end it
FULL_S = 0.3  # a pipe that takes nothing for so long is full
_CHUNK_BYTES = 4 << 20


class Victim(Protocol):
    beacon: BeaconWriter | None
    event_fd: int
    is_io_frozen: bool
    is_term_ignored: bool
    extra_step_ms: float

    def write(self, data: bytes) -> None:
        """Bytes for the event pipe, behind everything that was sent before."""
        ...

    def flush(self, within_s: float | None = None) -> bool:
        """Returns once the event pipe has taken everything; False where it did not in time."""
        ...

    def mark(self, name: str) -> None:
        """Leaves a file for whoever waits for something."""
        ...

    def note_child(self, pid: int) -> None: ...


def carry_out(fault: Fault, victim: Victim) -> None:
    """Returns where the engine lives on."""
    match fault.do:
        case "exit":
            _exit(victim, fault.value)
        case "signal":
            _die_by(victim, fault.value)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "freeze_io":
            victim.is_io_frozen = True
        case "freeze_compute":
            threading.Event().wait()
        case "freeze":
            victim.is_io_frozen = True
            threading.Event().wait()
        case "bad_magic" | "bad_crc" | "bad_length" | "bad_version":
            victim.write(_broken(fault.do))
        case "truncated" | "truncated_exit" | "close":
            if fault.do != "close":
                victim.write(encode_frame(_stats())[: HEADER_BYTES + 3])
            victim.flush()
            if fault.do == "truncated_exit":
                _exit(victim, fault.value)
            os.close(victim.event_fd)
            threading.Event().wait()
        case "fill":
            block = encode_frame(_stats()) * 1000
            while victim.flush(FULL_S):
                victim.write(block)
            victim.mark("full")
            threading.Event().wait()
        case "stderr":
            threading.Thread(target=_flood, args=(fault.value,), daemon=True).start()
        case "print":
            os.write(1, b"a stray print of a library\n" + encode_frame(_stats()) + b"\n")
        case "grandchild":
            victim.note_child(_leave_child(GRANDCHILD_S, has_session=False))
        case "grandchild_session":
            victim.note_child(_leave_child(fault.value or GRANDCHILD_S, has_session=True))
        case "grow":
            _grow(victim, fault.value)
        case "slow":
            victim.extra_step_ms += fault.value
        case "ignore_term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            victim.is_term_ignored = True
        case "no_parent_death":
            pass  # the engine looks for it before it arms itself


def _exit(victim: Victim, status: int) -> NoReturn:
    victim.flush()
    if victim.beacon is not None:
        victim.beacon.set(exit_status=status)
    os._exit(status)


def _die_by(victim: Victim, number: int) -> None:
    victim.flush()
    caught = number in CAUGHT
    if caught and victim.beacon is not None:
        victim.beacon.crash(number, frames=[0x10, 0x20], kernel=KERNEL)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def _stats() -> m.Stats:
    return m.Stats(
        step=1, running=0, waiting=0, kv_pages_used=0, kv_pages_cached=0, kv_pages_total=0,
        prompt_tokens=0, cached_tokens=0, output_tokens=0, step_ms=0.0, rss_bytes=0,
    )  # fmt: skip


def _broken(kind: str) -> bytes:
    payload = msgspec.msgpack.encode(_stats())
    magic = MAGIC ^ 0x0101 if kind == "bad_magic" else MAGIC
    version = FRAME_VERSION + 8 if kind == "bad_version" else FRAME_VERSION
    length = 1 << 31 if kind == "bad_length" else len(payload)
    head = struct.pack("<HBBI", magic, version, 0, length)
    crc = zlib.crc32(payload, zlib.crc32(head))
    return head + struct.pack("<I", crc ^ (kind == "bad_crc")) + payload


def _flood(count: int) -> None:
    line = (b"noise " * 16)[:95] + b"\n"
    block = line * (65536 // len(line))
    while count > 0:
        count -= os.write(2, block[: min(count, len(block))])
    os.write(2, b"\nthe flood is over\n")


def _leave_child(seconds: float, *, has_session: bool) -> int:
    """A child that inherits every descriptor and outlives what happens next."""
    pid = os.fork()
    if pid:
        return pid
    with contextlib.suppress(OSError):
        if has_session:
            os.setsid()
    time.sleep(seconds)
    os._exit(0)


def _grow(victim: Victim, count: int) -> NoReturn:
    """Takes memory until the system refuses more, then ends as the real engine does."""
    taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # noqa: PTH123, SIM115
    resource.setrlimit(resource.RLIMIT_AS, (taken + count, taken + count))
    held: list[bytearray] = []
    try:
        while True:
            held.append(bytearray(_CHUNK_BYTES))
            if victim.beacon is not None:
                victim.beacon.set(rss_bytes=len(held) * _CHUNK_BYTES)
    except MemoryError:
        held.clear()
        _exit(victim, ExitCode.OUT_OF_MEMORY)
