"""The choice of modes: what runs, why it is not more, and what may run after it."""

from strata.engines.modes.axes import AXES, MODE_KEYS, wanted_modes
from strata.engines.modes.checklist import MissingKernel, missing_kernels
from strata.engines.modes.choice import Choice, choose
from strata.engines.modes.device_rows import usable_bytes
from strata.engines.modes.fitting import (
    all_refusals,
    fitting,
    kernels_of_nothing,
    shortened,
    unsupported_rows,
    without_kernel_reasons,
)
from strata.engines.modes.ladder import Rung, is_lower_on, is_plainer
from strata.engines.modes.offered import Policy
from strata.engines.modes.quarantined import QUARANTINED, Quarantined
from strata.engines.modes.rows import (
    ModeRow,
    ModeState,
    bytes_text,
    refusal_lines,
    row_summary,
    row_text,
    sentence,
    sentences,
)

__all__ = [
    "AXES",
    "MODE_KEYS",
    "QUARANTINED",
    "Choice",
    "MissingKernel",
    "ModeRow",
    "ModeState",
    "Policy",
    "Quarantined",
    "Rung",
    "all_refusals",
    "bytes_text",
    "choose",
    "fitting",
    "is_lower_on",
    "is_plainer",
    "kernels_of_nothing",
    "missing_kernels",
    "refusal_lines",
    "row_summary",
    "row_text",
    "sentence",
    "sentences",
    "shortened",
    "unsupported_rows",
    "usable_bytes",
    "wanted_modes",
    "without_kernel_reasons",
]
