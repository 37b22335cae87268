"""Builds a case with torch and transformers: the model, its logits, and its GGUF form.

Every weight is drawn, also those that the classes start at zero or one, so that no term is missing
from the logits by chance. Matrices take values that f16 holds: the file is exact in half the size.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tools.block_types import Floats
from tools.golden.hf import convert_delta, convert_streams
from tools.golden.hf.cases import EOS, PROMPTS, VOCAB, Case
from tools.golden.hf.convert import (
    ZERO_CENTRED,
    Conversion,
    Model,
    Source,
    Tensors,
    Weights,
    convert,
    dense,
    layer_of,
    mixture,
    plain_mixer,
)

# Of each architecture the package of transformers, and the prefix of its classes' names.
CLASSES = {
    "llama": ("llama", "Llama", "LlamaConfig"),
    "qwen3": ("qwen3", "Qwen3", "Qwen3Config"),
    "qwen3moe": ("qwen3_moe", "Qwen3Moe", "Qwen3MoeConfig"),
    "qwen3next": ("qwen3_next", "Qwen3Next", "Qwen3NextConfig"),
    "qwen35": ("qwen3_5", "Qwen3_5", "Qwen3_5TextConfig"),
    "qwen35moe": ("qwen3_5_moe", "Qwen3_5Moe", "Qwen3_5MoeTextConfig"),
    "qwen4exp": ("qwen4_exp", "Qwen4Exp", "Qwen4ExpTextConfig"),
}
CONVERSIONS = {
    "llama": Conversion(layer_of(plain_mixer, dense, "ffn_norm.weight")),
    "qwen3": Conversion(layer_of(plain_mixer, dense, "ffn_norm.weight")),
    "qwen3moe": Conversion(layer_of(plain_mixer, mixture, "ffn_norm.weight")),
    **convert_delta.CONVERSIONS,
    "qwen4exp": convert_streams.CONVERSION,
}
# Two ways through the same class, one step and with its cache: what its f32 is worth.
NOISE_MAX = 2e-4
# Between the last block that a query chooses and the first that it does not. The order of equal
# scores is nobody's, and blocks whose every head is cut off by the ReLU score alike.
MARGIN_MIN = 5e-4


@dataclass(frozen=True)
class Golden:
    model: Model
    tokens: dict[str, npt.NDArray[np.int32]]
    logits: dict[str, Floats]
    noise: float
    margin: float


def draw(name: str, shape: tuple[int, ...], zero_centred: bool, rng: np.random.Generator) -> Floats:
    normal = rng.standard_normal(shape)
    if name.endswith("A_log"):
        values = np.log(rng.uniform(0.05, 8, shape))
    elif name.endswith("dt_bias"):
        values = normal * 0.5 - 1
    elif name.endswith(".bias"):
        values = normal * 0.3
    elif len(shape) == 1:
        is_plain = not zero_centred or name.endswith("linear_attn.norm.weight")
        values = normal * 0.2 + is_plain
    elif name.endswith("conv1d.weight"):
        values = normal * 0.5
    elif "embed" in name:
        values = normal * 0.4
    else:
        values = normal * 1.4 * shape[-1] ** -0.5
    return values.astype(np.float16 if len(shape) > 1 else np.float32).astype(np.float32)


def make(case: Case) -> Any:
    package, name, config_name = CLASSES[case.architecture]
    path = f"transformers.models.{package}"
    configuration = importlib.import_module(f"{path}.configuration_{package}")
    modeling = importlib.import_module(f"{path}.modeling_{package}")
    config = getattr(configuration, config_name)(**case.values, attn_implementation="eager")
    model = getattr(modeling, f"{name}ForCausalLM")(config).float().eval()
    rng = np.random.default_rng(case.seed)
    zero_centred = case.architecture in ZERO_CENTRED
    with torch.no_grad():
        for weight, parameter in sorted(model.named_parameters()):
            drawn = draw(weight, tuple(parameter.shape), zero_centred, rng)
            parameter.copy_(torch.from_numpy(drawn))
        if config.tie_word_embeddings:
            model.tie_weights()
    return model


def whole(model: Any, ids: list[int]) -> Floats:
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0]
    return np.asarray(logits.numpy(), dtype=np.float32)


def stepped(model: Any, ids: list[int], first: int) -> Floats:
    """`first` tokens at once, the others one by one behind the class's own cache."""
    rows = []
    with torch.no_grad():
        out = model(torch.tensor([ids[:first]]), use_cache=True)
        rows.append(out.logits[0].numpy())
        for token in ids[first:]:
            out = model(
                torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True
            )
            rows.append(out.logits[0].numpy())
    return np.concatenate(rows)


@contextlib.contextmanager
def margins() -> Iterator[list[float]]:
    """Records how far apart scores of blocks were where some were chosen and some were not."""
    choose, found = torch.Tensor.topk, [math.inf]

    def choose_and_record(scores: Any, count: int, **options: Any) -> Any:
        if options == {"dim": 0} and len(scores) > count:
            order = scores.sort(descending=True).values
            found.append(float(order[count - 1] - order[count]))
        return choose(scores, count, **options)

    torch.Tensor.topk = choose_and_record
    try:
        yield found
    finally:
        torch.Tensor.topk = choose


def build(case: Case) -> Golden:
    torch.set_num_threads(1)
    model = make(case)
    rng = np.random.default_rng(case.seed + 1)
    tokens = {
        name: rng.integers(0, VOCAB, size=length).astype(np.int32)
        for name, length in PROMPTS.items()
    }
    for place in case.eos_at:
        tokens["long"][place] = EOS
    with margins() as found:
        logits = {name: whole(model, ids.tolist()) for name, ids in tokens.items()}
    longest = max(tokens, key=lambda name: len(tokens[name]))
    again = stepped(model, tokens[longest].tolist(), len(tokens[longest]) // 2)
    noise = float(np.abs(again - logits[longest]).max())
    weights: Tensors = {}
    integers: dict[str, list[int]] = {}
    for name, values in model.state_dict().items():
        plain = name.removeprefix("model.")
        if values.is_floating_point():
            weights[plain] = values.detach().numpy().copy()
        else:
            integers[plain] = values.tolist()
    config = model.config.to_dict()
    source = Source(case.architecture, config, Weights(weights), integers)
    converted = convert(source, CONVERSIONS[case.architecture])
    return Golden(converted, tokens, logits, noise, min(found))
