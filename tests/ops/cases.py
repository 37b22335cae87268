"""Every operation's reference by name: where the parity tests and bench/ops get their inputs."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from tests.ops.expert_cases import EXPERT_CASES
from tests.ops.index_cases import INDEX_CASES
from tests.ops.recurrent_cases import RECURRENT_CASES
from tests.ops.reference import (
    Case,
    Request,
    add,
    attention,
    concat,
    embed,
    gather_rows,
    kv_append,
    matmul,
    quantize_case,
    rms_norm_case,
    rms_norm_quantize,
    rope,
    scale,
    swiglu,
)
from tests.ops.stream_cases import STREAM_CASES
from tests.ops.table_cases import TABLE_CASES

CASES: dict[str, Callable[[np.random.Generator, Request], Case]] = {
    "embed": embed,
    "rms_norm": rms_norm_case,
    "rms_norm_quantize": rms_norm_quantize,
    "quantize": quantize_case,
    "matmul": matmul,
    "rope": rope,
    "scale": scale,
    "kv_append": kv_append,
    "attention": attention,
    "swiglu": swiglu,
    "add": add,
    "concat": concat,
    "gather_rows": gather_rows,
    **EXPERT_CASES,
    **INDEX_CASES,
    **RECURRENT_CASES,
    **STREAM_CASES,
    **TABLE_CASES,
}


def make_case(request: Request) -> Case:
    """The case of a request; the same request always gives the same inputs."""
    seed = zlib.crc32(repr(sorted(request.items())).encode())
    return CASES[request["kind"]](np.random.default_rng(seed), request)
