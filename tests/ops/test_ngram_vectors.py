"""Rows of the published table of Qwen3.8-Flash-Next, as transformers finds them
(tests/data/oracle/README.md): whole, in steps, and with the last tokens taken back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

engine = pytest.importorskip("strata_engine_testing", reason="the engine's module is not built")

KERNELS = engine.Kernels()
VECTORS = json.loads(
    (Path(__file__).parents[1] / "data" / "oracle" / "ngram_rows.json").read_text()
)
CONSTANTS = np.array(
    [*VECTORS["multipliers"], *VECTORS["sizes"], *VECTORS["offsets"], VECTORS["eos"]], np.uint64
)
HEADS, LENGTH, UNDO = len(VECTORS["sizes"]), len(VECTORS["multipliers"]), 2


class Session:
    """One sequence through the kernel, its last tokens in a state."""

    def __init__(self) -> None:
        self._state = np.full((1, 16), 12345, np.uint32).view(np.float32)

    def rows(self, tokens: list[int], position: int) -> NDArray[np.uint32]:
        """Rows [tokens, heads]; the first token is at `position`."""
        count = len(tokens)
        request: dict[str, Any] = {
            "kind": "ngram_rows",
            "weight": "none",
            "act": "f32",
            "kv": "none",
            "rows": count,
            "n": HEADS,
            "heads": HEADS,
            "taps": LENGTH,
            "undo": UNDO,
            "features": [],
        }
        out = np.zeros((count, HEADS), np.float32)
        run = np.array([[0, 0, count, position, 0, count, 0, 1]], np.uint32)
        op = KERNELS.op("ngram_rows.hash.any.portable", request)
        op.run(
            {
                "tokens": np.array(tokens, np.int32),
                "out": out,
                "state": self._state,
                "runs": run,
                "ngram": CONSTANTS,
            },
            rows=count,
        )
        return out.view(np.uint32)


@pytest.fixture(params=VECTORS["cases"], ids=lambda case: f"{len(case['tokens'])} tokens")
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


def test_whole(case: dict[str, Any]) -> None:
    np.testing.assert_array_equal(Session().rows(case["tokens"], 0), case["rows"])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_in_steps(case: dict[str, Any], length: int) -> None:
    session, tokens = Session(), case["tokens"]
    parts = [session.rows(tokens[at : at + length], at) for at in range(0, len(tokens), length)]
    np.testing.assert_array_equal(np.concatenate(parts), case["rows"])


def test_after_rows_taken_back(case: dict[str, Any]) -> None:
    """Each token brings two others, which are then taken back."""
    session = Session()
    for position, (token, rows) in enumerate(zip(case["tokens"], case["rows"], strict=True)):
        got = session.rows([token, VECTORS["eos"], 17], position)
        np.testing.assert_array_equal(got[0], rows)
