"""`TextModel`: all that turns text into token ids and back for one GGUF file.

It is built once, from the file's metadata, and never changes. What it does not do: it knows no
weights, no requests and no HTTP.
"""

from __future__ import annotations

from pathlib import Path


class TextModel:
    """Tokenizer, chat template and stop ids of one model file."""

    @classmethod
    def from_gguf(cls, path: Path) -> TextModel:
        """Reads the metadata of `path`.

        Raises MetadataError for a file that is no GGUF or is damaged, TokenizerError for a
        vocabulary that cannot be served (the text lists what can). A missing chat template is no
        error here: chats are refused with 400, completions work.
        """
        raise NotImplementedError
