"""Task groups raise groups of exceptions; a request has one error."""

from __future__ import annotations


def single_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception of a (nested) group, an `Exception` before any other."""
    leaves: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop(0)
        if isinstance(error, BaseExceptionGroup):
            pending += error.exceptions
        else:
            leaves.append(error)
    return next((leaf for leaf in leaves if isinstance(leaf, Exception)), leaves[0])
