"""The time after a reload in which a crash brings the former settings back. Pure.

A reload proves the new engine before it takes over, but not what real requests do to it. Its first
crash within PROBATION_S leads back to the settings that served before, once: what is gone back to
has no probation of its own. What was left that way is not taken again until it has changed, or by
force. Where only the contents of the executable or nothing at all was replaced there is nothing to
go back to, and the restart policy decides as always.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

PROBATION_S = 600.0
FAILED_MAX = 16  # settings that are remembered as left

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class _Former(Generic[C]):
    course: C
    new: Hashable
    until_s: float


class Probation(Generic[C]):
    """`C` is what engines are started with; keys tell settings apart, contents of files included.
    Times: seconds, one clock."""

    def __init__(self) -> None:
        self._former: _Former[C] | None = None
        self._failed: dict[Hashable, str] = {}  # the newest last

    def begin(self, former: C, new: Hashable, now: float, *, can_return: bool) -> None:
        """A reload is done. `can_return`: whether the former engine can be started again."""
        self._former = _Former(former, new, now + PROBATION_S) if can_return else None
        self._failed.pop(new, None)

    def is_on(self, now: float) -> bool:
        return self._former is not None and now < self._former.until_s

    def on_crash(self, text: str, now: float) -> C | None:
        """An engine has crashed: what to go back to, or None."""
        former, self._former = self._former, None
        if former is None or now >= former.until_s:
            return None
        self._failed[former.new] = text
        while len(self._failed) > FAILED_MAX:
            del self._failed[next(iter(self._failed))]
        return former.course

    def why_not(self, new: Hashable) -> str:
        """Why a reload to this is refused, as a clause; empty where it is not."""
        text = self._failed.get(new)
        if text is None:
            return ""
        return f"such an engine took over before and ended ({text}); the former settings came back"
