"""What has been generated for each running request, so that another engine can go on with it.

Prompt ids stay in the request's spec; the ids generated so far are kept here, apart from them.
Memory is bounded: when the bound is reached, the request that holds most stops being resumable (it
runs on, but does not survive its engine). Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

PROMPT_ID_BYTES = 8  # a slot of the list in the spec, which is kept as long as its record is
GENERATED_ID_BYTES = 4


class Journal:
    """Records by request id. `bytes_max` 0 keeps nothing."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.overflows = 0  # requests that stopped being resumable
        self._generated: dict[int, array[int]] = {}  # in the order of their first token
        self._prompt_bytes: dict[int, int] = {}
        self._lost: set[int] = set()

    def append(self, rid: int, prompt_tokens: int, ids: Sequence[int]) -> None:
        """Adds generated `ids`, in order. The first call for `rid` opens its record."""
        generated = self._generated.get(rid)
        if generated is None:
            if rid in self._lost:
                return
            generated = self._generated[rid] = array("i")
            self._prompt_bytes[rid] = PROMPT_ID_BYTES * prompt_tokens
            self.bytes += self._prompt_bytes[rid]
        generated.extend(ids)
        self.bytes += GENERATED_ID_BYTES * len(ids)
        while self.bytes > self.bytes_max:
            # The largest, and of those the oldest: it frees the most and costs the fewest streams.
            largest = max(self._generated, key=self._size)
            self._drop(largest)
            self._lost.add(largest)
            self.overflows += 1

    def generated(self, rid: int) -> list[int] | None:
        """All ids appended; empty for a request that has none, None where they were given up."""
        if rid in self._lost:
            return None
        return self._generated[rid].tolist() if rid in self._generated else []

    def close(self, rid: int) -> None:
        """Forgets a request that has ended."""
        self._lost.discard(rid)
        if rid in self._generated:
            self._drop(rid)

    def _size(self, rid: int) -> int:
        return self._prompt_bytes[rid] + GENERATED_ID_BYTES * len(self._generated[rid])

    def _drop(self, rid: int) -> None:
        self.bytes -= self._size(rid)
        del self._generated[rid], self._prompt_bytes[rid]
