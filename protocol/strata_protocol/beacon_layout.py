"""The bytes of the beacon: one table of fields, from which the offsets here and the C++ structs in
`engine/base/beacon_layout.h` (by `protocol/schema/generate.py`) both follow.

Little-endian, every field on a multiple of its size, so C++ places it where this table does.
A change of the table is a new VERSION: both sides come from one build, nothing is read across.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

MAGIC: Final = int.from_bytes(b"STRATABN", "little")
VERSION: Final = 1
PAGE_BYTES: Final = 64 * 1024

KERNELS_MAX: Final = 512
RIDS_MAX: Final = 64
FRAMES_MAX: Final = 48
MODULES_MAX: Final = 32
STEPS_KEPT: Final = 512
NONE_U16: Final = 0xFFFF

# In the order of their numbers; new ones go to the end.
PHASES: Final = (
    "launch",
    "handshake",
    "map",
    "pack",
    "allocate",
    "probe",
    "ready",
    "prefill",
    "decode",
    "drain",
    "dying",
    "draft",
)
# How far the writing of a crash record has come.
RECORD_NONE: Final = 0
RECORD_BEGUN: Final = 1
RECORD_WHOLE: Final = 2

SCALARS: Final = {"u64": "Q", "u32": "I", "i32": "i", "u16": "H", "u8": "B"}


@dataclass(frozen=True, slots=True)
class Record:
    """A struct: its fields with their offsets. `bytes` is a multiple of 8."""

    name: str
    fields: tuple[Field, ...]
    offsets: dict[str, int]
    bytes: int

    def __getitem__(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)


@dataclass(frozen=True, slots=True)
class Field:
    """`kind` is a key of SCALARS, "text" (`count` bytes, zero-padded) or a record."""

    name: str
    kind: str | Record
    count: int
    comment: str

    @property
    def item_bytes(self) -> int:
        if isinstance(self.kind, Record):
            return self.kind.bytes
        return 1 if self.kind == "text" else struct.calcsize(SCALARS[self.kind])


def record(name: str, *fields: tuple[str, str | Record, int, str]) -> Record:
    """Lays out the fields one behind the other. Raises ValueError where one is not aligned."""
    offsets: dict[str, int] = {}
    offset = 0
    made = tuple(Field(*field) for field in fields)
    for field in made:
        align = 8 if isinstance(field.kind, Record) or field.kind == "text" else field.item_bytes
        if offset % align:
            raise ValueError(f"{name}.{field.name} at {offset} is not a multiple of {align}")
        offsets[field.name] = offset
        offset += field.item_bytes * field.count
    if offset % 8:
        raise ValueError(f"{name} has {offset} bytes, not a multiple of 8")
    return Record(name, made, offsets, offset)


CRASH: Final = record(
    "BeaconCrash",
    ("state", "u32", 1, "0 none, 1 being written, 2 whole"),
    ("signal", "u32", 1, ""),
    ("code", "i32", 1, "si_code"),
    ("sender_pid", "u32", 1, "si_pid where a process sent the signal, else 0"),
    ("address", "u64", 1, "si_addr of a fault, else 0"),
    ("is_external", "u32", 1, "1: another process sent the signal"),
    ("frame_count", "u32", 1, ""),
    ("position", "u64", 1, "BeaconPage::position at the time"),
    ("thread", "text", 16, ""),
    ("frames", "u64", FRAMES_MAX, "absolute return addresses, innermost first"),
)
MODULE: Final = record(
    "BeaconModule",
    ("begin", "u64", 1, "load address"),
    ("end", "u64", 1, ""),
    ("name", "text", 48, "file name without folder"),
)
STEP: Final = record(
    "BeaconStep",
    ("step", "u64", 1, "0 = empty"),
    ("begin_ns", "u64", 1, "CLOCK_MONOTONIC"),
    ("duration_us", "u32", 1, ""),
    ("rows", "u32", 1, ""),
    ("sequences", "u32", 1, ""),
    ("phase", "u32", 1, ""),
)
PAGE: Final = record(
    "BeaconPage",
    ("magic", "u64", 1, "written last, when the rest is there"),
    ("version", "u32", 1, ""),
    ("page_bytes", "u32", 1, ""),
    ("pid", "u32", 1, ""),
    ("kernel_count", "u32", 1, ""),
    ("build", "text", 64, ""),
    ("build_id", "text", 48, "of the executable, hex; empty where the linker wrote none"),
    # Words of their own: each store stands alone.
    ("moved_ns", "u64", 1, "CLOCK_MONOTONIC of the last movement"),
    ("position", "u64", 1, "kernel (bits 0-15), op (16-31), layer + 1 (32-47); 0xFFFF = none"),
    ("rss_bytes", "u64", 1, ""),
    # Consistent with each other while `sequence` is even and does not change.
    ("sequence", "u64", 1, "odd while the fields to `rids` are written"),
    ("step", "u64", 1, "steps begun"),
    ("phase", "u32", 1, ""),
    ("rows", "u32", 1, ""),
    ("sequences", "u32", 1, ""),
    ("rid_count", "u32", 1, "all there are; `rids` holds the first"),
    ("mode", "text", 32, "being proven (max_context with =N), or empty"),
    ("plan", "text", 256, ""),
    ("rids", "u64", RIDS_MAX, ""),
    # Written once, by whichever thread comes first.
    ("exit_state", "u32", 1, "1: exit() was called"),
    ("exit_status", "i32", 1, "its argument, -1 where unknown"),
    ("assert_state", "u32", 1, "1: taken, 2: text is whole"),
    ("module_count", "u32", 1, ""),
    ("assert_text", "text", 512, ""),
    ("crash", CRASH, 1, "the signal that ends the process"),
    ("dump", CRASH, 1, "the compute thread when it was asked (SIGUSR2)"),
    ("modules", MODULE, MODULES_MAX, "[0] is the executable"),
    ("kernels", "text", KERNELS_MAX * 64, "[512][64] ids"),
    ("steps", STEP, STEPS_KEPT, "ring: step s is at s % 512"),
)
KERNEL_ID_BYTES: Final = 64
if PAGE.bytes > PAGE_BYTES:
    raise ValueError(f"the beacon's fields take {PAGE.bytes} bytes, the page has {PAGE_BYTES}")
