"""Gives memory back that a start has used and nothing holds any more."""

from __future__ import annotations

import ctypes
import gc


def settle() -> None:
    """Once, when all is read that stays; takes a millisecond. What is there now is not looked at
    again by the garbage collector, which would stop everything for some 30 ms each time; what the C
    library keeps for later goes back to the system, where it knows how."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)
    gc.freeze()
