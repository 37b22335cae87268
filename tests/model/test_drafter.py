"""Drafters planned from headers: both steps of a mode, what is missing, what it costs, and files
that do not fit."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import strata_engine_testing as engine

from tests.model.loading import load, logits_of
from tools.synth_model import Shape, write_drafter, write_model
from tools.synth_shapes import RECURRENT, STREAMS, MetaValue

SHAPE = Shape(
    width=64, heads=4, kv_heads=2, head_dim=16, ff=128, draft_layers=1, attention_interval=2
)
SMOLLM2 = Shape(
    layers=30, width=576, heads=9, kv_heads=3, head_dim=64, ff=1536, vocab=49152, context=8192
)
TOKENS = np.random.default_rng(5).integers(0, 320, size=20).astype(np.int32)


def plan_mode(path: Path, *, without_kernels: list[str] | None = None, **values: object) -> dict:
    plan = {"max_context": 256, "kv_tokens": 1024, "prefill": 64, "mtp": "model", "spec": 3}
    return engine.plan_mode(
        str(path), engine.ModePlan(**(plan | values)), without_kernels=without_kernels or []
    )


def refusal(path: Path, **values: object) -> engine.EngineError:
    with pytest.raises(engine.EngineError) as caught:
        plan_mode(path, **values)
    return caught.value


def names_of(missing: list[tuple[str, str]], who: str) -> set[tuple[str, str]]:
    """(type, tensor) of the matmuls that a report lists for a step."""
    found = set()
    for code, text in missing:
        assert code == "kernel.missing"
        if text.startswith("drafter: ") == (who == "drafter"):
            match = re.search(r"no kernel for matmul weight=(\w+) .*? \((\S+)\)", text)
            assert match, text
            found.add((match[1], match[2]))
            found |= {(match[1], name) for name in re.findall(r"more like it \((.*?)\)", text)}
    return found


@pytest.mark.parametrize("architecture", ["llama", "qwen3", *RECURRENT])
def test_both_steps_resolve(architecture: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, architecture=architecture)
    path = write_model(tmp_path / "m.gguf", shape, kind="q8_0")
    result = plan_mode(path, batch=4, batch_mtp=True)
    assert result["missing"] == []
    assert all(op["kernel"] for op in result["ops"] + result["draft_ops"])
    # Four sequences bring three drafts and a token each, beside 64 rows of prompts.
    assert (result["rows"], result["draft_rows"]) == (16 + 64, 16 + 64)
    assert (result["gather_rows"], result["draft_gather_rows"]) == (80, 4)
    drafts = {op["tensor"]: op for op in result["draft_ops"]}
    own = {"eh_proj", "enorm", "hnorm", "shared_head_norm"}
    assert {f"blk.2.nextn.{name}.weight" for name in own} <= set(drafts)
    assert "sequences=4" in drafts["blk.2.nextn.eh_proj.weight"]["request"]
    assert "n=64 k=128 rows=80" in drafts["blk.2.nextn.eh_proj.weight"]["request"]
    assert "rows=4 " in drafts["token_embd.weight"]["request"]  # the head, on drafting rows
    kinds = [op["op"] for op in result["draft_ops"]]
    assert kinds.count("concat") == kinds.count("attention") == 1
    assert ("blk.2.attn_q_norm.weight" in drafts) == (architecture != "llama")
    assert not kinds.count("delta_rule")  # draft layers have attention
    assert not any(op["tensor"].startswith("blk.2.") for op in result["ops"])


def test_the_step_that_verifies_gives_every_row_a_hidden_state(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, kind="q8_0")
    alone = plan_mode(path, spec=0, mtp="off")
    assert alone["draft_ops"] is None
    verify = plan_mode(path)
    for result, gathered in ((alone, True), (verify, False)):
        last = {op["tensor"]: op["gathered"] for op in result["ops"]}
        assert last["blk.1.ffn_down.weight"] is gathered
        assert last["output_norm.weight"] is gathered
        assert result["ops"][-1]["gathered"] is True  # the head never computes more than asked


def test_batch_with_drafts_is_a_plan_of_its_own(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, kind="q8_0")
    alone = plan_mode(path, batch=4)
    assert (alone["rows"], alone["draft_gather_rows"]) == (4 + 3 + 64, 1)
    together = plan_mode(path, batch=4, batch_mtp=True, without_kernels=["matmul*:rows=4"])
    (only,) = {text.split(" weight=")[0] for _, text in together["missing"]}
    assert only == "drafter: no kernel for matmul"
    assert plan_mode(path, batch=4, without_kernels=["matmul*:rows=4"])["missing"] == []


def test_types_without_kernels_are_named_with_their_tensors(tmp_path: Path) -> None:
    path = write_model(
        tmp_path / "m.gguf",
        SHAPE,
        kind="q8_0",
        draft_kinds={"eh_proj": "iq4_nl", "ffn_down": "q2_0"},
    )
    assert plan_mode(path)["missing"] == []  # every type has kernels
    hidden = ["matmul*:weight=iq4_nl", "matmul*:weight=q2_0"]
    # Without drafts the model is served.
    assert plan_mode(path, without_kernels=hidden, spec=0)["missing"] == []
    for activations in ("int8", "f32"):
        missing = plan_mode(path, without_kernels=hidden, activations=activations)["missing"]
        assert names_of(missing, "model") == set()
        assert names_of(missing, "drafter") == {
            ("iq4_nl", "blk.2.nextn.eh_proj.weight"),
            ("q2_0", "blk.2.ffn_down.weight"),
        }
        assert all(re.search(r" n=64 k=128 rows=\d+", text) for _, text in missing)


def test_every_tensor_of_a_missing_type_is_named(tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, layers=6, width=256, ff=256, draft_layers=0)
    kinds = {"blk.0.ffn_down": "q8_0", "blk.3.ffn_down": "q8_0", "ffn_down": "iq3_s"}
    path = write_model(tmp_path / "m.gguf", shape, kind="q8_0", kinds=kinds)
    hidden = ["matmul*:weight=iq3_s"]
    missing = plan_mode(path, without_kernels=hidden, spec=0, mtp="off")["missing"]
    assert names_of(missing, "model") == {
        ("iq3_s", "blk.1.ffn_down.weight"),
        ("iq3_s", "blk.2,4-5.ffn_down.weight"),
    }


def test_memory_names_the_parts_of_drafts(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, kind="q8_0")
    plain = plan_mode(path, spec=0, batch=4)["memory"]
    assert not any(name.startswith("drafter.") for name in plain)
    result = plan_mode(path, batch=4, batch_mtp=True)
    drafts = {n: b for n, b in result["memory"].items() if n.startswith("drafter.")}
    assert set(drafts) == {
        *("drafter.weights.mapped", "drafter.weights.packed", "drafter.kv"),
        *("drafter.activations", "drafter.logits", "drafter.hidden"),
    }
    # f16 keys and values of one layer, in the pages of the model's pool.
    assert drafts["drafter.kv"] == 2 * 1024 * SHAPE.kv_heads * SHAPE.head_dim * 2
    assert result["memory"]["kv"] == plain["kv"] == SHAPE.layers * drafts["drafter.kv"]
    assert drafts["drafter.logits"] == 4 * SHAPE.vocab * 4
    # A page of hidden states for each sequence, and the last one of each of 32 pages.
    assert drafts["drafter.hidden"] == (4 * 32 + 1024 // 32) * SHAPE.width * 4
    # The tied head is packed once for both; the drafter pays for its own layer.
    head = SHAPE.vocab * SHAPE.width
    assert result["weights"]["drafters_packed_bytes"] < 1.2 * (64 * (128 + 64 * 3 + 128 * 3))
    assert result["memory"]["weights.packed"] == plain["weights.packed"] > head


def test_a_drafter_of_its_own_file(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", dataclasses.replace(SHAPE, draft_layers=0))
    assert refusal(model).code == "drafter.none"
    kinds = {"attn_k": "iq4_nl"}
    drafter = write_drafter(tmp_path / "d.gguf", SHAPE, kinds=kinds, kind="q8_0")
    result = plan_mode(model, without_kernels=["matmul*:weight=iq4_nl"], mtp=str(drafter))
    assert names_of(result["missing"], "drafter") == {("iq4_nl", "blk.2.attn_k.weight")}
    by_tensor = {op["tensor"]: op["request"] for op in result["draft_ops"]}
    assert "weight=q8_0" in by_tensor["blk.2.attn_q.weight"]  # of the drafter's file
    assert "weight=f32" in by_tensor["token_embd.weight"]  # of the model's
    # A whole model with a draft layer serves as a drafter: only that layer is read.
    whole = write_model(tmp_path / "w.gguf", SHAPE, kind="q4_0")
    result = plan_mode(model, mtp=str(whole))
    assert result["missing"] == []
    by_tensor = {op["tensor"]: op["request"] for op in result["draft_ops"]}
    assert "weight=q4_0" in by_tensor["blk.2.attn_q.weight"]
    assert "weight=f32" in by_tensor["token_embd.weight"]


def test_the_trained_head_of_smollm2_is_planned(smollm2_path: Path, tmp_path: Path) -> None:
    """A draft layer with the sizes and types of the trained one: matrices Q8_0, norms F32."""
    drafter = write_drafter(tmp_path / "d.gguf", SMOLLM2, kind="q8_0")
    result = plan_mode(smollm2_path, mtp=str(drafter), batch=4, batch_mtp=True)
    assert result["missing"] == []
    assert result["memory"]["drafter.kv"] == 2 * 1024 * 192 * 2
    # The tied head of 30 MB is the model's, and only there once.
    assert 4_000_000 < result["memory"]["drafter.weights.packed"] < 5_000_000
    assert result["memory"]["drafter.weights.mapped"] == 0


@pytest.mark.parametrize("architecture", ["llama", "qwen3", *RECURRENT, STREAMS])
def test_the_model_is_the_same_with_a_draft_layer(architecture: str, tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, architecture=architecture)
    with_layer = write_model(tmp_path / "a.gguf", shape, kind="q8_0")
    alone = dataclasses.replace(shape, draft_layers=0)
    without = write_model(tmp_path / "b.gguf", alone, kind="q8_0")
    first, second = (logits_of(load(p, activations="int8"), TOKENS) for p in (with_layer, without))
    np.testing.assert_array_equal(first, second)
    facts = engine.model_facts(str(with_layer))
    assert facts["layers"] == SHAPE.layers


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        ({"width": 128}, "drafter.shape", "embedding_length is 128, the model's is 64"),
        ({"vocab": 321}, "drafter.shape", "vocab_size is 321, the model's is 320"),
        ({"heads": 8}, "drafter.shape", "attention.head_count is 8, the model's is 4"),
        ({"kv_heads": 4}, "drafter.shape", "attention.head_count_kv is 4, the model's is 2"),
        ({"head_dim": 32}, "drafter.shape", "attention.key_length is 32, the model's is 16"),
        ({"layers": 3}, "drafter.layers", "a model of 3 layers"),
        ({"architecture": "qwen3"}, "drafter.architecture", '"qwen3", the model\'s is "llama"'),
    ],
)
def test_drafters_of_other_models(
    changes: dict[str, object], code: str, text: str, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "m.gguf", SHAPE)
    other = dataclasses.replace(SHAPE, **changes)
    error = refusal(model, mtp=str(write_drafter(tmp_path / "d.gguf", other)))
    assert (error.kind, error.code) == ("invalid_request", code)
    assert text in str(error)


@pytest.mark.parametrize(
    ("key", "value", "code", "text"),
    [
        ("llama.nextn_predict_layers", 3, "model.metadata", "is 3; allowed are 0 to 2"),
        ("llama.nextn_predict_layers", 2**32 - 1, "model.metadata", "allowed are 0 to 2"),
        ("llama.nextn_predict_layers", -1, "gguf.metadata", "must not be negative"),
        ("llama.nextn_predict_layers", "one", "gguf.metadata", "must be an array of unsigned"),
        ("llama.nextn_predict_layers", 2, "drafter.layers", "is 2; supported is 1"),
        ("llama.nextn_predict_layers", None, "model.tensor_unexpected", "blk.2.nextn.eh_proj"),
        ("nextn.concat_order", "hidden,embedding", "drafter.metadata", '"embedding,hidden"'),
        ("nextn.hidden_state", "before output_norm", "drafter.metadata", "after output_norm"),
        ("nextn.recycled_state", 7, "gguf.metadata", "must be a string"),
    ],
)
def test_hostile_metadata(key: str, value: MetaValue, code: str, text: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, metadata={key: value})
    error = refusal(path)
    assert error.code == code, str(error)
    assert text in str(error)


def test_two_draft_layers_are_not_drafted_with(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", dataclasses.replace(SHAPE, draft_layers=2))
    assert plan_mode(path, spec=0, mtp="off")["missing"] == []
    error = refusal(path)
    assert (error.kind, error.code) == ("unsupported", "drafter.layers")
    assert "nextn_predict_layers is 2; supported is 1" in str(error)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (
            {"reshape": {"blk.2.nextn.eh_proj.weight": (64, 64)}},
            "drafter.tensor_shape",
            "blk.2.nextn.eh_proj.weight has shape [64, 64]; needed is [128, 64]",
        ),
        (
            {"drop": ["blk.2.nextn.hnorm.weight"]},
            "drafter.tensor_missing",
            "tensor blk.2.nextn.hnorm.weight is missing; needed is [64]",
        ),
        (
            {"extra": {"blk.2.nextn.fc.weight": (64, 64)}},
            "drafter.tensor_unexpected",
            "blk.2.nextn.fc.weight",
        ),
        (
            {"kinds": {"enorm": "f64"}},
            "drafter.tensor_type",
            "blk.2.nextn.enorm.weight has type f64; a vector's type is a float of at most 32 bits",
        ),
    ],
)
def test_broken_draft_layers(
    options: dict[str, object], code: str, text: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf", SHAPE, **options)
    error = refusal(path)
    assert error.code == code
    assert text in str(error)
    # The model itself does not need them.
    assert plan_mode(path, spec=0, mtp="off")["missing"] == []


def test_own_embeddings_head_and_norm_are_used(tmp_path: Path) -> None:
    extra = {
        "blk.2.nextn.embed_tokens.weight": (320, 64),
        "blk.2.nextn.shared_head_head.weight": (320, 64),
    }
    path = write_model(tmp_path / "m.gguf", SHAPE, kind="q8_0", extra=extra)
    used = [op["tensor"] for op in plan_mode(path)["draft_ops"]]
    assert set(extra) < set(used)
    assert "token_embd.weight" not in used
    drop = ["blk.2.nextn.shared_head_norm.weight"]
    path = write_model(tmp_path / "n.gguf", SHAPE, kind="q8_0", drop=drop)
    used = [op["tensor"] for op in plan_mode(path)["draft_ops"]]
    assert used.index("output_norm.weight") < used.index("token_embd.weight", 1)


def code_of(path: Path, whole: bytes, at: int) -> str:
    """What planning says to a file with one byte changed; empty where it plans."""
    path.write_bytes(whole[:at] + bytes([(whole[at] + 1 + at % 255) % 256]) + whole[at + 1 :])
    try:
        plan_mode(path)
    except engine.EngineError as error:
        return str(error.code)
    return ""


def test_damaged_headers_are_refused_or_read(tmp_path: Path) -> None:
    """Random edits of the header of a file with a draft layer: an EngineError, or a plan."""
    whole = write_model(tmp_path / "m.gguf", SHAPE, kind="q8_0").read_bytes()
    end = whole.index(b"blk.2.ffn_down.weight") + 40
    begin = whole.index(b"llama.block_count")
    rng = np.random.default_rng(11)
    codes = [code_of(tmp_path / "x.gguf", whole, at) for at in rng.integers(begin, end, size=300)]
    assert {code.split(".")[0] for code in codes if code} <= {"gguf", "model", "drafter"}
    assert 0 < codes.count("") < len(codes)
