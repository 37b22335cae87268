"""Sizes in bytes as people write and read them: `24GiB`, `512 MiB`, `1.5e9`, `1073741824`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

UNITS: Final = {
    "": 1,
    "B": 1,
    **{f"{prefix}iB": 1 << 10 * n for n, prefix in enumerate("KMGTP", 1)},
    **{f"{prefix}B": 1000**n for n, prefix in enumerate("KMGTP", 1)},
}
FORMS: Final = "24GiB, 512MiB, 1.5e9 or a plain number"

_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?(?:e\d{1,2})?)\s*([a-z]*)\s*", re.IGNORECASE)
_BY_CASE = {unit.lower(): factor for unit, factor in UNITS.items()}


def parse_bytes(text: str) -> int:
    """A whole number of bytes. Raises ValueError."""
    found = _SIZE.fullmatch(text)
    factor = _BY_CASE.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise ValueError(f"{text!r} is no size in bytes")
    count = Fraction(found[1]) * factor
    if count.denominator != 1:
        raise ValueError(f"{text!r} is no whole number of bytes")
    return int(count)


def exact_bytes_text(count: int) -> str:
    """The size in the largest unit that holds it exactly; `parse_bytes` reads it back."""
    for prefix in reversed("KMGTP"):
        factor = UNITS[f"{prefix}iB"]
        if count >= factor and count % factor == 0:
            return f"{count // factor}{prefix}iB"
    return str(count)
