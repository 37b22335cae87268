"""The files that one model is made of: the parts of a split model by their names, and the file of
its per-layer embedding table where that is one of its own. Reads nothing; what the files say of
themselves is judged by the engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_FIRST = re.compile(r"^(?P<base>.*)-00001-of-(?P<count>\d{5})\.gguf$")
SHARDS_MAX = 1024  # as the engine allows


def model_files(model: Path, ple: str = "") -> tuple[Path, ...]:
    """The file itself, then all others. Some may be missing."""
    files = [model]
    if found := _FIRST.match(model.name):
        count = found["count"]
        numbers = range(2, min(int(count), SHARDS_MAX) + 1)
        files += [model.with_name(f"{found['base']}-{i:05d}-of-{count}.gguf") for i in numbers]
    return (*files, Path(ple)) if ple else tuple(files)


def base_name(model: Path) -> str:
    """The file's name without .gguf and without the number of a split model's part."""
    found = _FIRST.match(model.name)
    return found["base"] if found else model.stem


def bytes_of(files: Sequence[Path]) -> int:
    """Of all files together; those that are not there count nothing."""
    return sum(path.stat().st_size for path in files if path.is_file())
