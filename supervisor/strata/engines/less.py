"""What the engine is asked for at most after memory ran out on the last rung that needs less: fewer
tokens of KV, then a shorter context, then smaller batches, half as much each time. Pure.

The ladder ends with what the engine offered for what was asked; below it nothing but asking for
less leads to a plan that needs less memory.
"""

from __future__ import annotations

import msgspec
from strata_protocol.messages import ModePlan, WantedModes

CONTEXT_LEAST = 256  # tokens: a shorter context serves nobody


class Less(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what is asked; 0: none."""

    kv_tokens: int = 0
    max_context: int = 0
    batch: int = 0

    @property
    def text(self) -> str:
        """ "kv_tokens 8192, max_context 4096"."""
        bounds = msgspec.structs.asdict(self).items()
        return ", ".join(f"{name} {value}" for name, value in bounds if value)

    def of(self, wanted: WantedModes) -> WantedModes:
        """The same within the bounds; what was left to the engine is asked for by number."""
        bounds = {
            name: min(asked, bound) if (asked := getattr(wanted, name)) else bound
            for name, bound in msgspec.structs.asdict(self).items()
            if bound
        }
        return msgspec.structs.replace(wanted, **bounds)


def less_than(plan: ModePlan, asked: Less | None) -> Less | None:
    """The next bounds below what ran within `asked`; None where the plainest ran that serves."""
    asked = asked or Less()
    context = plan.max_context
    if plan.kv_tokens // 2 >= context:
        return msgspec.structs.replace(asked, kv_tokens=plan.kv_tokens // 2)
    if context // 2 >= CONTEXT_LEAST:
        half = context // 2
        return msgspec.structs.replace(asked, kv_tokens=half, max_context=half)
    if plan.batch > 1:
        return msgspec.structs.replace(asked, batch=plan.batch // 2)
    return None
