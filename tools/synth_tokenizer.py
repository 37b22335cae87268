"""The tokenizer of synthetic models: byte-level BPE with a few merges, and a chat template."""

from __future__ import annotations

MERGE_LINES = (
    "Ġ t|h e|i n|Ġt he|e r|a n|o n|Ġ a|r e|n d|Ġ s|o u|i s|Ġ w|l l|a t|e n|o r|Ġ o|e s|Ġ c|i t",
    "Ġ b|Ġ f|an d|Ġ m|in g|Ġ p|e d|a l|Ġ h|s t",
)
MERGES = [merge for line in MERGE_LINES for merge in line.split("|")]
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB_MIN = 256 + len(MERGES) + len(SPECIALS)


def byte_tokens() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, in byte order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_in = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(stand_in)) for b in range(256)]


def tokenizer_metadata(
    vocab: int, pre: str
) -> dict[str, bool | int | float | str | list[int] | list[float] | list[str]]:
    """Metadata of a tokenizer with `vocab` >= VOCAB_MIN tokens and pre-tokeniser `pre`."""
    tokens = byte_tokens() + [merge.replace(" ", "") for merge in MERGES] + list(SPECIALS)
    specials_end = len(tokens)
    tokens += [f"[PAD{i}]" for i in range(specials_end, vocab)]
    kinds = [1] * (256 + len(MERGES)) + [3] * len(SPECIALS) + [5] * (vocab - specials_end)
    endoftext = 256 + len(MERGES)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": endoftext,
        "tokenizer.ggml.eos_token_id": endoftext + 2,
        "tokenizer.ggml.padding_token_id": endoftext,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
