"""The largest values of WantedModes and ModePlan that either side lets through.

They keep products of sizes within 64 bits; whether a machine can run them is the engine's
question. C++ gets this list from `protocol/schema/generate.py`.
"""

from __future__ import annotations

from typing import Final

BATCH_MAX: Final = 256
PREFILL_MAX: Final = 8192
THREADS_MAX: Final = 1024
KV_TOKENS_MAX: Final = 1 << 30
SPEC_MAX: Final = 7

# By the field's name in WantedModes and ModePlan.
MODE_MAX: Final[dict[str, int]] = {
    "batch": BATCH_MAX,
    "prefill": PREFILL_MAX,
    "threads": THREADS_MAX,
    "kv_tokens": KV_TOKENS_MAX,
    "spec": SPEC_MAX,
}
