"""References in f64 for the operations of mixtures of experts, on routings where experts have no
rows, one and many. The words of a routing are laid out as engine/plan/routing.h says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ops.block_weights import decode, random_weight
from tests.ops.reference import (
    Arrays,
    Case,
    Request,
    activations,
    quantize,
)

Words = NDArray[np.uint32]


@dataclass
class Choice:
    """What rows chose: experts [rows, used] by falling weight, and the weights."""

    chosen: NDArray[np.uint32]
    weights: NDArray[np.float32]
    experts: int

    def row(self, row: int) -> Choice:
        return Choice(self.chosen[row : row + 1], self.weights[row : row + 1], self.experts)

    @property
    def order(self) -> NDArray[np.intp]:
        """The pairs in the order of experts: rows ascend within one."""
        return np.argsort(self.chosen.ravel(), kind="stable")

    @property
    def places(self) -> NDArray[np.uint32]:
        places = np.empty(self.chosen.size, np.uint32)
        places[self.order] = np.arange(self.chosen.size, dtype=np.uint32)
        return places.reshape(self.chosen.shape)

    def words(self) -> Words:
        """The complete routing; what no one may read is all ones."""
        rows, used = self.chosen.shape
        pairs = rows * used
        words = np.full(4 * pairs + 2 * self.experts + 2, 0xFFFFFFFF, np.uint32)
        words[:pairs] = self.chosen.ravel()
        words[pairs : 2 * pairs] = self.weights.ravel().view(np.uint32)
        words[2 * pairs : 3 * pairs] = self.places.ravel()
        words[3 * pairs : 4 * pairs] = self.order // used
        taken, counts = np.unique(self.chosen, return_counts=True)
        groups = words[4 * pairs :]
        groups[: len(taken)] = taken
        groups[self.experts : self.experts + len(taken) + 1] = [0, *np.cumsum(counts)]
        groups[-1] = len(taken)
        return words


def choose(rng: np.random.Generator, r: Request, rows: int) -> Choice:
    """Random choices; the first experts are chosen more often than the last ones."""
    used, experts = r["experts_used"], r["experts"]
    odds = 1 / np.arange(1, experts + 1)
    chosen = np.stack(
        [rng.choice(experts, used, replace=False, p=odds / odds.sum()) for _ in range(rows)]
    )
    weights = -np.sort(-rng.random((rows, used)), axis=-1)
    weights /= weights.sum(axis=-1, keepdims=True)
    return Choice(chosen.astype(np.uint32), weights.astype(np.float32), experts)


def empty_words(r: Request, rows: int) -> Words:
    return np.zeros(4 * rows * r["experts_used"] + 2 * r["experts"] + 2, np.uint32)


def route(rng: np.random.Generator, r: Request) -> Case:
    rows, used = r["rows"], r["experts_used"]
    x = activations(rng, rows, r["experts"]) * np.float32(3)
    x[:, r["experts"] // 2] = x.max(axis=-1)  # two are equal: the lower is before the other
    x[-1] = 0  # all are
    scale = 2.5

    def case(x: NDArray[np.float32]) -> Case:
        pairs = len(x) * used

        def expected() -> Arrays:
            wide = x.astype(np.float64)
            odds = np.exp(wide - wide.max(axis=-1, keepdims=True))
            odds /= odds.sum(axis=-1, keepdims=True)
            chosen = np.argsort(-wide, axis=-1, kind="stable")[:, :used]
            weights = np.take_along_axis(odds, chosen, axis=-1)
            return {
                "chosen": chosen,
                "weights": weights / weights.sum(axis=-1, keepdims=True) * scale,
            }

        def view(written: Arrays) -> Arrays:
            words = written["routing"]
            assert not words[2 * pairs :].any(), "only choices and weights are written"
            return {
                "chosen": words[:pairs].reshape(-1, used),
                "weights": words[pairs : 2 * pairs].view(np.float32).reshape(-1, used),
            }

        return Case(
            r | {"rows": len(x)},
            {"x": x, "routing": empty_words(r, len(x))},
            ("routing",),
            expected,
            scale=scale,
            view=view,
            alone=lambda row: case(x[row : row + 1]),
        )

    return case(x)


def group_experts(rng: np.random.Generator, r: Request) -> Case:
    choice = choose(rng, r, r["rows"])
    pairs = choice.chosen.size
    words = choice.words()
    start = np.zeros_like(words)
    start[: 2 * pairs] = words[: 2 * pairs]

    def known(routing: Words) -> Arrays:
        groups = int(routing[-1])
        begins = routing[4 * pairs + r["experts"] :][: groups + 1]
        return {
            "pairs": routing[: 4 * pairs],
            "experts": routing[4 * pairs :][:groups],
            "begins": begins,
            "groups": routing[-1:],
        }

    return Case(
        r,
        {"routing": start},
        ("routing",),
        lambda: known(words),
        view=lambda written: known(written["routing"]),
        is_of_step=True,
    )


def expert_matmul(rng: np.random.Generator, r: Request) -> Case:
    used, n, k, experts = r["experts_used"], r["n"], r["k"], r["experts"]
    rows = r["rows"] // used
    is_in_order = "expert_order" in r["features"]
    weight = random_weight(rng, r["weight"], experts * n, k)
    table = decode(r["weight"], weight, experts * n).reshape(experts, n, k)
    choice = choose(rng, r, rows)
    # Rows of pairs [rows, used, k], or the same row for each expert it chose.
    x = activations(rng, rows * (used if is_in_order else 1), k) * np.float32(k**-0.5)
    x = x.reshape(rows, -1, k)
    scales = np.ones(experts, np.float32)
    if "expert_scale" in r["features"]:
        scales = activations(rng, 1, experts)[0]

    def case(choice: Choice, x: NDArray[np.float32]) -> Case:
        pairs = choice.chosen.size
        flat = np.ascontiguousarray(x.reshape(-1, k))
        if is_in_order:
            flat = flat[choice.order]
        arrays: Arrays = {"out": np.zeros((pairs, n), np.float32), "routing": choice.words()}
        if r["act"] == "i8block":
            arrays |= quantize(flat)
            steps = np.repeat(arrays["scales"].astype(np.float64), 32, axis=-1)
            wide = arrays["values"] * steps
        else:
            arrays["x"] = flat
            wide = flat.astype(np.float64)
        if "expert_scale" in r["features"]:
            arrays["vector"] = scales

        def expected() -> Arrays:
            out = np.zeros((*choice.chosen.shape, n))
            for row, rank in np.ndindex(*choice.chosen.shape):
                expert = choice.chosen[row, rank]
                given = wide[choice.places[row, rank] if is_in_order else row]
                out[row, rank] = table[expert] @ given * scales[expert].astype(np.float64)
            return {"out": out}

        return Case(
            r | {"rows": pairs},
            arrays,
            ("out",),
            expected,
            weight=weight,
            view=lambda written: {"out": written["out"][choice.places]},
            alone=lambda row: case(choice.row(row), x[row : row + 1]),
        )

    return case(choice, x)


def expert_sum(rng: np.random.Generator, r: Request) -> Case:
    choice = choose(rng, r, r["rows"])
    outputs = activations(rng, choice.chosen.size, r["k"]).reshape(*choice.chosen.shape, r["k"])

    def case(choice: Choice, outputs: NDArray[np.float32]) -> Case:
        rows = len(choice.chosen)
        in_order = outputs.reshape(-1, r["k"])[choice.order]
        return Case(
            r | {"rows": rows},
            {
                "x": in_order,
                "routing": choice.words(),
                "out": np.zeros((rows, r["k"]), np.float32),
            },
            ("out",),
            lambda: {"out": np.einsum("ru,ruk->rk", choice.weights.astype(np.float64), outputs)},
            alone=lambda row: case(choice.row(row), outputs[row : row + 1]),
        )

    return case(choice, outputs)


def gated_add(rng: np.random.Generator, r: Request) -> Case:
    out = activations(rng, r["rows"], r["k"])
    x = activations(rng, r["rows"], r["k"])
    gate = np.array([[-200.0], [0.0], [200.0], [0.7]], np.float32)[: r["rows"]]
    start = out.astype(np.float64)

    def expected() -> Arrays:
        sigmoid: NDArray[Any] = 1 / (1 + np.exp(-gate.astype(np.float64)))
        return {"out": start + sigmoid * x}

    return Case(
        r, {"x": x, "y": gate, "out": out}, ("out",), expected, row_arrays=("x", "y", "out")
    )


EXPERT_CASES = {
    "route": route,
    "group_experts": group_experts,
    "expert_matmul": expert_matmul,
    "expert_sum": expert_sum,
    "gated_add": gated_add,
}
