"""The time after a reload in which a crash brings the former settings back. Pure.

A reload proves the new engine before it takes over, but not what real requests do to it. Its first
crash within PROBATION_S leads back to the settings that served before, once: what is gone back to
has no probation of its own. What was left that way is not taken again until it has changed, or by
force. Where only the contents of the executable or nothing at all was replaced there is nothing to
go back to, and the restart policy decides as always.

A crash can be a request's doing. One that ended an engine before is the likelier cause, so a crash
with it leads nowhere back and is left to its trial. Where nobody is known the settings go first, as
streams are safe with the former ones; should a request of that very crash be convicted there, it
was not the settings, and they come forward again.
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
    new: C
    key: Hashable  # of `new`
    until_s: float


@dataclass(frozen=True, slots=True)
class _Left(Generic[C]):
    """Settings that were left for a crash, and fingerprints of the requests in it."""

    course: C
    text: str
    suspects: frozenset[str]


class Probation(Generic[C]):
    """`C` is what engines are started with; keys tell settings apart, contents of files included.
    Times: seconds, one clock."""

    def __init__(self) -> None:
        self._former: _Former[C] | None = None
        self._failed: dict[Hashable, _Left[C]] = {}  # the newest last

    def begin(self, former: C, new: C, key: Hashable, now: float, *, can_return: bool) -> None:
        """A reload is done. `can_return`: whether the former engine can be started again."""
        until_s = now + PROBATION_S
        self._former = _Former(former, new, key, until_s) if can_return else None
        self._failed.pop(key, None)

    def is_on(self, now: float) -> bool:
        return self._former is not None and now < self._former.until_s

    def on_crash(
        self, text: str, suspects: frozenset[str], now: float, *, is_known: bool
    ) -> C | None:
        """An engine has crashed: what to go back to, or None. `suspects` may have done it;
        `is_known`: one of them ended an engine before."""
        if is_known and self.is_on(now):
            return None
        former, self._former = self._former, None
        if former is None or now >= former.until_s:
            return None
        self._failed[former.key] = _Left(former.new, text, suspects)
        while len(self._failed) > FAILED_MAX:
            del self._failed[next(iter(self._failed))]
        return former.course

    def on_convicted(self, request: str, former: C, now: float) -> C | None:
        """A request is convicted, with `former` running: the settings that were left for a crash
        of its own, to be taken again, with a probation as before."""
        for key, left in reversed(self._failed.items()):
            if request in left.suspects:
                self.begin(former, left.course, key, now, can_return=True)
                return left.course
        return None

    def why_not(self, new: Hashable) -> str:
        """Why a reload to this is refused, as a clause; empty where it is not."""
        left = self._failed.get(new)
        if left is None:
            return ""
        return (
            f"such an engine took over before and ended ({left.text}); the former settings came"
            " back"
        )
