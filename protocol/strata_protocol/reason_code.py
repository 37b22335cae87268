"""One entry of the list of reason codes in `reasons.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReasonCode:
    """One code, or one family of codes: `config.<setting>`."""

    code: str
    meaning: str  # what is the case, as a sentence
    action: str  # what the operator (or the client) can do, as a sentence

    @property
    def prefix(self) -> str:
        """What every code of a family begins with; empty where this is a single code."""
        return self.code[: self.code.index("<")] if "<" in self.code else ""
