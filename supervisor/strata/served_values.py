"""Which values of a mode the kernels of each backend serve, for help and explanations: asked of the
engine, so that no list of them is kept here. Whether a value runs with a file is `plan`'s answer.
"""

from __future__ import annotations

from strata.capability_table import KernelTable, describe_all
from strata.config import Config
from strata.errors import StrataError
from strata.model_source import find_any_engine

MODES = ("kv", "activations")  # those with types, which kernels serve or not
UNKNOWN = "`strata-supervisor capabilities` shows what each backend runs"


def served_texts(config: Config) -> dict[str, str]:
    """For each of MODES "runs now: cpu f32, f16; cuda none"; where there is no engine to ask, where
    to ask."""
    try:
        tables = describe_all(find_any_engine(config)).tables
    except StrataError:
        return dict.fromkeys(MODES, UNKNOWN)
    return {mode: _text(mode, tables) for mode in MODES}


def _text(mode: str, tables: list[KernelTable]) -> str:
    served: dict[str, dict[str, None]] = {}
    for table in tables:
        values = served.setdefault(table.backend, {})
        for axis in (axis for axis in table.modes if axis.name == mode):
            values |= dict.fromkeys(v.value for v in axis.values if not v.missing)
    parts = [f"{backend} {', '.join(values) or 'none'}" for backend, values in served.items()]
    return f"runs now: {'; '.join(parts)}"
