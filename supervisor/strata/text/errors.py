"""What can go wrong in `text`, apart from damaged files (gguf_metadata.MetadataError)."""

from __future__ import annotations


class TokenizerError(Exception):
    """The file's vocabulary cannot be served; the text says why and what can."""


class TextError(ValueError):
    """Text that cannot be tokenised (a lone surrogate). The client's fault."""


class TemplateError(ValueError):
    """The chat template refused the messages, failed, or went over its bounds."""
