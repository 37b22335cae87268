"""What a crash bundle holds: one directory per abnormal end of an engine, a few small files each.

    meta.json     what ended, how, and what was decided     beacon.json  the beacon, decoded
    beacon.bin    the beacon's bytes                        frames.json  headers of the last frames
    suspects.json requests that the engine had              memory.json  of the machine
    status.json   the status at the time                    config.json  without secrets
    stderr_head.txt, stderr_tail.txt   the engine's output

No file holds a prompt, an answer, token ids, a key or the name of a client. Made here from what the
owner tells; `bundle_store.py` owns the disk.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from strata_protocol.beacon import BeaconView
from strata_protocol.beacon_layout import PAGE_BYTES
from strata_protocol.messages import HostFacts, ModePlan, WantedModes

from strata.engines.blame import blame
from strata.engines.crash_report import Crash
from strata.engines.engine_log import FILE_BYTES_MAX, log_path
from strata.engines.epoch_beacon import beacon_path
from strata.engines.exits import signal_name
from strata.engines.frame_ring import FrameNote
from strata.engines.restart import Decision, Hold, StartAfter
from strata.engines.signature import signature
from strata.observe.machine_memory import machine_memory
from strata.observe.redaction import Redactor
from strata.observe.status import Status
from strata.serving.request_facts import RequestFacts

VERSION = 1
BUNDLE_BYTES_MAX = 2 << 20
HEAD_BYTES = 64 << 10
TAIL_BYTES = 256 << 10

META, BEACON_BIN, BEACON, FRAMES = "meta.json", "beacon.bin", "beacon.json", "frames.json"
SUSPECTS, MEMORY, STATUS, CONFIG = "suspects.json", "memory.json", "status.json", "config.json"
HEAD, TAIL = "stderr_head.txt", "stderr_tail.txt"
# In the order in which they are given room; what does not fit is left out and named.
FILES = (META, BEACON_BIN, MEMORY, CONFIG, HEAD, TAIL, BEACON, SUSPECTS, FRAMES, STATUS)
TEXTS = (HEAD, TAIL)


class BundleMeta(msgspec.Struct, frozen=True, kw_only=True):
    """meta.json. All but `version` and `id` may be missing in one of another build."""

    version: int
    id: str
    when: str = ""  # UTC, ISO 8601
    epoch: int = 0
    pid: int = 0
    exit_class: str = ""
    text: str = ""  # the exit in one sentence
    status: int | None = None
    signal: int | None = None
    signal_name: str = ""
    si_code: int | None = None
    address: str = ""  # of the fault, hex
    thread: str = ""
    uptime_s: float = 0.0
    phase: str = ""  # as the supervisor saw it; the beacon has its own
    still_s: float | None = None  # from the beacon's last movement to the exit
    signature: str = ""
    sentence: str = ""
    blamed_mode: str = ""
    is_blame_certain: bool = True
    taken_out: list[str] = []
    decision: str = ""  # start, hold, stay_down
    delay_s: float = 0.0
    reason: str = ""  # of a hold
    rung: str = ""  # that the service went down to
    plan: ModePlan | None = None
    wanted: WantedModes | None = None
    build: str = ""
    build_id: str = ""
    backend: str = ""
    device: str = ""
    supervisor: str = ""  # version
    host: HostFacts | None = None
    system: str = ""
    model: str = ""
    model_bytes: int = 0
    model_header: str = ""  # hash
    command: list[str] = []
    starts: int = 0
    crashes: int = 0
    boot_attempts: int = 0
    left_out: list[str] = []  # files, with why


@dataclass(frozen=True, slots=True)
class Scene:
    """What is taken down at the moment of the exit, on the event loop. `id` is set when it is
    written."""

    crash: Crash
    when: datetime  # UTC
    at_s: float  # monotonic clock
    requests: Sequence[RequestFacts]
    status: Status | None


def bundle_files(
    scene: Scene,
    bundle_id: str,
    decision: Decision,
    *,
    config: Mapping[str, str],
    version: str,
    redactor: Redactor,
) -> dict[str, bytes]:
    """The contents of each file, at most BUNDLE_BYTES_MAX together; reads the engine's files. Run
    it in a thread. `config`: settings as they may be shown."""
    crash = scene.crash
    view, epoch = crash.exited.beacon, crash.exited.epoch
    left_out: list[str] = []
    head, tail = _output(crash, left_out)
    files: dict[str, bytes] = {
        CONFIG: _json(dict(config)),
        MEMORY: _json(machine_memory(view.rss_bytes if view else 0)),
        HEAD: redactor.clean(head).encode(),
        TAIL: redactor.clean(tail).encode(),
        SUSPECTS: _json(scene.requests),
        FRAMES: _json([_ago(note, scene.at_s) for note in crash.frames]),
    }
    if view is not None:
        files[BEACON] = _json(_clean(view, redactor))
    if view is not None and not redactor.numbers_in(view.assert_text):
        try:
            files[BEACON_BIN] = _head(beacon_path(crash.run_dir, epoch), PAGE_BYTES)
        except OSError as error:
            left_out.append(f"{BEACON_BIN}: {error.strerror}")
    if scene.status is not None:
        files[STATUS] = _json(scene.status)
    meta = _meta(scene, bundle_id, decision, version, redactor)
    files[META] = _json(meta)
    room = BUNDLE_BYTES_MAX - 4096  # for the names in left_out
    kept: dict[str, bytes] = {}
    for name in FILES:
        data = files.get(name)
        if data is None:
            continue
        if redactor.secret_in(data):
            left_out.append(f"{name}: it held a secret of the configuration")
        elif len(data) > room:
            left_out.append(f"{name}: {len(data)} bytes, {room} are free")
        else:
            kept[name] = data
            room -= len(data)
    if left_out:
        kept[META] = _json(msgspec.structs.replace(meta, left_out=left_out))
    return kept


def bundle_signature(crash: Crash) -> str:
    """The id of its signature, also where no record was made of it."""
    return crash.verdict.signature or signature(crash.exited, crash.plan).id


def _meta(
    scene: Scene, bundle_id: str, decision: Decision, version: str, redactor: Redactor
) -> BundleMeta:
    crash, exited = scene.crash, scene.crash.exited
    view = exited.beacon
    fault = view.crash if view is not None else None
    guilty = blame(exited.exit_class, exited.status, view, crash.plan)
    still_s = None if view is None else scene.at_s - view.moved_ns / 1e9
    return BundleMeta(
        version=VERSION,
        id=bundle_id,
        when=scene.when.isoformat(timespec="milliseconds"),
        epoch=exited.epoch,
        pid=exited.pid,
        exit_class=exited.exit_class.value,
        text=redactor.clean(exited.text),
        status=exited.status,
        signal=exited.signal,
        signal_name="" if exited.signal is None else signal_name(exited.signal),
        si_code=None if fault is None else fault.code,
        address="" if fault is None else f"{fault.address:#x}",
        thread="" if fault is None else fault.thread,
        uptime_s=exited.uptime_s,
        phase=exited.phase,
        still_s=still_s if still_s is not None and still_s >= 0 else None,
        signature=bundle_signature(crash),
        sentence=redactor.clean(signature(exited, crash.plan).sentence),
        blamed_mode="" if guilty is None else guilty.mode,
        is_blame_certain=guilty is None or guilty.is_certain,
        taken_out=list(crash.verdict.taken_out),
        decision=_decision_name(decision),
        delay_s=decision.delay_s if isinstance(decision, StartAfter | Hold) else 0.0,
        reason=decision.reason if isinstance(decision, Hold) else "",
        rung=_rung(decision),
        plan=crash.plan,
        wanted=crash.wanted,
        build=crash.hello.build if crash.hello else "",
        build_id=view.build_id if view else "",
        backend=crash.hello.backend if crash.hello else "",
        device=crash.hello.device if crash.hello else "",
        supervisor=version,
        host=crash.caps.host if crash.caps else None,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        model=str(crash.model),
        model_bytes=crash.caps.model.file_bytes if crash.caps else 0,
        model_header=crash.caps.model.sha256_head if crash.caps else "",
        command=list(crash.command),
        starts=crash.counters.starts,
        crashes=crash.counters.crashes,
        boot_attempts=crash.counters.boot_attempts,
    )


def _decision_name(decision: Decision) -> str:
    name = type(decision).__name__  # StartAfter, Hold, StayDown, Stopped
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower().removesuffix("_after")


def _ago(note: FrameNote, at_s: float) -> FrameNote:
    """With its time counted from the exit: negative seconds."""
    return msgspec.structs.replace(note, at_s=round(note.at_s - at_s, 6))


def _clean(view: BeaconView, redactor: Redactor) -> BeaconView:
    return msgspec.structs.replace(view, assert_text=redactor.clean(view.assert_text))


def _rung(decision: Decision) -> str:
    step = decision.step if isinstance(decision, StartAfter | Hold) else None
    return "" if step is None else step.new


def _output(crash: Crash, left_out: list[str]) -> tuple[str, str]:
    """Beginning and end of the engine's output; the end is empty where the beginning is all."""
    path = log_path(crash.run_dir, crash.exited.epoch)
    last = "\n".join(crash.output)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(HEAD_BYTES)
            file.seek(max(HEAD_BYTES, size - TAIL_BYTES))
            tail = file.read(TAIL_BYTES)
    except OSError as error:
        if crash.exited.pid:
            left_out.append(f"{HEAD}: {path.name}: {error.strerror}")
        return "", last
    shown = tail.decode("utf-8", "replace")
    if size >= FILE_BYTES_MAX:  # what came later is in no file
        shown += f"\n[...]\n{last}"
    return head.decode("utf-8", "replace"), shown


def _head(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _json(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def utc_now() -> datetime:
    return datetime.now(UTC)
