"""The beacon for readers: what an engine was doing, also after its death.

`create` makes the file that the engine is given to map; `read` looks at it without the engine's
help. Reading never raises for what is in the bytes: they were written by a process that may have
died in the middle of it, or by damaged memory. The layout is `beacon_layout.py`.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from strata_protocol import beacon_layout as layout

_READ_ATTEMPTS: Final = 64


class CrashRecord(msgspec.Struct, frozen=True):
    """A thread's place when a signal came."""

    signal: int
    code: int  # si_code
    sender_pid: int  # of whoever sent the signal; 0 for a fault of the thread itself
    is_external: bool  # another process sent it
    address: int  # of the fault; 0 where there is none
    thread: str  # "compute", "worker-1", "reader", "writer", "signals"
    kernel: str
    frames: tuple[str, ...]  # "strata-engine-cpu+0x1234", innermost first
    is_whole: bool = True  # False: the process died while the record was written


class StepRecord(msgspec.Struct, frozen=True):
    """One finished step."""

    step: int
    begin_ns: int  # CLOCK_MONOTONIC
    ms: float
    rows: int
    sequences: int
    phase: str


class BeaconView(msgspec.Struct, frozen=True):
    """What the beacon said at one moment. Text fields are empty and counts 0 where unknown."""

    phase: str  # a name of beacon_layout.PHASES
    mode: str  # being proven: "solo", "prefill", "max_context=4096", "batch", "mtp"
    plan: str
    step: int  # steps begun since READY
    moved_ns: int  # CLOCK_MONOTONIC of the last movement
    kernel: str  # running, or empty between launches
    op: int  # index in the step plan, -1 between launches
    layer: int  # -1 where the op has none
    rows: int  # of the step under way, else of the last one
    sequences: int
    rids: tuple[int, ...]  # requests with rows in that step, the first 64
    pid: int
    build: str
    rss_bytes: int
    assert_text: str
    exit_called: bool  # exit() was called, which a serving engine never does
    crash: CrashRecord | None
    steps: tuple[StepRecord, ...]  # oldest first
    exit_status: int = -1  # argument of exit(), -1 where unknown
    build_id: str = ""  # of the executable, hex
    dump: CrashRecord | None = None  # the compute thread, written when asked for by SIGUSR2
    rid_count: int = 0  # may be more than len(rids)
    is_torn: bool = False  # died, or kept writing, while the step's fields were being changed


@dataclass(frozen=True, slots=True)
class BeaconFile:
    """A beacon made for one engine. `fd` is for the engine to inherit (`pass_fds`)."""

    path: Path
    fd: int

    def read(self) -> tuple[BeaconView | None, str]:
        return read(self.path)

    def close(self) -> None:
        """Closes the descriptor; the file stays and can be read."""
        os.close(self.fd)


def create(path: Path) -> BeaconFile:
    """A new file of zeros, readable by its owner only; a file of that name is replaced, not
    changed, so that an engine which still maps it does not meet the new one.

    Raises OSError where the file cannot be made.
    """
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, layout.PAGE_BYTES)
    except OSError:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return BeaconFile(path, fd)


def read(
    source: Path | bytes | bytearray | memoryview | mmap.mmap,
) -> tuple[BeaconView | None, str]:
    """The view and "", or None and the reason why there is none: the engine has not begun, the
    bytes are no beacon, or of another version.

    Raises OSError where a file cannot be read.
    """
    if isinstance(source, Path):
        with source.open("rb") as file:
            fd = file.fileno()
            return _view(lambda at, count: os.pread(fd, count, at))
    memory = memoryview(source).cast("B")
    return _view(lambda at, count: bytes(memory[at : at + count]))


class _Bytes:
    """Fields of one record within a copy of the page."""

    __slots__ = ("base", "data", "record")

    def __init__(self, data: bytes, record: layout.Record, base: int = 0) -> None:
        self.data = data
        self.record = record
        self.base = base

    def number(self, name: str) -> int:
        return self.numbers(name, 1)[0]

    def numbers(self, name: str, count: int) -> tuple[int, ...]:
        code = layout.SCALARS[str(self.record[name].kind)]
        at = self.base + self.record.offsets[name]
        return struct.unpack_from(f"<{count}{code}", self.data, at)

    def text(self, name: str, index: int = 0, length: int | None = None) -> str:
        length = length or self.record[name].count
        at = self.base + self.record.offsets[name] + index * length
        return self.data[at : at + length].split(b"\0", 1)[0].decode("utf-8", "replace")

    def item(self, name: str, record: layout.Record, index: int = 0) -> _Bytes:
        at = self.base + self.record.offsets[name] + index * record.bytes
        return _Bytes(self.data, record, at)


def _view(pread: Callable[[int, int], bytes]) -> tuple[BeaconView | None, str]:
    sequence_at = layout.PAGE.offsets["sequence"]
    data, is_torn = b"", True
    for _ in range(_READ_ATTEMPTS):
        before = pread(sequence_at, 8)
        data = pread(0, layout.PAGE_BYTES)
        is_torn = not (before == data[sequence_at : sequence_at + 8] == pread(sequence_at, 8))
        is_torn = is_torn or bool(before and before[0] & 1)
        if not is_torn:
            break
    if len(data) < layout.PAGE.bytes:
        return None, f"a beacon has {layout.PAGE_BYTES} bytes, this has {len(data)}"
    page = _Bytes(data, layout.PAGE)
    magic, version = page.number("magic"), page.number("version")
    if not any(data[: layout.PAGE.offsets["moved_ns"]]):
        return None, "the engine has not begun to write its beacon"
    if magic != layout.MAGIC:
        return None, f"no beacon: begins with {data[:8].hex()}"
    if version != layout.VERSION:
        return None, f"beacon version {version}; this reader knows {layout.VERSION}"
    return _decode(page, is_torn), ""


def _decode(page: _Bytes, is_torn: bool) -> BeaconView:
    kernel, op, layer = _position(page, page.number("position"))
    rid_count = page.number("rid_count")
    return BeaconView(
        phase=_phase(page.number("phase")),
        mode=page.text("mode"),
        plan=page.text("plan"),
        step=page.number("step"),
        moved_ns=page.number("moved_ns"),
        kernel=kernel,
        op=op,
        layer=layer,
        rows=page.number("rows"),
        sequences=page.number("sequences"),
        rids=page.numbers("rids", min(rid_count, layout.RIDS_MAX)),
        pid=page.number("pid"),
        build=page.text("build"),
        rss_bytes=page.number("rss_bytes"),
        assert_text=page.text("assert_text"),
        exit_called=page.number("exit_state") != 0,
        crash=_crash(page, "crash"),
        steps=_steps(page),
        exit_status=page.number("exit_status") if page.number("exit_state") else -1,
        build_id=page.text("build_id"),
        dump=_crash(page, "dump"),
        rid_count=rid_count,
        is_torn=is_torn,
    )


def _phase(number: int) -> str:
    return layout.PHASES[number] if number < len(layout.PHASES) else f"unknown ({number})"


def _position(page: _Bytes, word: int) -> tuple[str, int, int]:
    """Kernel id, op and layer of a position word."""
    kernel, op, layer = word & 0xFFFF, word >> 16 & 0xFFFF, word >> 32 & 0xFFFF
    if kernel == layout.NONE_U16:
        return "", -1, -1
    known = min(page.number("kernel_count"), layout.KERNELS_MAX)
    name = page.text("kernels", kernel, layout.KERNEL_ID_BYTES) if kernel < known else ""
    return name or f"kernel {kernel}", op, layer - 1


def _crash(page: _Bytes, name: str) -> CrashRecord | None:
    record = page.item(name, layout.CRASH)
    state = record.number("state")
    if state == layout.RECORD_NONE:
        return None
    count = min(record.number("frame_count"), layout.FRAMES_MAX)
    return CrashRecord(
        signal=record.number("signal"),
        code=record.number("code"),
        sender_pid=record.number("sender_pid"),
        is_external=record.number("is_external") != 0,
        address=record.number("address"),
        thread=record.text("thread"),
        kernel=_position(page, record.number("position"))[0],
        frames=tuple(_frame(page, address) for address in record.numbers("frames", count)),
        is_whole=state == layout.RECORD_WHOLE,
    )


def _frame(page: _Bytes, address: int) -> str:
    for index in range(min(page.number("module_count"), layout.MODULES_MAX)):
        module = page.item("modules", layout.MODULE, index)
        begin = module.number("begin")
        if begin <= address < module.number("end"):
            return f"{module.text('name')}+{address - begin:#x}"
    return f"?+{address:#x}"


def _steps(page: _Bytes) -> tuple[StepRecord, ...]:
    records: list[StepRecord] = []
    for index in range(layout.STEPS_KEPT):
        item = page.item("steps", layout.STEP, index)
        if step := item.number("step"):
            records.append(
                StepRecord(
                    step=step,
                    begin_ns=item.number("begin_ns"),
                    ms=item.number("duration_us") / 1000,
                    rows=item.number("rows"),
                    sequences=item.number("sequences"),
                    phase=_phase(item.number("phase")),
                )
            )
    return tuple(sorted(records, key=lambda record: record.step))
