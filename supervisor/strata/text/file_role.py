"""What part of a model a GGUF file is, by its metadata: all of it, a part of a split model, or a
file that goes with a model and cannot be served. The engine judges the tensors as well; this is
for files that have no text part, of which the tokeniser could only say what they lack.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from strata.text.gguf_metadata import MetadataValue

KEYS = ("split.no", "split.count", "tokenizer.ggml.model", ".nextn_predict_layers")


def is_split(metadata: Mapping[str, MetadataValue]) -> bool:
    """Whether the model is in several files."""
    return _number(metadata, "split.count") > 1


def problem_of(path: Path, metadata: Mapping[str, MetadataValue]) -> str:
    """Why the file cannot be served as a model; empty where nothing of these `KEYS` says so."""
    index, count = _number(metadata, "split.no"), _number(metadata, "split.count")
    if is_split(metadata) and index > 0:
        first = path.name.replace(_suffix(index, count), _suffix(0, count))
        named = f", {path.with_name(first)}" if first != path.name else ""
        return f"is part {index + 1} of {count} of a split model; name its first part{named}"
    if is_split(metadata) and not path.name.endswith(_suffix(0, count)):
        return (
            f"is the first of {count} parts, so its name must end in {_suffix(0, count)} for the"
            " others to be found"
        )
    drafts = any(key.endswith(".nextn_predict_layers") and value for key, value in metadata.items())
    if drafts and "tokenizer.ggml.model" not in metadata:
        return (
            "this file has draft layers and no tokeniser, as a draft layer alone has; use it with"
            " --mtp beside its model"
        )
    return ""


def _suffix(index: int, count: int) -> str:
    return f"-{index + 1:05d}-of-{count:05d}.gguf"


def _number(metadata: Mapping[str, MetadataValue], key: str) -> int:
    value = metadata.get(key)
    return value if isinstance(value, int) else 0
