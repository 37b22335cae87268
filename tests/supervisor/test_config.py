"""Settings: one schema for flags, strata.toml and --explain; errors that name key and range."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from strata import cli
from strata.config import Config
from strata.config_source import fields, load, parse, read_toml
from strata.errors import ConfigError
from strata_protocol.limits import MODE_MAX

MODEL = Path(__file__).resolve().parents[1] / "data" / "oracle" / "tiny-llama.gguf"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = cli.main(argv)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--batch", "400"], "batch = 400 is not allowed; allowed: a whole number from 1 to 256"),
        (["--batch", "0"], "from 1 to 256"),
        (["--prefill", str(MODE_MAX["prefill"] + 1)], f"from 1 to {MODE_MAX['prefill']}"),
        (["--threads", str(MODE_MAX["threads"] + 1)], f"from 0 to {MODE_MAX['threads']}"),
        (["--kv-tokens", str(MODE_MAX["kv_tokens"] + 1)], f"from 0 to {MODE_MAX['kv_tokens']}"),
        (["--batch", "many"], "batch = 'many'"),
        (["--device-memory", "24GiX"], "device_memory = '24GiX' is not allowed; allowed: a size"),
        (["--device-memory", "2PiB"], "from 0 to 1PiB (24GiB, 512MiB, 1.5e9 or a plain number)"),
        (["--device-memory", "-1"], "device_memory = '-1' is not allowed"),
        (["--device-memory", "1.3B"], "device_memory = '1.3B'"),
        (["--port", "70000"], "from 0 to 65535"),
        (["--drain-s", "nan"], "a number from 0 to 3600"),
        (["--expert-cache", "nonsense"], "allowed: auto, off or a number of experts"),
        (["--kv", "f64"], "auto or f32 or f16 or bf16 or int8 or q4_0"),
        (["--isa", "avx9"], "allowed: auto or portable or avx2 or avx512vnni or neon"),
        (["--backend", "tpu"], "backend = 'tpu' is not allowed; allowed: cpu or cuda or metal"),
        (["--bacth", "4"], "unknown flag --bacth; did you mean --batch"),
        (["-m", "a.gguf"], "unknown flag -m; did you mean --model? (see strata-supervisor serve "),
        (["--max-model-len=9"], "unknown flag --max-model-len; did you mean --max-context?"),
        (["-np", "4"], "did you mean --batch?"),
        (["-t8"], "did you mean --threads?"),
        (["-ctk", "f16"], "unknown flag -ctk; did you mean --kv?"),
        (["-md", "d.gguf"], "did you mean --mtp?"),
        (["--draft-max", "4"], "unknown flag --draft-max; did you mean --spec? (see "),
        (["--draft-p-min", "0.5"], "did you mean --spec-min-p?"),
        (["--alias", "x"], "did you mean --served-model-name?"),
        (["-ub512"], "did you mean --prefill?"),
        (["-ngl", "99"], "unknown flag -ngl; there is no such setting: a device runs all layers"),
        (["--drift-max", "4"], "unknown flag --drift-max (see "),
        (["-q"], "unknown flag -q (see strata-supervisor serve --help)"),
        (["--without-kernel", ""], "without_kernel"),
        (["one", "surplus"], "unexpected argument surplus"),
        (["one", "--model", "two"], "the model is given twice: one as MODEL, two with --model"),
        (["--batch"], "strata-supervisor: --batch needs a value (see strata-supervisor serve "),
        (["--strict=1"], "strata-supervisor: --strict takes no value"),
    ],
)
def test_wrong_flags_say_what_is_allowed(
    capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    status, _, err = run(capsys, "serve", *argv)
    assert status == 78
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("btach = 3", "unknown key btach; did you mean batch?"),
        ("device_memory = '8 parsecs'", "device_memory = '8 parsecs' is not allowed"),
        ("device_memory = 0.5", "device_memory = 0.5 is not allowed"),
        ("device_memory = true", "device_memory = true is not allowed"),
        ("batch = true", "batch = true is not allowed"),
        ("batch = 3.5", "a whole number"),
        ('port = "8000"', "port = '8000' is not allowed"),
        ("model = 3", "model = 3"),
        ("api_keys = ['']", "api_keys = (hidden)"),
        ("request_timeout_s = inf", "request_timeout_s"),
        ("batch = = 3", "is not valid TOML"),
        ("[server]\nport = 1", "unknown table [server]; keys stand at top level, not in tables"),
        ("[[batch]]", "unknown table [batch]; keys stand at top level"),
        ('without_kernel = "x"', "without_kernel = 'x' is not allowed; allowed: a list of texts"),
        ("without_kernel = [true]", "without_kernel = [true] is not allowed"),
    ],
)
def test_wrong_toml_names_file_and_key(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "strata.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_toml(path)
    assert says in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("flags", [["--batch", "4"], ["-np", "4"]])
def test_a_reload_says_where_settings_are_changed(
    capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    status, _, err = run(capsys, "reload", *flags)
    assert status == 78
    assert f"unknown flag {flags[0]}; a reload takes the settings" in err
    assert "change strata.toml, or restart the service with other flags" in err


def test_flags_win_over_toml_and_toml_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "strata.toml"
    path.write_text('batch = 3\nkv = "f32"\nwithout_kernel = ["a*"]\ndrain_s = 5\n')
    settings = load({"batch": 5}, path)
    config = settings.config
    assert (config.batch, config.kv, config.without_kernel) == (5, "f32", ("a*",))
    assert config.drain_s == 5.0
    assert config.prefill == Config().prefill
    assert settings.is_set("batch")
    assert settings.sources["kv"] == str(path)
    assert not settings.is_set("prefill")


@pytest.mark.parametrize(
    ("text", "count", "shown"),
    [
        ("24GiB", 24 << 30, "24GiB"), ("512 mib", 512 << 20, "512MiB"),
        ("1e9", 10**9, "1000000000"),
        ("1.5GiB", 3 << 29, "1536MiB"), ("2GB", 2 * 10**9, "1953125KiB"), ("4096", 4096, "4KiB"),
        ("0", 0, "0"), ("100B", 100, "100"),
    ],
)  # fmt: skip
def test_sizes_are_written_with_units(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, count: int, shown: str
) -> None:
    field = fields()["device_memory"]
    assert parse(field, text, "test") == count
    assert parse(field, field.shown(count), "test") == count
    path = tmp_path / "strata.toml"
    path.write_text(f"device_memory = '{text}'\nbody_bytes_max = 1e6\n")
    config = load({}, path).config
    assert (config.device_memory, config.body_bytes_max) == (count, 1_000_000)
    status, out, _ = run(capsys, "config", "--device-memory", text)
    assert status == 0
    assert f"device_memory = {shown}  (--device-memory)" in out
    assert "body_bytes_max = 16MiB  (default)" in out


def test_toml_in_the_working_directory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load({}, None).config.batch == 8
    (tmp_path / "strata.toml").write_text("batch = 2")
    assert load({}, None).config.batch == 2


def test_missing_config_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "config", "--config", "/does/not/exist.toml")
    assert status == 78
    assert "/does/not/exist.toml: cannot be read: No such file" in err


def test_explain_names_every_key_and_hides_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "config", "--explain", "--api-key", "hush")
    assert status == 0
    for key, field in fields().items():
        assert f"\n{key} = " in "\n" + out
        assert f"--{field.flag};" in out
        assert field.help in out
    assert "hush" not in out


def test_every_default_is_allowed_and_every_key_has_a_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as done:
        cli.main(["serve", "--help"])
    assert done.value.code == 0
    text = capsys.readouterr().out
    for field in fields().values():
        assert f"--{field.flag}" in text
        if field.kind in ("int", "bytes", "float", "choice"):
            assert parse(field, field.shown(field.default), "test") == field.default


def test_repeatable_and_boolean_flags(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--without-kernel", "a*", "--without-kernel", "b:kv=int8", "--no-prefix-cache"]
    status, out, _ = run(capsys, "config", *argv)
    assert status == 0
    assert "without_kernel = [a*, b:kv=int8]  (--without-kernel)" in out
    assert "prefix_cache = false  (--no-prefix-cache)" in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["serv"], "unknown command serv; did you mean serve? (see strata-supervisor --help)"),
        (
            ["zzz"],
            "unknown command zzz; there are serve, status, reload, drain, quarantine, crashes",
        ),
        (["--model", "x", "serve"], "--model stands before the command; flags follow it"),
        (["status", "-m"], "unknown flag -m (see strata-supervisor status --help)"),
        (["status", "--log-level", "info"], "unknown flag --log-level"),
    ],
)
def test_wrong_commands_get_one_sentence(
    capsys: pytest.CaptureFixture[str], argv: list[str], says: str
) -> None:
    status, out, err = run(capsys, *argv)
    assert (status, out) == (78, "")
    assert err.startswith(f"strata-supervisor: {says}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("flag", ["version", "--version", "-V"])
def test_version(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    status, out, _ = run(capsys, flag)
    assert status == 0
    assert out.startswith("strata-supervisor ")


def test_help_names_what_a_value_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    text = capsys.readouterr().out
    for flag in (
        "--kv {auto,f32,f16,bf16,int8,q4_0}",
        "--run-dir DIR",
        "--model FILE",
        "--batch N",
        "{cpu,cuda,metal}",
    ):
        assert flag in text
    for noise in ("STR", "CHOICE", "default empty", "default []"):
        assert noise not in text


def test_models_that_cannot_be_served(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = run(capsys, "serve")
    assert (status, "no model given" in err) == (78, True)
    status, _, err = run(capsys, "serve", str(tmp_path / "none.gguf"))
    assert (status, "does not exist" in err) == (66, True)
    status, _, err = run(capsys, "serve", "--model", str(tmp_path))
    assert (status, "is a directory without a *.gguf file in it" in err) == (74, True)
    foreign = tmp_path / "foreign.gguf"
    foreign.write_bytes(b"GGUF")
    status, _, err = run(capsys, "serve", "--model", str(tmp_path))
    assert (status, "is a directory; name a file in it: foreign.gguf\n" in err) == (74, True)
    for letter in "abc":
        (tmp_path / f"{letter}.gguf").touch()
    status, _, err = run(capsys, "plan", str(tmp_path))
    assert (status, "in it: a.gguf, b.gguf, c.gguf and 1 more" in err) == (74, True)
    status, _, err = run(capsys, "serve", "/dev/null")
    assert (status, "is not a file" in err) == (74, True)
    status, _, err = run(capsys, "serve", str(MODEL), "--engine", str(foreign))
    assert (status, "is not an executable file" in err) == (78, True)


def test_no_command_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys)
    assert status == 78
    assert "serve" in out


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 something else", "is not a GGUF file: it looks like a zip archive"),
        (b"\x80\x02}q\x00", "a Python pickle"),
        (b'\x10\x00\x00\x00\x00\x00\x00\x00{"a":{}}', "a safetensors file"),
        (b"<!DOCTYPE html>\n<html>", "looks like text (an error page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
        (b"FUGG\x00\x00\x00\x03", "big-endian GGUF"),
        (bytes(64), "zeros (an unfinished download?)"),
        (b"\x7fELF\x02\x01", "binary data of an unknown format"),
    ],
)
def test_foreign_files_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    status, _, err = run(capsys, "serve", str(path))
    assert status == 65
    assert says in err
    assert str(path) in err
    assert "b'" not in err


@pytest.mark.parametrize("command", ["serve", "status"])
def test_a_file_is_no_run_directory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    path = tmp_path / "file"
    path.touch()
    # The engine is not started: the run directory is looked at first.
    rest = [str(MODEL), "--engine", sys.executable] if command == "serve" else []
    status, _, err = run(capsys, command, *rest, "--run-dir", str(path))
    assert status == 73
    assert f"run directory {path}: is not a directory" in err


@pytest.mark.parametrize("kept", [4, 20, 30, 700, 2000])
def test_a_file_cut_in_its_header_is_one_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kept: int
) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(MODEL.read_bytes()[:kept])
    # An engine that would wait for ever: it is not started.
    status, _, err = run(capsys, "serve", str(path), "--engine", "/bin/cat")
    assert status == 65
    assert err.startswith(f"strata-supervisor: {path}: ")
    assert err.endswith("(truncated download?)\n")
    assert err.count("cut.gguf") == 1
    assert err.count("\n") == 1
