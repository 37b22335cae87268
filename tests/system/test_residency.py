"""Where the weights live: in the mapped file, in copies (mmap off), locked (mlock), and what is
said when they cannot be locked.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
from pathlib import Path

import pytest
from strata.engines.model_files import model_files
from strata_protocol import messages as m

from tests.system.engine_driver import Engine, submit
from tools.synth_files import split_model

PROMPT = [5, 6, 7, 8, 9]
SMALL: dict[str, object] = {"batch": 1, "max_context": 64, "prefill": 8, "kv_tokens": 64}
CAP_IPC_LOCK = 14
PR_CAPBSET_DROP = 24


@pytest.fixture(params=["whole", "split"])
def model(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    source = repository / "tests/data/oracle/tiny-qwen3.gguf"
    if request.param == "split":
        return split_model(source, tmp_path / "model", 3)[0]
    copy = tmp_path / "model.gguf"
    shutil.copyfile(source, copy)
    return copy


def limit_locks(limit_bytes: int) -> None:
    """Of this process and what it becomes, also where it is root's."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit_bytes, limit_bytes))
    status = Path("/proc/self/status").read_text()
    found = re.search(r"CapBnd:\s*(\w+)", status)
    if found is None or os.geteuid() != 0 or not int(found[1], 16) >> CAP_IPC_LOCK & 1:
        return
    if ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) != 0:
        raise OSError("the capability to lock memory cannot be given up")


def locked_bytes(engine: Engine) -> int:
    status = Path(f"/proc/{engine.process.pid}/status").read_text()
    found = re.search(r"VmLck:\s*(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def parts(ready: m.Ready) -> dict[str, int]:
    return {part.name: part.bytes for part in ready.memory}


def tokens(engine: Engine, rid: int = 1) -> list[int]:
    engine.send(submit(rid, PROMPT, max_tokens=12))
    return engine.finish(rid)[0].ids


def expected(engine_path: Path, model: Path) -> list[int]:
    with Engine(engine_path) as engine:
        ready = engine.boot(model, **SMALL)
        assert ready.plan.mmap
        assert parts(ready)["weights.mapped"] > 0
        assert "weights.copied" not in parts(ready)
        assert not any(p.phase == "copy" for p in engine.progress)
        return tokens(engine)


def test_without_mmap_nothing_is_read_from_the_file_any_more(
    engine_path: Path, model: Path
) -> None:
    want = expected(engine_path, model)
    with Engine(engine_path) as engine:
        ready = engine.boot(model, chosen={"mmap": False}, **SMALL)
        assert not ready.plan.mmap
        assert parts(ready)["weights.copied"] > 0
        assert "weights.mapped" not in parts(ready)
        assert any(p.phase == "copy" and p.done == p.total > 0 for p in engine.progress)
        for path in model_files(model):
            os.truncate(path, 0)  # a page of the file that is touched now raises SIGBUS
        assert tokens(engine) == want


@pytest.mark.parametrize("is_mapped", [True, False])
def test_mlock_locks_all_that_the_plan_names(
    engine_path: Path, model: Path, *, is_mapped: bool
) -> None:
    want = expected(engine_path, model)
    with Engine(engine_path) as engine:
        ready = engine.boot(model, chosen={"mlock": True, "mmap": is_mapped}, **SMALL)
        assert ready.plan.mlock, [probe.reasons for probe in engine.probes]
        assert locked_bytes(engine) >= sum(parts(ready).values())
        assert any(p.phase == "lock" and p.done == p.total > 0 for p in engine.progress)
        assert all(probe.ok for probe in engine.probes)
        assert tokens(engine) == want


def test_memory_that_cannot_be_locked_is_said_and_not_fatal(engine_path: Path, model: Path) -> None:
    want = expected(engine_path, model)
    with Engine(engine_path, before_exec=lambda: limit_locks(65536)) as engine:
        ready = engine.boot(model, chosen={"mlock": True}, **SMALL)
        assert not ready.plan.mlock
        (failed,) = [probe for probe in engine.probes if not probe.ok]
        assert failed.mode == "mlock"
        (reason,) = failed.reasons
        assert reason.code == "mem.memlock"
        assert "65536 bytes (RLIMIT_MEMLOCK)" in reason.text
        assert "ulimit -l" in reason.text
        assert locked_bytes(engine) == 0
        assert tokens(engine) == want
