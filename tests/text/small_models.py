"""Small models for tests of `text` and `api`: metadata as `read_metadata` returns it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from strata.text.gguf_metadata import MetadataValue
from strata.text.model import TextModel

DATA = Path(__file__).resolve().parents[1] / "data" / "text"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@cache
def load(name: str) -> Any:
    return json.loads((DATA / name).read_text())


def metadata(
    model: str = "gpt2",
    pre: str = "smollm",
    template: str | None = CHATML,
    context: int = 256,
    **more: MetadataValue,
) -> dict[str, MetadataValue]:
    """`more`: further keys below tokenizer.ggml, without that prefix."""
    vocabulary = load("vocabularies.json")[model]
    tokens = vocabulary["tokens"]
    found: dict[str, MetadataValue] = {
        "general.architecture": "llama",
        "llama.context_length": context,
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": vocabulary["types"],
    }
    if model == "gpt2":
        found["tokenizer.ggml.merges"] = vocabulary["merges"]
        found["tokenizer.ggml.bos_token_id"] = tokens.index("<|im_start|>")
        found["tokenizer.ggml.eos_token_id"] = tokens.index("<|im_end|>")
    else:
        found["tokenizer.ggml.scores"] = vocabulary["scores"]
        found["tokenizer.ggml.bos_token_id"] = 1
        found["tokenizer.ggml.eos_token_id"] = 2
    if template is not None:
        found["tokenizer.chat_template"] = template
    found.update({f"tokenizer.ggml.{key}": value for key, value in more.items()})
    return found


def small_model(**options: Any) -> TextModel:
    return TextModel(metadata(**options))
