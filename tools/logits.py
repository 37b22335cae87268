"""Logits of every position of a token sequence, through the engine's own code.

    python tools/logits.py MODEL.gguf --tokens 1,2,3 --out logits.npy --activations f32

Writes f32 [T, vocab] as .npy and prints one line per position: the token, the likeliest next token
and its log-probability. The mode is negotiated as the engine does at boot; a value asked for that
cannot run ends the tool with the reasons instead of running something else.

Needs the module strata_engine_testing (built with STRATA_BINDINGS, installed with the package).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import strata_engine_testing as engine

CHUNK_DEFAULT = 256


def parse_tokens(text: str) -> list[int]:
    """Token ids from "1,2,3", or from a file of such text given as "@PATH"."""
    if text.startswith("@"):
        text = Path(text[1:]).read_text()
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"token ids must be whole numbers: {error}") from None


def parse_count(text: str) -> int:
    """A whole number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not allowed; 1 and up")
    return value


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="all-position logits of a token sequence")
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=parse_tokens, required=True, help="1,2,3 or @FILE")
    parser.add_argument("--out", type=Path, help="write f32 [T, vocab] here (.npy)")
    parser.add_argument("--backend", choices=["cpu"], default="cpu")
    parser.add_argument("--chunk", type=parse_count, default=CHUNK_DEFAULT, help="rows of a step")
    parser.add_argument("--activations", choices=["auto", "int8", "f32"], default="auto")
    parser.add_argument("--kv", choices=["auto", "f16", "f32"], default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: one per usable core")
    parser.add_argument("--isa", default="auto", help="auto, avx512vnni, avx2, neon or portable")
    parser.add_argument(
        "--without-kernel",
        action="append",
        default=[],
        metavar="GLOB[:CONDITION]",
        help="behave as if matching kernels had not been built (repeatable)",
    )
    return parser.parse_args(argv)


def negotiated_plan(args: argparse.Namespace) -> dict[str, object]:
    """The plan for one sequence of the given length; exits with reasons where it cannot run."""
    want = engine.WantedModes(
        batch=1,
        max_context=len(args.tokens),
        prefill=max(1, args.chunk),
        kv=args.kv,
        activations=args.activations,
        threads=args.threads,
        kv_tokens=len(args.tokens),
    )
    result = engine.negotiate(
        str(args.model), want, isa=args.isa, without_kernels=args.without_kernel
    )
    reasons = [reason["text"] for reason in result["refused"]]
    if not reasons:
        reasons = differences(args, result["configurations"])
    if reasons:
        sys.exit("\n".join(reasons))
    plan: dict[str, object] = result["plan"]
    return plan


def differences(args: argparse.Namespace, configurations: list[dict[str, Any]]) -> list[str]:
    """Why what would run is not what was asked; empty where it is."""
    runs = next(found for found in configurations if not found["missing"])
    reasons = []
    for name, asked in (
        ("kv", args.kv),
        ("activations", args.activations),
        ("max_context", len(args.tokens)),
    ):
        short = runs["shortfalls"].get(name, [])
        if asked not in ("auto", runs["plan"][name]):
            short = short or configurations[0]["missing"]  # what was asked comes first
            reasons += [f"{name} {asked}: {reason['text']}" for reason in short]
    return reasons


def print_positions(tokens: Sequence[int], logits: np.ndarray) -> None:
    peak = logits.max(axis=1)
    log_sum = peak + np.log(np.exp(logits - peak[:, None], dtype=np.float64).sum(axis=1))
    for position, token in enumerate(tokens):
        best = int(logits[position].argmax())
        logprob = logits[position, best] - log_sum[position]
        print(f"{position} token {token} -> {best} ({logprob:.5f})")


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    try:
        values = negotiated_plan(args)
        values.pop("prefix_cache")
        model = engine.LoadedModel(
            str(args.model),
            engine.ModePlan(**values),
            isa=args.isa,
            without_kernels=args.without_kernel,
        )
        chunk = min(args.chunk, model.gather_max)
        logits = model.logits(np.asarray(args.tokens, dtype=np.int32), chunk=chunk)
    except engine.EngineError as error:
        sys.exit(f"{error.code}: {error}")
    if args.out:
        np.save(args.out, logits)
    print_positions(args.tokens, logits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
