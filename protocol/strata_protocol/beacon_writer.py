"""Writes a beacon from Python: for scripted engines, which must look like the real one."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence

from strata_protocol import beacon_layout as layout


class BeaconWriter:
    """The engine's side of one beacon, on a descriptor as the supervisor passes it.

    Raises ValueError where the file has another size than a beacon.
    """

    def __init__(self, fd: int, *, build: str = "fake", pid: int | None = None) -> None:
        if os.fstat(fd).st_size != layout.PAGE_BYTES:
            raise ValueError(f"the beacon's file has not {layout.PAGE_BYTES} bytes")
        self._map = mmap.mmap(fd, layout.PAGE_BYTES)
        self._kernels: list[str] = []
        self._number("version", layout.VERSION)
        self._number("page_bytes", layout.PAGE_BYTES)
        self._number("pid", os.getpid() if pid is None else pid)
        self._number("position", layout.NONE_U16)
        self._text("build", build)
        self.move()
        self._number("magic", layout.MAGIC)

    def close(self) -> None:
        self._map.close()

    def move(self, moved_ns: int | None = None) -> None:
        """Marks a movement, now or at a time of CLOCK_MONOTONIC."""
        self._number("moved_ns", time.monotonic_ns() if moved_ns is None else moved_ns)

    def set(
        self,
        *,
        phase: str | None = None,
        mode: str | None = None,
        plan: str | None = None,
        step: int | None = None,
        rows: int | None = None,
        sequences: int | None = None,
        rids: Sequence[int] | None = None,
        rss_bytes: int | None = None,
        assert_text: str | None = None,
        exit_status: int | None = None,
    ) -> None:
        """Writes what is given, consistently, and marks a movement."""
        sequence = self._read("sequence")
        self._number("sequence", sequence + 1)
        if phase is not None:
            self._number("phase", layout.PHASES.index(phase))
        for name, text in (("mode", mode), ("plan", plan), ("assert_text", assert_text)):
            if text is not None:
                self._text(name, text)
        numbers = {"step": step, "rows": rows, "sequences": sequences, "rss_bytes": rss_bytes}
        for name, number in numbers.items():
            if number is not None:
                self._number(name, number)
        if rids is not None:
            self._number("rid_count", len(rids))
            for index, rid in enumerate(rids[: layout.RIDS_MAX]):
                self._number("rids", rid, index)
        if exit_status is not None:
            self._number("exit_status", exit_status)
            self._number("exit_state", 1)
        self._number("sequence", sequence + 2)
        self.move()

    def launch(self, kernel: str, op: int = 0, layer: int = -1) -> None:
        """The launch of a kernel; an empty id says that none runs."""
        self._number("position", self._position(kernel, op, layer))
        self.move()

    def end_step(self, step: int, ms: float, rows: int, sequences: int, phase: str) -> None:
        """Enters a finished step into the ring."""
        at = layout.PAGE.offsets["steps"] + step % layout.STEPS_KEPT * layout.STEP.bytes
        begin_ns = time.monotonic_ns() - int(ms * 1e6)
        numbers = (step, begin_ns, int(ms * 1000), rows, sequences, layout.PHASES.index(phase))
        struct.pack_into("<QQIIII", self._map, at, *numbers)
        self.move()

    def crash(
        self,
        signal: int,
        *,
        frames: Sequence[int] = (),
        kernel: str = "",
        thread: str = "compute",
        code: int = 1,
        sender_pid: int = 0,
        is_external: bool = False,
        address: int = 0,
        slot: str = "crash",
    ) -> None:
        """A crash record (`slot` "crash") or dump ("dump"). `frames` are offsets into a module
        named like the real engine.
        """
        module = layout.PAGE.offsets["modules"]
        struct.pack_into("<QQ48s", self._map, module, 0x1000, 1 << 40, b"strata-engine-cpu")
        self._number("module_count", 1)
        values = {
            "signal": signal,
            "code": code,
            "sender_pid": sender_pid,
            "address": address,
            "is_external": int(is_external),
            "frame_count": min(len(frames), layout.FRAMES_MAX),
            "position": self._position(kernel, 0, -1),
            "state": layout.RECORD_WHOLE,
        }
        base = layout.PAGE.offsets[slot]
        for name, value in values.items():
            self._put(layout.CRASH, base, name, value)
        at = base + layout.CRASH.offsets["thread"]
        struct.pack_into("<16s", self._map, at, thread.encode()[:15])
        for index, frame in enumerate(frames[: layout.FRAMES_MAX]):
            self._put(layout.CRASH, base, "frames", 0x1000 + frame, index)

    def _position(self, kernel: str, op: int, layer: int) -> int:
        if not kernel:
            return layout.NONE_U16
        if kernel not in self._kernels:
            index = len(self._kernels)
            self._kernels.append(kernel)
            at = layout.PAGE.offsets["kernels"] + index * layout.KERNEL_ID_BYTES
            struct.pack_into(f"<{layout.KERNEL_ID_BYTES}s", self._map, at, kernel.encode()[:63])
            self._number("kernel_count", len(self._kernels))
        return self._kernels.index(kernel) | op << 16 | (layer + 1) << 32

    def _number(self, name: str, value: int, index: int = 0) -> None:
        self._put(layout.PAGE, 0, name, value, index)

    def _read(self, name: str) -> int:
        value: int = struct.unpack_from("<Q", self._map, layout.PAGE.offsets[name])[0]
        return value

    def _put(self, record: layout.Record, base: int, name: str, value: int, index: int = 0) -> None:
        field = record[name]
        at = base + record.offsets[name] + index * field.item_bytes
        struct.pack_into(f"<{layout.SCALARS[str(field.kind)]}", self._map, at, value)

    def _text(self, name: str, text: str) -> None:
        count = layout.PAGE[name].count
        data = text.encode()[: count - 1]
        struct.pack_into(f"<{count}s", self._map, layout.PAGE.offsets[name], data)
