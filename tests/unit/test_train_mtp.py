"""The training of draft layers: what it feeds, the networks against the engine's formulas, and a
whole run on a tiny model. Parts that need PyTorch run where it is installed.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import strata_engine_testing as engine

from tools.synth_model import Shape, write_model
from tools.train_mtp.__main__ import main
from tools.train_mtp.base_file import BaseFileError, half_split, neighbours, read_base
from tools.train_mtp.export import as_stored, write_drafter
from tools.train_mtp.prompts import Corpus, Writer, write_segments

SHAPE = Shape(architecture="llama", width=64, heads=4, kv_heads=2, head_dim=16, ff=96, vocab=320)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base") / "base.gguf", SHAPE, kind="f32")


@pytest.fixture(scope="module")
def prompts(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prompts") / "prompts.npz"
    counts = write_segments(base, out, count=60, seed=5)
    assert counts["first"] == 40
    assert counts["follow"] == 20
    return out


def test_rope_orders_are_inverse() -> None:
    rows = np.arange(4 * 16 * 3, dtype=np.float32).reshape(64, 3)
    split = half_split(rows, 4)
    np.testing.assert_array_equal(neighbours(split, 4), rows)
    # The second value of the first pair goes to the head's second half.
    np.testing.assert_array_equal(split[8], rows[1])


def test_a_model_that_is_not_computed_is_refused(tmp_path: Path) -> None:
    other = Shape(architecture="qwen3", width=64, heads=4, kv_heads=2, head_dim=16, ff=96)
    with pytest.raises(BaseFileError, match="architecture qwen3"):
        read_base(write_model(tmp_path / "qwen3.gguf", other, kind="f32"))
    biased = Shape(architecture="llama", biases=True)
    path = write_model(tmp_path / "biased.gguf", biased, kind="f32")
    with pytest.raises(BaseFileError, match=r"attn_k\.bias"):
        read_base(path)
    assert main(["sample", str(path), "--prompts", "none", "--out", str(tmp_path / "o")]) == 2


@pytest.mark.parametrize("step", ["prompts", "sample"])
@pytest.mark.parametrize("content", [None, b"", b"GGUF\3", b"no model, but long enough to be read"])
def test_a_file_that_is_no_model_is_one_sentence(
    step: str, content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "base.gguf"
    if content is not None:
        path.write_bytes(content)
    more = ["--prompts", "none"] if step == "sample" else []
    assert main([step, str(path), "--out", str(tmp_path / "out"), *more]) == 2
    said = capsys.readouterr().err
    assert said.startswith("train_mtp: ")
    assert said.count("\n") == 1


def test_templates_fill_in_and_held_out_topics_stay_out() -> None:
    corpus = Corpus.load()
    held_out = json.loads((Path("tools/train_mtp") / "heldout.json").read_text())
    rng = random.Random(1)
    topics = [topic for topic in corpus.topics if topic not in held_out["topics"]]
    assert len(topics) == len(corpus.topics) - len(held_out["topics"])
    texts = {corpus.prompt(rng, topics) for _ in range(3000)}
    assert len(texts) > 2000
    assert not texts & set(held_out["prompts"])


def test_turns_are_cut_out_of_the_template(base: Path, prompts: Path) -> None:
    writer = Writer(base)
    usual, bare = writer.turns(None), writer.bare_turns()
    rendered = usual.first("one") + "two" + usual.next("three")
    assert rendered.count("one") == rendered.count("three") == 1
    assert usual.opening.endswith(bare.opening)
    with np.load(prompts) as arrays:
        first = arrays["first.tokens"][: arrays["first.ends"][0]]
        assert writer.closing() in arrays["end_tokens"]
        assert arrays["first.ends"][-1] == len(arrays["first.tokens"])
    assert first.tolist()[-1] == writer.ids(usual.answer)[-1]


def test_the_engine_takes_what_is_written(base: Path, tmp_path: Path) -> None:
    """From its headers: the types have kernels, the shapes fit the base, and it names its hash."""
    file = read_base(base)
    width = file.sizes.width
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    arrays = {name: file.layer(0, name) for name in names}
    arrays["eh_proj"] = np.concatenate([np.eye(width), np.eye(width)], 1).astype(np.float32)
    for name in ("enorm", "hnorm", "attn_norm", "ffn_norm", "shared_head_norm"):
        arrays[name] = np.ones(width, np.float32)
    out = tmp_path / "draft.gguf"
    write_drafter(file, arrays, out, {"greedy.1": 0.5})
    plan = engine.ModePlan(max_context=256, kv_tokens=512, prefill=64, mtp=str(out), spec=3)
    result = engine.plan_mode(str(base), plan)
    assert result["missing"] == []
    assert {op["kernel"] for op in result["draft_ops"]} - {""}
    assert np.abs(as_stored(arrays["attn_q"]) - arrays["attn_q"]).max() < 0.01


def test_a_whole_run_on_the_cpu(base: Path, prompts: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tools.train_mtp.network import Base, DraftLayer

    streams, out = tmp_path / "streams.npz", tmp_path / "draft.gguf"
    common = ["--prompts", str(prompts), "--device", "cpu"]
    sizes = ["--streams", "8", "--length", "96", "--batch", "4"]
    assert main(["sample", str(base), *common, "--out", str(streams), *sizes]) == 0
    with np.load(streams) as arrays:
        assert arrays["tokens"].shape == (8, 96)
        assert arrays["tokens"].max() < SHAPE.vocab
    limits = ["--iterations", "3", "--batch", "2", "--held-out-count", "2"]
    arguments = ["train", str(base), *common, "--streams", str(streams), "--out", str(out)]
    assert main([*arguments, *limits, "--held-out-length", "96"]) == 0
    report = json.loads(out.with_suffix(".json").read_text())
    assert set(report["acceptance"]) == {"greedy", "temperature 0.8"}

    # A chain's first state is what a causal layer over the true states gives: prefixes agree.
    file = read_base(base)
    model, layer = Base(file, "cpu", torch.float32, 96), DraftLayer(file)
    with np.load(streams) as arrays:
        tokens = torch.from_numpy(arrays["tokens"][:1].astype(np.int64))
    with torch.no_grad():
        hidden, embedded = model.hidden(tokens), model.embedding[tokens]
        whole = layer.chains(embedded, hidden, model.cos, model.sin, 2)
        part = layer.chains(embedded[:, :40], hidden[:, :40], model.cos, model.sin, 2)
    assert torch.allclose(whole[0][:, :40], part[0], atol=1e-5)
    assert torch.allclose(whole[1][:, :39], part[1], atol=1e-5)


@pytest.mark.model
def test_the_networks_compute_the_golden_chains(smollm2_path: Path, repository: Path) -> None:
    """SmolLM2 and its trained layer against f64 values of another implementation."""
    torch = pytest.importorskip("torch")
    gguf = pytest.importorskip("gguf")
    from tools.train_mtp.network import Base, DraftLayer

    folder = repository / "tests" / "data" / "mtp"
    golden = np.load(folder / "smollm2-135m-mtp-golden.npz")
    file = read_base(smollm2_path)
    tokens = torch.from_numpy(golden["tokens"].astype(np.int64))[None]
    model = Base(file, "cpu", torch.float32, tokens.shape[1])
    hidden = model.hidden(tokens)
    assert np.abs(hidden[0].numpy() - golden["hidden"]).max() < 1e-3
    stored = {}
    for tensor in gguf.GGUFReader(folder / "smollm2-135m-mtp-q8_0.gguf").tensors:
        name = tensor.name.removesuffix(".weight").rpartition(".")[2]
        stored[name] = np.array(gguf.dequantize(tensor.data, tensor.tensor_type))
    layer = DraftLayer(file)
    layer.load_arrays(stored)
    with torch.no_grad():
        states = layer.chains(model.embedding[tokens], hidden, model.cos, model.sin, 1)
        rows = golden["rows"]
        assert np.abs(states[0][0, rows].numpy() - golden["recycled"][:, 0]).max() < 1e-3
        logits = model.logits(states[0][0, rows]).numpy()
    top = np.take_along_axis(logits, golden["top8_ids"][:, 0].astype(np.int64), 1)
    assert np.abs(top - golden["top8_logits"][:, 0]).max() < 1e-3
