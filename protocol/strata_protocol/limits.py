"""The bounds of WantedModes and ModePlan: the largest values that either side lets through, and
the plainest of each mode that can be taken out.

The largest keep products of sizes within 64 bits; whether a machine can run them is the engine's
question. C++ gets both lists from `protocol/schema/generate.py`.
"""

from __future__ import annotations

from typing import Final

BATCH_MAX: Final = 256
PREFILL_MAX: Final = 8192
THREADS_MAX: Final = 1024
KV_TOKENS_MAX: Final = 1 << 30
SPEC_MAX: Final = 7
CONTEXT_MIN: Final = 256  # the least context worth serving

# By the field's name in WantedModes and ModePlan.
MODE_MAX: Final[dict[str, int]] = {
    "batch": BATCH_MAX,
    "prefill": PREFILL_MAX,
    "threads": THREADS_MAX,
    "kv_tokens": KV_TOKENS_MAX,
    "spec": SPEC_MAX,
}

# What a quarantine list (`Offer.quarantine`) may name, AXIS or AXIS=VALUE, with the value of a plan
# that the bare axis leaves, in words; of a number, all below it are left too.
MODE_PLAINEST: Final[dict[str, str]] = {
    "batch": "1",
    "max_context": str(CONTEXT_MIN),
    "kv": "f32",
    "prefill": "1",
    "activations": "f32",
    "prefix_cache": "off",
    "mtp": "off",
    "spec": "0",
    "batch_mtp": "off",
}
