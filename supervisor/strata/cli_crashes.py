"""`crashes list`, `crashes show` and `crashes export`: the crash bundles of a run directory.

Works on files alone, whether or not a supervisor runs there. Exit status: 0 done, also where there
was no crash; 78 no such bundle; 73 a directory that cannot be read, a damaged bundle, or an export
that cannot be written or holds what must not leave the machine.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from strata.config_source import Settings, fields, hidden
from strata.errors import ConfigError, RunDirError
from strata.observe import bundle
from strata.observe.bundle import utc_now
from strata.observe.bundle_store import (
    Bundle,
    bundle_ids,
    crashes_path,
    read_bundle,
    read_file,
    read_meta,
)
from strata.observe.bundle_text import bundle_text, decision_text, list_line
from strata.observe.redaction import Redactor


def list_crashes(settings: Settings, *, as_json: bool) -> int:
    """Prints one line per bundle, newest first. Raises RunDirError."""
    run_dir = run_dir_of(settings)
    found = [read_meta(run_dir, name) for name in _ids(run_dir)]
    if as_json:
        print(msgspec.json.encode([_row(one) for one in found]).decode())
    elif not found:
        print(f"no crash is recorded in {crashes_path(run_dir)}")
    else:
        now = utc_now()
        for one in found:
            print(list_line(one, now))
    return 0


def show_crash(settings: Settings, wanted: str | None, *, as_json: bool) -> int:
    """Prints one bundle; the newest where `wanted` is None. Raises ConfigError, RunDirError."""
    run_dir = run_dir_of(settings)
    found = read_bundle(run_dir, _find(run_dir, wanted))
    if as_json:
        print(msgspec.json.encode(_whole(found)).decode())
    else:
        print(bundle_text(found, utc_now(), run_dir), end="")
    return RunDirError.exit_code if found.meta is None else 0


def export_crash(settings: Settings, wanted: str | None, out: Path | None, *, as_json: bool) -> int:
    """Writes one bundle as a tar.gz, by default into the working directory, after a look for what
    must not leave the machine. Raises ConfigError, RunDirError."""
    run_dir = run_dir_of(settings)
    name = _find(run_dir, wanted)
    found = read_bundle(run_dir, name)
    contents = _checked(found, hidden(settings.config))
    path = out or Path(f"strata-crash-{name}.tar.gz")
    data = _packed(name, contents)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise RunDirError(
            f"crashes export: {path} is there already; name another with --out"
        ) from None
    except OSError as error:
        raise RunDirError(f"crashes export: {path}: {error.strerror}") from None
    try:
        with open(fd, "wb") as file:  # noqa: PTH123  the mode is that of os.open
            file.write(data)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise RunDirError(f"crashes export: {path}: {error.strerror}") from None
    if as_json:
        print(msgspec.json.encode({"id": name, "file": str(path), "bytes": len(data)}).decode())
    else:
        print(f"wrote {path} ({len(data)} bytes): {', '.join(contents)}")
    return 0


def run_dir_of(settings: Settings) -> Path:
    """Raises RunDirError for a file in its place."""
    run_dir = Path(settings.config.run_dir).expanduser().absolute()
    if run_dir.exists() and not run_dir.is_dir():
        raise RunDirError(f"run directory {run_dir}: is not a directory")
    return run_dir


def _ids(run_dir: Path) -> list[str]:
    try:
        return bundle_ids(run_dir)
    except OSError as error:
        raise RunDirError(f"{crashes_path(run_dir)}: {error.strerror}") from None


def _find(run_dir: Path, wanted: str | None) -> str:
    """The one bundle that is meant by its id, the beginning of it, or its signature: of several
    with that signature the newest. Raises ConfigError, RunDirError."""
    ids = _ids(run_dir)
    if not ids:
        raise ConfigError(f"crashes: no crash is recorded in {crashes_path(run_dir)}")
    if wanted is None:
        return ids[0]
    if wanted in ids:
        return wanted
    matching = [one for one in ids if one.startswith(wanted)] if wanted else []
    if len(matching) > 1:
        raise ConfigError(f"crashes: {wanted} may be any of {', '.join(matching)}")
    if not matching and len(wanted) >= 8:
        matching = [one for one in ids if read_meta(run_dir, one).signature.startswith(wanted)]
    if not matching:
        raise ConfigError(f"crashes: no bundle {wanted!r}; there are {', '.join(ids)}")
    return matching[0]


def _row(found: Bundle) -> dict[str, object]:
    meta = found.meta
    if meta is None:
        return {"id": found.id, "damaged": found.problems}
    return {
        "id": found.id,
        "when": meta.when,
        "class": meta.exit_class,
        "text": meta.text,
        "signature": meta.signature,
        "sentence": meta.sentence,
        "mode": meta.blamed_mode,
        "taken_out": meta.taken_out,
        "done": decision_text(found),
    }


def _whole(found: Bundle) -> dict[str, object]:
    return {
        "id": found.id,
        "path": str(found.path),
        "damaged": found.problems,
        "meta": found.meta,
        "beacon": found.beacon,
        "suspects": found.requests,
        "memory": found.memory,
        "frames": found.frames,
        "status": found.status,
        "config": found.config,
        "stderr_head": found.head,
        "stderr_tail": found.tail,
    }


def _checked(found: Bundle, secrets: Sequence[str]) -> dict[str, bytes]:
    """The files of a bundle, by name, those that it knows and no others. Raises RunDirError for a
    file that holds what must not leave the machine, or that cannot be read."""
    redactor = Redactor(secrets)
    contents: dict[str, bytes] = {}
    for name in bundle.FILES:
        try:
            data = read_file(found.path / name)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise RunDirError(f"crashes export: {found.path / name}: {error}") from None
        problem = ""
        if redactor.secret_in(data):
            problem = "a secret of the configuration"
        elif name in bundle.TEXTS and redactor.numbers_in(data.decode("utf-8", "replace")):
            problem = "a row of numbers that may be token ids"
        elif name == bundle.CONFIG and not _is_hidden(found.config):
            problem = "a setting that is secret, or cannot be understood"
        if problem:
            raise RunDirError(
                f"crashes export: {found.path / name} holds {problem}; nothing was exported"
            )
        contents[name] = data
    if bundle.META not in contents:
        raise RunDirError(
            f"crashes export: {found.path} has no {bundle.META}; nothing was exported"
        )
    return contents


def _is_hidden(config: dict[str, str]) -> bool:
    """Whether config.json shows no secret; what could not be understood shows nothing good."""
    if not config:
        return False
    return all(
        config.get(key, "") in ("", "[]") or config[key].endswith("hidden)")
        for key, field in fields().items()
        if field.secret
    )


def _packed(name: str, contents: dict[str, bytes]) -> bytes:
    """A tar.gz whose members say nothing of the user who made it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member, data in contents.items():
            info = tarfile.TarInfo(f"{name}/{member}")
            info.size = len(data)
            info.mode = 0o600
            info.mtime = int(datetime.now(UTC).timestamp())
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()
