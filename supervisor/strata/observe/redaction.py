"""What must not leave the machine in a crash bundle, and how it is found and taken out.

The engine knows token ids and no text, and no message of it holds prompts. Should an output line
hold a row of numbers all the same, it may be ids: the row is taken out. Secrets of the
configuration are taken out wherever they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SECRET_CHARACTERS_MIN = 6  # a shorter secret would hit parts of ordinary words
HIDDEN = "[hidden]"
# No possessive quantifiers: on Python 3.11.0 to 3.11.3 one of a group matches beyond its end.
_NUMBERS = re.compile(r"(?<![\w.])-?\d+(?:[\s,;|]+-?\d+(?!\.?\w)){7,}")
_NUMBER = re.compile(r"\d+")


class Redactor:
    """`secrets`: values that may not appear."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = [s for s in secrets if len(s) >= SECRET_CHARACTERS_MIN]

    def clean(self, text: str) -> str:
        """`text` without secrets and without rows of eight or more whole numbers."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return _NUMBERS.sub(_count, text)

    def secret_in(self, data: bytes) -> bool:
        return any(secret.encode() in data for secret in self._secrets)

    def numbers_in(self, text: str) -> bool:
        """Whether there is a row of numbers that `clean` would take out."""
        return _NUMBERS.search(text) is not None


def _count(match: re.Match[str]) -> str:
    return f"[{len(_NUMBER.findall(match[0]))} numbers removed]"
