"""Trains a draft layer for multi-token prediction: `README.md` beside this file has the whole run.

    python -m tools.train_mtp prompts BASE.gguf --out prompts.npz
    python -m tools.train_mtp sample BASE.gguf --prompts prompts.npz --out streams.npz
    python -m tools.train_mtp train BASE.gguf --prompts prompts.npz --streams streams.npz \\
        --out DRAFT.gguf

`prompts` needs the supervisor's package; the others PyTorch and `gguf`, and a GPU for a useful
speed. `train` also evaluates on held-out prompts and writes a report beside the file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.train_mtp.base_file import BaseFile, BaseFileError, read_base


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(dest="step", required=True)
    made = {name: steps.add_parser(name) for name in ("prompts", "sample", "train")}
    for step in made.values():
        step.add_argument("base", type=Path, help="GGUF file of the base model (llama)")
        step.add_argument("--out", type=Path, required=True)
    made["prompts"].add_argument("--count", type=int, default=30000, help="distinct user prompts")
    made["prompts"].add_argument("--seed", type=int, default=5)
    for name in ("sample", "train"):
        made[name].add_argument("--prompts", type=Path, required=True)
        made[name].add_argument("--device", default="cuda", choices=["cuda", "cpu"])
        made[name].add_argument("--seconds", type=float, default=150 if name == "sample" else 480)
    made["sample"].add_argument("--streams", type=int, default=60000)
    made["sample"].add_argument("--length", type=int, default=640, help="tokens of a stream")
    made["sample"].add_argument("--batch", type=int, default=4096, help="streams at once")
    made["train"].add_argument("--streams", type=Path, required=True)
    made["train"].add_argument("--batch", type=int, default=40, help="streams of an iteration")
    made["train"].add_argument("--iterations", type=int, default=10**9, help="at most")
    made["train"].add_argument("--held-out-length", type=int, default=448)
    made["train"].add_argument(
        "--held-out-count", type=int, help="prompts of each set; default: all"
    )
    return parser.parse_args(argv)


def sample(file: BaseFile, args: argparse.Namespace) -> dict[str, object]:
    import numpy as np  # noqa: PLC0415 - prompts are written without PyTorch
    import torch  # noqa: PLC0415

    from tools.train_mtp import kernels  # noqa: PLC0415
    from tools.train_mtp.network import Base  # noqa: PLC0415
    from tools.train_mtp.sample import KINDS, Amount, Segments, write_streams  # noqa: PLC0415

    torch.manual_seed(1)
    on_gpu = args.device == "cuda"
    base = Base(file, args.device, torch.bfloat16 if on_gpu else torch.float32, args.length)
    fused = on_gpu and kernels.IS_FUSED
    if fused:
        kernels.check_fused(base.head, file.sizes.heads, file.sizes.kv_heads, file.sizes.head_dim)
    with np.load(args.prompts) as arrays:
        segments = Segments(arrays, KINDS, args.device)
    amount = Amount(args.streams, args.length, args.batch, args.seconds)
    return dict(write_streams(base, segments, amount, args.out, fused=fused))


def train(file: BaseFile, args: argparse.Namespace) -> dict[str, object]:
    import numpy as np  # noqa: PLC0415 - prompts are written without PyTorch
    import torch  # noqa: PLC0415

    from tools.train_mtp import acceptance, kernels  # noqa: PLC0415
    from tools.train_mtp.export import as_stored, write_drafter  # noqa: PLC0415
    from tools.train_mtp.network import Base, DraftLayer  # noqa: PLC0415
    from tools.train_mtp.sample import Segments  # noqa: PLC0415
    from tools.train_mtp.train import Settings, Streams  # noqa: PLC0415
    from tools.train_mtp.train import train as train_layer  # noqa: PLC0415

    torch.manual_seed(3)
    on_gpu = args.device == "cuda"
    fused = on_gpu and kernels.IS_FUSED
    streams = Streams(args.streams, args.device, seed=11)
    positions = max(streams.tokens.shape[1], args.held_out_length)
    base = Base(file, args.device, torch.bfloat16 if on_gpu else torch.float32, positions)
    if fused:
        kernels.check_fused(base.head, file.sizes.heads, file.sizes.kv_heads, file.sizes.head_dim)
    layer = DraftLayer(file).to(args.device)
    settings = Settings(seconds=args.seconds, iterations_max=args.iterations, batch=args.batch)
    curve = train_layer(layer, base, streams, settings, fused=fused)
    arrays = layer.arrays()
    # Judged as it will be used: with the file's weights, the base in f32.
    layer.load_arrays({name: as_stored(array) for name, array in arrays.items()})
    del base, streams
    if on_gpu:
        torch.cuda.empty_cache()
    exact = Base(file, args.device, torch.float32, positions)
    with np.load(args.prompts) as packed:
        prompts = {name: packed[name] for name in packed.files}
    for kind in acceptance.SETS:
        prompts[f"{kind}.ends"] = prompts[f"{kind}.ends"][: args.held_out_count]
    held_out = Segments(prompts, acceptance.SETS, args.device)
    found = acceptance.report(layer, exact, held_out, args.held_out_length, settings.depth)
    greedy = found["greedy"]
    assert isinstance(greedy, dict)
    facts = {
        "greedy.1": float(greedy["per_position"][0]),
        f"tokens_per_pass.greedy.{settings.depth}": float(greedy["tokens_per_pass"][-1]),
    }
    write_drafter(file, arrays, args.out, facts)
    return {"acceptance": found, "curve": curve}


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    began = time.monotonic()
    try:
        if args.step == "prompts":
            from tools.train_mtp.prompts import write_segments  # noqa: PLC0415 - needs the supervisor

            found: dict[str, object] = dict(
                write_segments(args.base, args.out, args.count, args.seed)
            )
        else:
            file = read_base(args.base)
            found = sample(file, args) if args.step == "sample" else train(file, args)
    except (BaseFileError, OSError) as error:
        print(f"train_mtp: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print("train_mtp: needs PyTorch (pip install torch)", file=sys.stderr)
        return 2
    found["seconds"] = round(time.monotonic() - began, 1)
    report = args.out.with_suffix(".json")
    report.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "curve"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
