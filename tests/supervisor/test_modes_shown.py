"""What differs from what was asked is said in five places with one code and one sentence; what
cannot start is refused with the whole list. The whole supervisor, with a scripted engine.
"""

from __future__ import annotations

import json
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
        assert 'strata_mode_disabled{code="model.drafts",mode="spec"} 1.0' in metrics
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
