"""What differs from what was asked is said in five places with one code and one sentence; what
cannot start is refused with the whole list. The whole supervisor, with a scripted engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.test_serve import command, served, start

KERNEL = {
    "axis": "batch", "above": 2, "code": "kernel.missing",
    "text": "no kernel for matmul weight=iq4_nl act=int8 rows=4 (blk.0.ffn_down.weight): none",
}  # fmt: skip
BUDGET = {"axis": "batch", "above": 4, "code": "mem.kv_budget", "text": "38 GiB are free"}
DRAFTS = {"axis": "spec", "above": 0, "code": "model.drafts", "text": "the drafts are no good"}


def batch_row(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return next(row for row in rows if row["name"] == "batch")


async def test_five_places_say_the_same(tmp_path: Path) -> None:
    behaviour: dict[str, object] = {"rules": [KERNEL, DRAFTS], "spec": 2, "device": "Processor X"}
    async with served(tmp_path, "--batch", "4", behaviours=[behaviour]) as s:
        said = f"{KERNEL['text']} [kernel.missing]"
        assert said in s.shown.decode()
        code, shown = await command("status", "--run-dir", str(s.run_dir))
        assert code == 1
        assert f"DEGRADED: batch runs 2, requested 4: {said}" in shown
        assert "Processor X" in shown
        assert "the drafts are no good [model.drafts]" in shown
        row = batch_row((await s.status())["modes"])  # type: ignore[arg-type]
        assert row == {
            "name": "batch", "state": "limited", "requested": "4", "runs": "2", "is_set": True,
            "because": [{"code": KERNEL["code"], "text": KERNEL["text"]}],
        }  # fmt: skip
        status, models = await s.get("/v1/models")
        assert status == 200
        assert batch_row(json.loads(models)["data"][0]["strata"]["modes"]) == row
        metrics = (await s.get("/metrics"))[1]
        assert 'strata_mode_disabled{code="kernel.missing",mode="batch"} 1.0' in metrics
        # What follows from it and was not set has no reasons of its own.
        assert 'strata_mode_disabled{code="model.drafts",mode="mtp"} 1.0' in metrics
        assert 'mode="spec"' not in metrics
        assert 'mode="batch_mtp"' not in metrics
        assert shown.count("the drafts are no good") == 1
        assert 'mode="prefill"' not in metrics
        assert (await s.complete()).status == 200
        s.process.terminate()
        _, log = await s.process.communicate()
        assert f"batch runs 2, requested 4: {said}" in log.decode()


async def test_what_nobody_set_does_not_degrade_the_service(tmp_path: Path) -> None:
    async with served(tmp_path, behaviours=[{"rules": [KERNEL]}]) as s:
        assert (await s.status())["state"] == "ready"
        row = batch_row((await s.status())["modes"])  # type: ignore[arg-type]
        assert (row["state"], row["runs"], row["is_set"]) == ("limited", "2", False)


async def test_strict_exits_with_the_whole_list(tmp_path: Path) -> None:
    flags = ("--strict", "--batch", "8", "--spec", "4")
    behaviour: dict[str, object] = {"rules": [KERNEL, BUDGET, DRAFTS], "silent_at": "plan"}
    process = await start(tmp_path, *flags, behaviours=[behaviour])
    _, err = await process.communicate()
    assert process.returncode == 78
    shown = err.decode()
    end = shown[shown.index("strata-supervisor: --strict") :].splitlines()
    assert end[1:] == [
        "  batch: requested 8, available 2 (limited)",
        "    - the script takes 4 sequences [fake.batch]",
        f"    - {KERNEL['text']} [kernel.missing]",
        "    - 38 GiB are free [mem.kv_budget]",
        "  spec: requested 4, available 0 (unsupported)",
        "    - the drafts are no good [model.drafts]",
    ]
    assert "Traceback" not in shown
    assert " error " not in shown


LESS: dict[str, object] = {
    "runs": {"batch": 1},
    "unproven": {"batch": [{"code": "probe.differs", "text": "row 1 differs"}]},
}


async def test_strict_refuses_what_the_probe_takes_out(tmp_path: Path) -> None:
    process = await start(tmp_path, "--strict", "--batch", "4", behaviours=[LESS])
    out, err = await process.communicate()
    assert process.returncode == 78
    assert b"batch: requested 4, available 1 (limited)\n" in err
    assert b"    - row 1 differs [probe.differs]\n" in err
    assert b"ready: " not in out
    assert b" error " not in err  # we ended the engine for it: that is no fault of its own
    assert (tmp_path / "script.json.starts").read_text() == "1"


async def test_without_strict_the_probes_word_is_shown(tmp_path: Path) -> None:
    async with served(tmp_path, "--batch", "4", behaviours=[LESS]) as s:
        status = await s.status()
        assert status["state"] == "degraded"
        assert status["reason"] == "batch runs 1, requested 4: row 1 differs [probe.differs]"


async def test_strict_is_content_when_all_that_was_set_runs(tmp_path: Path) -> None:
    behaviour: dict[str, object] = {"rules": [KERNEL]}
    async with served(tmp_path, "--strict", "--batch", "2", behaviours=[behaviour]) as s:
        assert (await s.status())["state"] == "ready"


@pytest.mark.parametrize("status", [64, 69])
@pytest.mark.parametrize("verb", ["serve", "plan"])
async def test_an_engine_that_cannot_run_here_ends_the_command(
    tmp_path: Path, status: int, verb: str
) -> None:
    behaviour: dict[str, object] = {"die_at": "launch", "exit": status, "last": "no avx512 here"}
    process = await start(tmp_path, behaviours=[behaviour], verb=verb)
    _, err = await process.communicate()
    assert process.returncode == status
    assert err.decode().splitlines()[-1] == "strata-supervisor: no avx512 here"
    assert (tmp_path / "script.json.starts").read_text() == "1"


async def test_caps_that_name_no_reason_are_a_fault(tmp_path: Path) -> None:
    behaviours: list[dict[str, object]] = [{"bad_reason": True}, {}]
    async with served(tmp_path, behaviours=behaviours) as s:
        restarts = (await s.status())["restarts"]
        assert "CAPS names reason" in restarts["last"]["text"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("device.unknown", 'no device is called "foo"; the devices are 0 ("fake device", cpu)'),
        ("config.kv", 'kv is "f64"; allowed are auto, f32'),
    ],
)
async def test_what_only_the_configuration_can_mend_ends_the_service(
    tmp_path: Path, code: str, text: str
) -> None:
    behaviour: dict[str, object] = {"refuse": [{"code": code, "text": text}]}
    process = await start(tmp_path, "--device", "foo", behaviours=[behaviour])
    out, err = await process.communicate()
    assert process.returncode == 78
    assert err.decode().splitlines()[-2:] == [
        "strata-supervisor: the configuration has to change before anything can run:",
        f"  {text} [{code}]",
    ]
    assert b"tries again" not in err
    assert b"ready: " not in out
    assert (tmp_path / "script.json.starts").read_text() == "1"


async def test_what_a_new_file_can_mend_is_waited_for(tmp_path: Path) -> None:
    refuse = [{"code": "model.architecture", "text": "an architecture of the future"}]
    process = await start(tmp_path, behaviours=[{"refuse": refuse}])
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while b"tries again when" not in (line := await process.stderr.readline()):
            assert line, "it ended"
    assert process.returncode is None
    process.terminate()
    await process.communicate()
    assert process.returncode == 0


async def test_what_had_no_effect_is_said(tmp_path: Path) -> None:
    note = {"code": "config.without_kernel", "text": "--without-kernel 'x*' hides nothing"}
    async with served(tmp_path, behaviours=[{"notes": [note]}]) as s:
        s.process.terminate()
        _, log = await s.process.communicate()
    (line,) = [line for line in log.decode().splitlines() if note["text"] in line]
    assert " warning " in line
    assert line.endswith(f"{note['text']} [{note['code']}]")


async def test_an_end_from_outside_is_no_crash_in_any_place(tmp_path: Path) -> None:
    async with served(tmp_path, behaviours=[{}]) as s:
        pid = (await s.status())["engine"]["pid"]  # type: ignore[index]
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while True:
                status = await s.status()
                engine = status["engine"]
                if status["state"] == "ready" and engine and engine["pid"] != pid:  # type: ignore[index]
                    break
        assert status["restarts"]["crashes"] == 0  # type: ignore[index]
        metrics = (await s.get("/metrics"))[1]
        assert 'strata_engine_crashes_total{class="external"}' not in metrics
        assert "strata_engine_starts_total 2.0" in metrics
    dies = {"die_at": "submit", "signal": signal.SIGSEGV}
    (tmp_path / "again").mkdir()
    async with served(tmp_path / "again", behaviours=[dies, {}]) as s:
        await (await s.complete()).read()
        assert 'strata_engine_crashes_total{class="signal"} 1.0' in (await s.get("/metrics"))[1]


async def test_what_is_cleared_by_hand_is_gone_from_status_at_once(tmp_path: Path) -> None:
    dies = {"die_at": "probe:batch", "signal": signal.SIGSEGV}
    async with served(tmp_path, "--batch", "4", behaviours=[dies, {}]) as s:
        assert len((await s.status())["quarantine"]) == 1  # type: ignore[arg-type]
        code, text = await command("quarantine", "clear", "--all", "--run-dir", str(s.run_dir))
        assert code == 0, text
        status = await s.status()
        assert status["quarantine"] == []
        assert batch_row(status["modes"])["runs"] == "1"  # type: ignore[arg-type]


async def test_a_refusal_of_pages_is_shown_in_a_few_lines(tmp_path: Path) -> None:
    """The beginning and how much is left out, also with --why; --json has all of it."""
    reason = {"code": "kernel.missing", "text": " ".join(f"no kernel {i};" for i in range(400))}
    process = await start(tmp_path, behaviours=[{"refuse": [reason]}])
    run_dir = ("--run-dir", str(tmp_path / "run"))
    try:
        async with asyncio.timeout(60):
            while (await command("status", *run_dir))[0] != 3:  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.05)
        _, shown = await command("status", *run_dir)
        assert "REFUSED: no kernel 0; no kernel 1;" in shown
        assert max(map(len, shown.splitlines())) < 800
        assert " characters more)" in shown
        _, why = await command("status", "--why", *run_dir)
        assert max(map(len, why.splitlines())) <= 120
        assert any(line.startswith("now: refused: no kernel 0;") for line in why.splitlines())
        _, text = await command("status", "--json", *run_dir)
        assert reason["text"] in json.loads(text)["reason"]
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()
