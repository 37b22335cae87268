"""The lookup of kernels: order, refusals with a reason for each entry, and masks."""

from __future__ import annotations

from typing import Any

import pytest

engine = pytest.importorskip("strata_engine_testing", reason="the engine's module is not built")

FEATURES: dict[str, Any] = engine.cpu_features()
ORDER = ["avx512vnni", "avx2", "neon", "portable"]
MATMUL = {"kind": "matmul", "weight": "q4_1", "act": "i8block", "n": 64, "k": 64, "rows": 4}
ATTENTION = {
    "kind": "attention",
    "kv": "f16",
    "heads": 9,
    "kv_heads": 3,
    "head_dim": 64,
    "page_tokens": 32,
    "sequences": 2,
}


def present() -> list[str]:
    return [isa for isa in ORDER if isa == "portable" or FEATURES[isa]]


def test_first_of_the_table_wins() -> None:
    found, reasons = engine.Kernels().find(MATMUL)
    assert found == f"matmul.rows16.q4_1_x_i8.{present()[0]}"
    assert reasons == []


def test_entries_come_in_order_of_preference() -> None:
    by_kind: dict[str, list[int]] = {}
    for entry in engine.Kernels().entries():
        by_kind.setdefault(entry["kind"], []).append(ORDER.index(entry["isa"]))
    for ranks in by_kind.values():
        assert ranks == sorted(ranks)


@pytest.mark.parametrize("isa", present())
def test_isa_limit_leaves_out_what_is_above(isa: str) -> None:
    isas = {entry["isa"] for entry in engine.Kernels(isa).entries()}
    assert isas <= set(ORDER[ORDER.index(isa) :])
    assert engine.Kernels(isa).find(MATMUL)[0].endswith("." + isa)


def test_isa_limit_errors() -> None:
    with pytest.raises(engine.EngineError, match="not one of auto, avx512vnni, avx2, neon"):
        engine.Kernels("sse9")
    absent = next(isa for isa in ORDER if isa != "portable" and not FEATURES[isa])
    with pytest.raises(engine.EngineError, match=f"cannot run {absent}") as caught:
        engine.Kernels(absent)
    assert caught.value.kind == "unsupported"


def test_refusal_has_one_reason_for_each_entry_of_the_kind() -> None:
    kernels = engine.Kernels()
    found, reasons = kernels.find(ATTENTION | {"head_dim": 72, "kv": "q8_0"})
    assert found is None
    of_kind = [e["id"] for e in kernels.entries() if e["kind"] == "attention"]
    assert [text.split(": ")[0] for _, text in reasons] == of_kind
    assert all("kv is int8, takes f16, f32" in text for _, text in reasons)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"head_dim": 4}, "head_dim is 4, takes 8 to 256"),
        ({"head_dim": 512}, "head_dim is 512, takes 8 to 256"),
        ({"head_dim": 100}, "head_dim is 100, takes multiples of 8"),
        ({"page_tokens": 16}, "page_tokens is 16, takes 32"),
        ({"heads": 10}, "heads is 10, takes multiples of 3"),
        ({"kv_heads": 0}, "kv_heads is 0"),
    ],
)
def test_attention_shapes(change: dict[str, Any], text: str) -> None:
    found, reasons = engine.Kernels().find(ATTENTION | change)
    assert found is None
    assert any(text in reason for _, reason in reasons)


def test_head_dim_that_wide_lanes_do_not_divide_takes_the_next_kernel() -> None:
    found, _ = engine.Kernels().find(ATTENTION | {"head_dim": 40})
    rest = [isa for isa in present() if isa != "avx512vnni"]
    assert found == f"attention.online_softmax.page32.{rest[0]}"


def test_float_weights_refuse_int8_activations() -> None:
    found, reasons = engine.Kernels().find(MATMUL | {"weight": "f16"})
    assert found is None
    assert any("act is i8block, takes f32" in text for _, text in reasons)


def test_k_must_be_whole_blocks() -> None:
    found, reasons = engine.Kernels().find(MATMUL | {"weight": "q6_k", "k": 640})
    assert found is None
    assert any("k is 640, takes multiples of 256" in text for _, text in reasons)


def test_feature_that_no_kernel_names() -> None:
    found, reasons = engine.Kernels().find({"kind": "swiglu", "k": 64, "features": ["bias"]})
    assert found is None
    assert {code for code, _ in reasons} == {"kernel.feature"}
    assert all("bias" in text for _, text in reasons)


# --- masks


def found_with(request: dict[str, Any], *masks: str) -> Any:
    return engine.Kernels("portable", list(masks)).find(request)


def test_mask_hides_and_says_so() -> None:
    found, reasons = found_with(MATMUL, "matmul*")
    assert found is None
    masked = [text for code, text in reasons if code == "kernel.masked"]
    assert masked == ["matmul.rows16.q4_1_x_i8.portable: hidden by --without-kernel 'matmul*'"]


@pytest.mark.parametrize(
    ("mask", "is_hidden"),
    [
        ("*", True),
        ("matmul.rows16.q4_1_x_i8.portable", True),
        ("matmul.rows16.q4_?_x_i8.*", True),
        ("*q4_[01]*", True),
        ("*q4_[!01]*", False),
        ("*q4_[0-9]*", True),
        ("*q4_[a-z]*", False),
        ("matmul", False),
        ("attention*", False),
        ("*:rows>=4", True),
        ("*:rows>4", False),
        ("*:rows<4", False),
        ("*:rows<=4", True),
        ("*:rows!=4", False),
        ("*:rows=4", True),
        ("*:sequences>1", False),
        ("*:weight=q4_1", True),
        ("*:weight=iq4_nl", False),
        ("*:weight!=q4_1", False),
        ("*:act=i8block", True),
        ("*:act=int8", True),
        ("*:act=f32", False),
        ("*:kv=none", True),
        ("*:n=64", True),
        ("*:k>64", False),
        ("*:heads=0", True),
        ("*:kv_heads=1", False),
        ("*:head_dim>0", False),
        ("*:rope_dims>0", False),
        ("*:page_tokens=32", False),
    ],
)
def test_globs_and_conditions(mask: str, is_hidden: bool) -> None:
    found, _ = found_with(MATMUL, mask)
    assert (found is None) == is_hidden


def test_masks_add_up() -> None:
    assert found_with(ATTENTION, "attention*:sequences>2")[0] is not None
    assert found_with(ATTENTION, "attention*:sequences>2", "*:kv=f16")[0] is None


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        ("", "no kernel pattern"),
        (":rows>1", "no kernel pattern"),
        ("*:", "has no operator"),
        ("*:rows", "has no operator"),
        ("*:rows>", "cannot read '>'"),
        ("*:rows==4", "cannot read '==4'"),
        ("*:rows=>4", "cannot read '=>4'"),
        ("*:rows>four", "'four' is no whole number"),
        ("*:rows>-1", "'-1' is no whole number"),
        ("*:rows>4294967296", "'4294967296' is no whole number"),
        ("*:colour=4", "no field is named 'colour'; fields are weight, act, kv, rows"),
        ("*:weight=q9_9", "no type is named 'q9_9'"),
        ("*:weight<q4_0", "takes = and != only"),
    ],
)
def test_unreadable_masks(mask: str, text: str) -> None:
    with pytest.raises(engine.EngineError) as caught:
        engine.Kernels("portable", [mask])
    assert text in str(caught.value)
    assert f"--without-kernel '{mask}'" in str(caught.value)
    assert caught.value.code == "config.without_kernel"
