"""`crashes` and `beacon` on run directories, served or not, and that no text leaves a request."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tarfile
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from strata import cli, cli_beacon
from strata.engines import stale
from strata.observe import bundle
from strata.observe.bundle import BundleMeta
from strata.observe.bundle_store import bundle_ids, crashes_path, new_id, write_bundle
from strata.observe.status import LastExit, RestartStatus
from strata_protocol import beacon
from strata_protocol.beacon_writer import BeaconWriter

from tests.supervisor.test_serve import command, served
from tests.waiting import until

OLD = datetime(2026, 1, 1, tzinfo=UTC)
NEW = datetime(2026, 1, 2, tzinfo=UTC)


def run(capsys: pytest.CaptureFixture[str], run_dir: Path, *argv: str) -> tuple[int, str, str]:
    status = cli.main([*argv, "--run-dir", str(run_dir)])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def put(run_dir: Path, when: datetime, signature: str, **files: bytes) -> str:
    name = new_id(run_dir, when, signature)
    meta = BundleMeta(
        version=1, id=name, when=when.isoformat(), exit_class="signal", signature=signature,
        text="killed by SIGSEGV (11)", sentence="SIGSEGV (11) in kernel k", blamed_mode="batch",
        taken_out=["batch"], decision="start",
    )  # fmt: skip
    parts = {bundle.META: msgspec.json.encode(meta), bundle.CONFIG: b'{"api_keys": "(1 hidden)"}'}
    write_bundle(run_dir, name, parts | {k.replace("_txt", ".txt"): v for k, v in files.items()})
    return name


def test_nothing_recorded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = tmp_path / "never"
    assert run(capsys, missing, "crashes")[:2] == (
        0,
        f"no crash is recorded in {missing}/crashes\n",
    )
    assert run(capsys, missing, "crashes", "--json")[:2] == (0, "[]\n")
    for action in ("show", "export"):
        status, out, err = run(capsys, missing, "crashes", action)
        assert (status, out) == (78, "")
        assert "no crash is recorded" in err
    assert not missing.exists()


def test_list_show_and_how_a_bundle_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old = put(tmp_path, OLD, "aaaaaaaa1111")
    new = put(tmp_path, NEW, "bbbbbbbb2222")
    (crashes_path(tmp_path) / old / bundle.META).write_bytes(b"{")
    status, out, _ = run(capsys, tmp_path, "crashes")
    first, second = out.splitlines()
    assert status == 0
    assert first.startswith(f"{new}  2026-01-02 00:00:00 UTC")
    assert first.endswith(
        "ago  signal  SIGSEGV (11) in kernel k  mode batch  started again at once without batch"
    )
    assert second.startswith(f"{old}  damaged: meta.json: ")
    newest, damaged = json.loads(run(capsys, tmp_path, "crashes", "list", "--json")[1])
    assert (newest["id"], newest["mode"], newest["taken_out"]) == (new, "batch", ["batch"])
    assert (damaged["id"], len(damaged["damaged"])) == (old, 1)
    for named in ([], [new], [new[:10]], ["bbbbbbbb2222"], ["bbbbbbbb"]):
        status, out, _ = run(capsys, tmp_path, "crashes", "show", *named)
        assert status == 0, named
        assert out.startswith(f"crash {new}\n")
        # What is advised can be copied as it is.
        where = f"--run-dir {tmp_path}"
        assert f"`strata-supervisor crashes export {new} {where}`" in out
        assert f"`strata-supervisor quarantine clear ID {where}`" in out
    status, out, _ = run(capsys, tmp_path, "crashes", "show", old)
    assert status == 73
    assert "damaged: meta.json" in out
    found = json.loads(run(capsys, tmp_path, "crashes", "show", "--json")[1])
    assert (found["id"], found["meta"]["decision"], found["damaged"]) == (new, "start", [])
    status, _, err = run(capsys, tmp_path, "crashes", "show", "2026")
    assert (status, err) == (78, f"strata-supervisor: crashes: 2026 may be any of {new}, {old}\n")
    for wrong in ("zzz", "", "../..", "cccccccc"):
        status, _, err = run(capsys, tmp_path, "crashes", "show", wrong)
        assert status == 78
        assert f"no bundle {wrong!r}; there are {new}, {old}" in err


def test_of_one_signature_the_newest_is_meant(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    put(tmp_path, OLD, "aaaaaaaa1111")
    new = put(tmp_path, NEW, "aaaaaaaa1111")
    assert f"crash {new}\n" in run(capsys, tmp_path, "crashes", "show", "aaaaaaaa1111")[1]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["crashes", "drop"], "ACTION"),
        (["crashes", "list", "x"], "crashes list takes no ID"),
        (["crashes", "show", "--out", "x"], "crashes show takes no --out"),
        (["beacon", "--epoch", "x"], "--epoch"),
    ],
)
def test_wrong_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, argv: list[str], says: str
) -> None:
    status, out, err = run(capsys, tmp_path, *argv)
    assert (status, out) == (78, "")
    assert says in err


def test_a_run_directory_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("crashes", "beacon"):
        status, _, err = run(capsys, tmp_path / "file", name)
        assert status == 73
        assert "is not a directory" in err
    (tmp_path / "crashes").write_bytes(b"")
    status, _, err = run(capsys, tmp_path, "crashes")
    assert (status, err) == (73, f"strata-supervisor: {tmp_path}/crashes: Not a directory\n")


# --- export -----------------------------------------------------------------------------------


def test_export(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = put(tmp_path, NEW, "aaaaaaaa1111", stderr_head_txt=b"a line\n")
    folder = crashes_path(tmp_path) / name
    (folder / "core").write_bytes(b"of the operator: may hold anything")
    out = tmp_path / "x.tar.gz"
    status, shown, _ = run(capsys, tmp_path, "crashes", "export", name, "--out", str(out))
    assert status == 0
    assert shown.startswith(f"wrote {out} (")
    assert out.stat().st_mode & 0o777 == 0o600
    with tarfile.open(out) as archive:
        members = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
        assert {m.uname + m.gname for m in archive} == {""}
    assert set(members) == {f"{name}/{n}" for n in ("meta.json", "config.json", "stderr_head.txt")}
    assert members[f"{name}/stderr_head.txt"] == b"a line\n"
    status, _, err = run(capsys, tmp_path, "crashes", "export", "--out", str(out))
    assert status == 73
    assert "is there already" in err
    status, _, err = run(capsys, tmp_path, "crashes", "export", "--out", str(tmp_path / "no/x"))
    assert status == 73
    assert "No such file or directory" in err


def test_export_writes_into_the_working_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = put(tmp_path / "run", NEW, "aaaaaaaa1111")
    found = json.loads(run(capsys, tmp_path / "run", "crashes", "export", "--json")[1])
    assert (found["id"], found["file"]) == (name, f"strata-crash-{name}.tar.gz")
    assert found["bytes"] == (tmp_path / found["file"]).stat().st_size


@pytest.mark.parametrize(
    "case",
    [
        ("stderr_tail.txt", b"a key: sk-canary-1234", "a secret of the configuration"),
        ("status.json", b'{"x": "sk-canary-1234"}', "a secret of the configuration"),
        ("stderr_head.txt", b"ids 1, 2, 3, 4, 5, 6, 7, 8", "row of numbers"),
        ("config.json", b'{"api_keys": "plain"}', "setting that is secret"),
        ("config.json", b"{", "setting that is secret"),
        ("meta.json", None, "has no meta.json"),
    ],
)
def test_export_looks_again_at_what_it_gives_away(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[str, bytes | None, str],
) -> None:
    file, data, says = case
    monkeypatch.chdir(tmp_path)
    (tmp_path / "strata.toml").write_text('api_keys = ["sk-canary-1234"]\n')
    name = put(tmp_path, NEW, "aaaaaaaa1111")
    path = crashes_path(tmp_path) / name / file
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)
    status, out, err = run(capsys, tmp_path, "crashes", "export")
    assert (status, out) == (73, "")
    assert says in err
    assert "nothing was exported" in err
    assert list(tmp_path.glob("*.gz")) == []


# --- beacon -----------------------------------------------------------------------------------


def make_beacon(run_dir: Path, epoch: int) -> BeaconWriter:
    file = beacon.create(run_dir / f"beacon-{epoch}")
    try:
        return BeaconWriter(file.fd, build="9.9")
    finally:
        file.close()


def test_beacon_of_the_newest_and_of_an_older_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old, new = make_beacon(tmp_path, 9), make_beacon(tmp_path, 10)
    (tmp_path / "beacon-x").write_bytes(b"")
    old.crash(11, frames=[0x10], kernel="attention")
    new.set(
        phase="decode", step=41, rows=3, sequences=2, rids=[5, 6], plan="batch 4", rss_bytes=1 << 30
    )
    new.launch("matmul_q4", op=7, layer=3)
    new.end_step(40, 2.5, 2, 2, "decode")
    status, out, _ = run(capsys, tmp_path, "beacon")
    assert status == 0
    assert out.splitlines()[0] == f"engine start 10, pid {os.getpid()}, build 9.9: has ended"
    for line in (
        "phase decode, kernel matmul_q4, layer 3, operation 7 of the step",
        "41 steps begun since it was ready",
        "the step under way: 2 sequences, 3 rows, requests 5, 6",
        "memory of the engine: 1.0 GiB",
        "  step 40: decode, 2 sequences, 2 rows, 2.5 ms",
    ):
        assert line in out.splitlines()
    assert re.search(r"its last movement was 0\.\d\d s ago", out)
    status, out, _ = run(capsys, tmp_path, "beacon", "--epoch", "9")
    assert status == 0
    assert "SIGSEGV (11) in the thread compute, kernel attention" in out
    assert "  strata-engine-cpu+0x10" in out
    stale.write_record(tmp_path, os.getpid(), 10, "run")
    found = json.loads(run(capsys, tmp_path, "beacon", "--json")[1])
    assert (found["epoch"], found["is_running"]) == (10, True)
    assert found["beacon"]["rids"] == [5, 6]
    assert 0 <= found["still_s"] < 20
    status, _, err = run(capsys, tmp_path, "beacon", "--epoch", "3")
    assert status == 78
    assert "there are 9, 10" in err
    new.move(time.monotonic_ns() + 10**12)
    assert "before the machine was started" in run(capsys, tmp_path, "beacon")[1]
    old.close()
    new.close()


def test_beacons_that_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = run(capsys, tmp_path, "beacon")
    assert status == 78
    assert "no engine has left a beacon" in err
    for data, why in (
        (b"", "this has 0"),
        (bytes(64 << 10), "has not begun to write"),
        (b"x" * (64 << 10), "no beacon: begins with"),
    ):
        (tmp_path / "beacon-1").write_bytes(data)
        status, _, err = run(capsys, tmp_path, "beacon")
        assert status == 73
        assert why in err


def test_watching_a_beacon(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_beacon(tmp_path, 1)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        writer.set(step=len(waits))
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(cli_beacon.time, "sleep", wait)
    status, out, _ = run(capsys, tmp_path, "beacon", "--watch")
    assert status == 130
    assert re.findall(r"(\d) steps? begun", out) == ["0", "1", "2"]
    writer.close()


# --- the whole service ------------------------------------------------------------------------

CANARY = "canaryXq7"
KEY = "sk-key-canaryKq9"


async def until_crashed(run_dir: Path, count: int = 1) -> None:
    await until(lambda: len(bundle_ids(run_dir)) >= count)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_no_text_of_a_request_is_written_anywhere(tmp_path: Path, path: str) -> None:
    dies = {"die_at": "tokens", "die_after": 3, "signal": signal.SIGSEGV}
    async with served(
        tmp_path, "--api-key", KEY, "--log-level", "debug", behaviours=[dies, {}]
    ) as s:
        headers = {"Authorization": f"Bearer {KEY}"}
        text = f"{CANARY} what follows is mine alone"
        chat: dict[str, object] = {
            "model": "default", "stop": [f"{CANARY} stop"], "max_tokens": 20, "user": f"{CANARY}",
            "messages": [
                {"role": "system", "content": f"{CANARY} system"},
                {"role": "user", "content": text},
            ],
        }  # fmt: skip
        ids = [17, 93, 104, 61, 88, 45, 29, 73, 51, 67]
        plain: dict[str, object] = {"model": "default", "prompt": ids, "max_tokens": 20}
        body = chat if path.startswith("/v1/chat") else plain
        async with s.session.post(s.base + path, json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
        await until_crashed(s.run_dir)
        s.process.send_signal(signal.SIGTERM)
        assert s.process.stdout is not None
        out, err = await s.process.communicate()
    (name,) = bundle_ids(s.run_dir)
    suspects = json.loads((crashes_path(s.run_dir) / name / bundle.SUSPECTS).read_bytes())
    assert [r["was_in_step"] for r in suspects] == [True]
    written = [path for path in s.run_dir.rglob("*") if path.is_file()]
    assert {bundle.META, bundle.STATUS, bundle.BEACON_BIN} <= {path.name for path in written}
    row = re.compile(rb"\D+".join(str(i).encode() for i in ids[:4]))
    for where, data in [*((p, p.read_bytes()) for p in written), ("out", out), ("err", err)]:
        for secret in (CANARY, KEY, "mine alone"):
            assert secret.encode() not in data, f"{secret} is in {where}"
        assert row.search(data) is None, f"token ids are in {where}"
    assert b"(1 hidden)" in (crashes_path(s.run_dir) / name / bundle.CONFIG).read_bytes()
    assert f"strata-supervisor crashes show {name}".encode() in err


async def test_commands_beside_a_running_service_and_after_it(tmp_path: Path) -> None:
    dies = {"die_at": "submit", "signal": signal.SIGSEGV}
    async with served(tmp_path, behaviours=[dies, {}]) as s:
        async with await s.complete() as response:
            assert response.status == 200
        await until_crashed(s.run_dir)
        (name,) = bundle_ids(s.run_dir)
        run_dir = str(s.run_dir)
        async with asyncio.timeout(20):
            while True:
                restarts = (await s.status())["restarts"]
                assert isinstance(restarts, dict)
                if restarts["last"]["bundle"]:
                    break
        assert restarts["last"]["bundle"] == name
        code, text = await command("status", "--run-dir", run_dir)
        assert f"[crashes show {name}]" in text
        code, text = await command("crashes", "show", name, "--run-dir", run_dir)
        assert code == 0
        assert "Started again at once." in text
        code, text = await command("beacon", "--run-dir", run_dir)
        assert code == 0
        assert text.startswith(f"engine start 2, pid {await s.engine_pid()}, build fake: runs\n")
        s.process.kill()
        await s.process.wait()
        code, text = await command("crashes", "--run-dir", run_dir)
        assert (code, text.split()[0]) == (0, name)
        status = json.loads((crashes_path(s.run_dir) / name / bundle.STATUS).read_bytes())
        assert status["model"]["name"] == "tiny-llama"


def test_status_without_a_bundle_is_as_before() -> None:
    """A state file of an older supervisor has none."""
    old = b'{"starts": 1, "crashes": 1, "last": {"exit_class": "s", "text": "t", "ago_s": 1}}'
    assert msgspec.json.decode(old, type=RestartStatus).last == LastExit(
        exit_class="s", text="t", ago_s=1.0
    )
