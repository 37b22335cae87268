"""Negotiation from headers: what is offered resolves and fits, and every limit has reasons."""

from __future__ import annotations

import dataclasses
import os
import platform
from pathlib import Path

import pytest
import strata_engine_testing as engine
from strata_protocol.limits import BATCH_MAX, KV_TOKENS_MAX, PREFILL_MAX, SPEC_MAX, THREADS_MAX

from tools.synth_model import Shape, write_model

SHAPE = Shape(width=256, heads=8, kv_heads=2, head_dim=32, ff=512, context=2048)
GIB = 1 << 30
TOKEN_BYTES_F16 = 2 * SHAPE.layers * SHAPE.kv_heads * SHAPE.head_dim * 2


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models")
    return str(write_model(folder / "m.gguf", SHAPE, kind="q4_1"))


def negotiate(path: str, *, memory: int = 8 * GIB, cores: int = 4, **options: object) -> dict:
    """Wanted modes are keywords of WantedModes; masks and quarantine keep their names."""
    outer = {k: options.pop(k) for k in ("without_kernels", "quarantine") if k in options}
    want = engine.WantedModes(**options)
    return engine.negotiate(path, want, memory_available=memory, cores=cores, **outer)


def asked(result: dict) -> dict:
    """The configuration that is what was asked."""
    return result["configurations"][0]


def shortfalls(result: dict) -> dict:
    """Axis: reasons of the first configuration that can run, whose plan is the result's."""
    runs = next(found for found in result["configurations"] if not found["missing"])
    assert runs["plan"] == result["plan"]
    return runs["shortfalls"]


def given_up(result: dict) -> set[str]:
    """Axes in which what runs differs from what was asked; the pool's size follows from them."""
    wanted = asked(result)["plan"]
    return {axis for axis, runs in result["plan"].items() if runs != wanted[axis]} - {"kv_tokens"}


def find(result: dict, **values: object) -> dict:
    """The one configuration with these values and otherwise as asked."""
    wanted = asked(result)["plan"] | values
    del wanted["kv_tokens"]
    (found,) = (c for c in result["configurations"] if c["plan"].items() >= wanted.items())
    return found


def assert_plan_runs(path: str, plan: dict, masks: list[str]) -> None:
    """Every operation of the offered plan has a kernel under the same masks."""
    ops = engine.plan_ops(path, engine.ModePlan(**plan), without_kernels=masks)
    assert ops
    assert all(op["kernel"] for op in ops)


def test_everything_is_ready(path: str) -> None:
    result = negotiate(path)
    assert result["refused"] == []
    assert result["plan"] == {
        "batch": 8,
        "max_context": 2048,
        "kv": "f16",
        "prefill": 256,
        "activations": "int8",
        "threads": 4,
        "kv_tokens": 8 * 2048,
        "prefix_cache": True,
        "mtp": "off",
        "spec": 0,
        "spec_min_p": 0.0,
        "batch_mtp": False,
        "mmap": True,
        "mlock": False,
        "expert_cache": "off",
        "kv_resident": 0,
        "mtp_hidden_norm": "auto",
    }
    assert asked(result)["plan"] == result["plan"]
    assert asked(result)["missing"] == []
    assert asked(result)["shortfalls"] == {}
    assert_plan_runs(path, result["plan"], [])


@pytest.mark.parametrize(
    ("mask", "axis", "wanted", "runs"),
    [
        ("*:sequences>1", "batch", 8, 1),
        ("*:sequences>3", "batch", 8, 2),
        ("attention*:kv=f16", "kv", "f16", "f32"),
        ("matmul*:act=i8block", "activations", "int8", "f32"),
        ("quantize*", "activations", "int8", "f32"),
        ("*:rows>100", "prefill", 256, 64),
    ],
)
def test_masked_kernels_limit_one_axis(
    path: str, mask: str, axis: str, wanted: object, runs: object
) -> None:
    # The fused norm must not stand in where rounding itself is masked.
    masks = [mask, "rms_norm_quantize*"] if mask == "quantize*" else [mask]
    result = negotiate(path, without_kernels=masks)
    assert (asked(result)["plan"][axis], result["plan"][axis]) == (wanted, runs)
    missing = asked(result)["missing"]
    lacking = [reason for reason in missing if reason["code"] == "kernel.missing"]
    assert lacking
    assert all(mask in reason["text"] for reason in lacking)
    assert [reason["code"] for reason in missing if reason not in lacking] == (
        ["kernel.kv_type"] if axis == "kv" else []
    )
    assert given_up(result) == {axis}
    assert shortfalls(result) == {}
    assert_plan_runs(path, result["plan"], masks)


def test_all_missing_kernels_are_listed(path: str) -> None:
    result = negotiate(path, without_kernels=["*:sequences>1"])
    text = "\n".join(reason["text"] for reason in asked(result)["missing"])
    for op in ("embed", "rms_norm", "matmul", "rope", "kv_append", "attention", "swiglu", "add"):
        assert f"no kernel for {op} " in text
    assert "weight=q4_1" in text
    assert "n=512 k=256" in text  # shapes
    assert "blk.0.ffn_gate.weight" in text  # and the first tensor that needs it
    assert "more like it" in text


def test_two_masks_limit_two_axes(path: str) -> None:
    masks = ["*:sequences>1", "attention*:kv=f16"]
    result = negotiate(path, without_kernels=masks)
    assert (result["plan"]["batch"], result["plan"]["kv"]) == (1, "f32")
    assert given_up(result) == {"batch", "kv"}
    for found, mask in (
        (find(result, kv="f32"), masks[0]),
        (find(result, batch=1), masks[1]),
    ):
        lacking = [r for r in found["missing"] if r["code"] == "kernel.missing"]
        assert lacking
        assert all(mask in reason["text"] for reason in lacking)
    assert_plan_runs(path, result["plan"], masks)


def test_nothing_runs(path: str) -> None:
    result = negotiate(path, without_kernels=["swiglu*", "rope*"])
    assert result["plan"] is None
    assert {reason["code"] for reason in result["refused"]} == {"kernel.missing"}
    text = "\n".join(reason["text"] for reason in result["refused"])
    assert "no kernel for swiglu " in text
    assert "no kernel for rope " in text


def test_loading_a_plan_without_kernels_refuses_with_the_list(path: str) -> None:
    plan = engine.ModePlan(max_context=64, kv_tokens=64)
    with pytest.raises(engine.EngineError, match="no kernel for swiglu ") as caught:
        engine.LoadedModel(path, plan, without_kernels=["swiglu*", "rope*"])
    assert (caught.value.kind, caught.value.code) == ("unsupported", "kernel.missing")
    assert "no kernel for rope " in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "axis", "runs"),
    [
        ("batch", "batch", 1),
        ("batch=8", "batch", 4),
        ("batch=4", "batch", 2),
        ("kv=f16", "kv", "f32"),
        ("kv", "kv", "f32"),
        ("activations=int8", "activations", "f32"),
        ("prefill=256", "prefill", 128),
    ],
)
def test_quarantine(path: str, entry: str, axis: str, runs: object) -> None:
    result = negotiate(path, quarantine=[entry, "mtp"])
    assert result["plan"][axis] == runs
    assert given_up(result) == {axis}
    (reason,) = asked(result)["missing"]
    assert reason["code"] == "mode.quarantined"
    assert entry in reason["text"]
    assert shortfalls(result) == {}


def test_quarantine_of_the_prefix_cache(path: str) -> None:
    result = negotiate(path, quarantine=["prefix_cache", "mtp"])
    assert not result["plan"]["prefix_cache"]
    assert asked(result)["missing"] == []
    ((axis, (reason,)),) = shortfalls(result).items()
    assert (axis, reason["code"]) == ("prefix_cache", "mode.quarantined")


def test_quarantine_of_every_value_refuses(path: str) -> None:
    result = negotiate(path, quarantine=["kv=f16", "kv=f32"])
    assert result["plan"] is None
    assert result["refused"][0]["code"] == "mode.quarantined"


@pytest.mark.parametrize("entry", ["bach", "batch=", "=4", ""])
def test_unreadable_quarantine(path: str, entry: str) -> None:
    with pytest.raises(engine.EngineError) as caught:
        negotiate(path, quarantine=[entry])
    assert caught.value.code == "config.quarantine"
    assert f'"{entry}"' in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("batch", BATCH_MAX + 1, f"allowed are 1 to {BATCH_MAX}"),
        ("prefill", PREFILL_MAX + 1, f"allowed are 1 to {PREFILL_MAX}"),
        ("threads", THREADS_MAX + 1, f"allowed are 1 to {THREADS_MAX}"),
        ("kv", "q8", "allowed are auto, f32, f16, bf16, int8, q4_0"),
        ("activations", "fp8", "allowed are auto, int8, f32"),
        ("kv_tokens", KV_TOKENS_MAX + 1, f"to {KV_TOKENS_MAX}"),
        ("spec", SPEC_MAX + 1, f"to {SPEC_MAX}"),
        ("spec_min_p", 1.5, "allowed are 0 to 1"),
        ("spec_min_p", float("nan"), "allowed are 0 to 1"),
        ("batch_mtp", "sometimes", "allowed are auto, on and off"),
        ("mtp_hidden_norm", "each", "allowed are auto, stream and whole"),
        ("expert_cache", "many", "allowed are auto, off and a number of experts"),
        ("expert_cache", "0", "allowed are auto, off and a number of experts"),
        ("mtp", "", "allowed are auto, off and the path of a drafter's file"),
    ],
)
def test_wanted_values_out_of_range(path: str, option: str, value: object, text: str) -> None:
    with pytest.raises(engine.EngineError) as caught:
        negotiate(path, **{option: value})
    assert (caught.value.kind, caught.value.code) == ("invalid_request", f"config.{option}")
    assert text in str(caught.value)


def test_context_beyond_the_model(path: str) -> None:
    result = negotiate(path, max_context=4096)
    assert result["plan"]["max_context"] == 2048
    reason = {"code": "model.context", "text": "the model was made for 2048 tokens"}
    assert shortfalls(result) == {"max_context": [reason]}


def test_threads_beyond_the_cores(path: str) -> None:
    result = negotiate(path, threads=9, cores=4)
    assert result["plan"]["threads"] == 4
    (reason,) = shortfalls(result)["threads"]
    assert reason["code"] == "host.cores"


def test_int8_without_quantised_weights(tmp_path: Path) -> None:
    path = str(write_model(tmp_path / "m.gguf", SHAPE, kind="f16"))
    assert shortfalls(negotiate(path)) == {}
    assert negotiate(path)["plan"]["activations"] == "f32"
    result = negotiate(path, activations="int8")
    assert result["plan"]["activations"] == "f32"
    (reason,) = shortfalls(result)["activations"]
    assert reason["code"] == "model.no_quantized_weights"


def fixed_bytes(path: str, **options: object) -> int:
    """What the plan needs beside the KV pool."""
    memory = negotiate(path, **options)["memory"]
    return sum(bytes_ for name, bytes_ in memory.items() if name != "kv")


def test_memory_parts_are_what_loading_allocates(path: str) -> None:
    result = negotiate(path, cores=1)
    model = engine.LoadedModel(path, engine.ModePlan(**result["plan"]))
    assert model.memory == result["memory"]
    assert result["memory"]["kv"] == 8 * 2048 * TOKEN_BYTES_F16
    assert result["memory"]["weights.packed"] > 0
    assert [phase for phase, _, _ in model.progress][-1] == "allocate"
    packed = [(done, total) for phase, done, total in model.progress if phase == "pack"]
    assert packed[0][0] == 0
    assert packed[-1][0] == packed[-1][1] > 0
    assert packed == sorted(packed)


def test_pool_takes_half_of_what_is_left(path: str) -> None:
    fixed = fixed_bytes(path)
    left = 10000 * TOKEN_BYTES_F16
    result = negotiate(path, memory=(fixed + left) * 20 // 19 + 20)
    tokens = result["plan"]["kv_tokens"]
    assert tokens % engine.PAGE_TOKENS == 0
    assert abs(tokens - 5000) <= engine.PAGE_TOKENS
    assert result["plan"]["max_context"] == 2048
    assert shortfalls(result) == {}


def test_pool_holds_one_context_when_half_does_not(path: str) -> None:
    left = 3000 * TOKEN_BYTES_F16
    result = negotiate(path, memory=(fixed_bytes(path) + left) * 20 // 19 + 20)
    assert result["plan"]["kv_tokens"] == 2048
    assert result["plan"]["max_context"] == 2048


def test_short_memory_shortens_the_context(path: str) -> None:
    left = 1000 * TOKEN_BYTES_F16
    result = negotiate(path, memory=(fixed_bytes(path) + left) * 20 // 19 + 20)
    assert result["plan"]["max_context"] == result["plan"]["kv_tokens"] <= 1000
    assert result["plan"]["batch"] == 8
    (reason,) = shortfalls(result)["max_context"]
    assert reason["code"] == "mem.kv_budget"
    assert (
        f"2048 tokens of keys and values need {2048 * TOKEN_BYTES_F16 / 2**20:.0f} MiB"
        in (reason["text"])
    )


def test_shorter_memory_reduces_the_rows(tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, vocab=4096)
    path = str(write_model(tmp_path / "m.gguf", shape, kind="q4_1"))
    small = fixed_bytes(path, prefill=64) + 400 * TOKEN_BYTES_F16
    assert small < fixed_bytes(path)
    result = negotiate(path, memory=small * 20 // 19 + 20)
    assert (asked(result)["plan"]["prefill"], result["plan"]["prefill"]) == (256, 64)
    assert given_up(result) - {"max_context"} == {"prefill"}
    assert [reason["code"] for reason in asked(result)["missing"]] == ["mem.insufficient"]


def test_no_memory_at_all(path: str) -> None:
    result = negotiate(path, memory=4096)
    assert result["plan"] is None
    assert {reason["code"] for reason in result["refused"]} == {"mem.insufficient"}
    texts = [reason["text"] for reason in result["refused"]]
    assert texts[0] == asked(result)["missing"][0]["text"]
    for word in (
        "need ",
        "weights.packed ",
        "activations ",
        "kv f16 ",
        "have 0 MiB assumed device memory",
    ):
        assert word in texts[0]
    smallest = min(result["configurations"], key=lambda c: sum(c["memory"].values()))
    plan = smallest["plan"]
    assert (plan["batch"], plan["kv"], plan["prefill"]) == (1, "f16", 1)
    assert texts[1] == smallest["missing"][0]["text"]
    plainest = result["configurations"][result["plainest"]]
    assert (plainest["plan"]["batch"], plainest["plan"]["prefill"]) == (1, 1)
    assert sum(plainest["memory"].values()) > sum(smallest["memory"].values())


def test_a_shortage_tells_the_need_of_the_asked_kv_and_context(tmp_path: Path) -> None:
    shape = dataclasses.replace(SHAPE, context=1 << 20)
    path = str(write_model(tmp_path / "m.gguf", shape, kind="q4_1"))
    result = negotiate(path, memory=1 << 20, max_context=1 << 20, batch=1)
    (reason,) = asked(result)["missing"]
    need = (1 << 20) * TOKEN_BYTES_F16 / 2**20
    assert f"kv f16 {need:.0f} MiB for {1 << 20} tokens" in reason["text"]
    assert "with the least kv, " in reason["text"]


def test_wanted_pool(path: str) -> None:
    result = negotiate(path, kv_tokens=5000)
    assert result["plan"]["kv_tokens"] == 5024  # whole pages
    assert "kv_tokens" not in shortfalls(result)


def test_wanted_pool_smaller_than_a_page_for_each_sequence(path: str) -> None:
    result = negotiate(path, kv_tokens=100)
    assert result["plan"]["kv_tokens"] == 8 * engine.PAGE_TOKENS
    assert [reason["code"] for reason in shortfalls(result)["kv_tokens"]] == ["mem.kv_minimum"]


def test_wanted_pool_smaller_than_a_context(path: str) -> None:
    result = negotiate(path, kv_tokens=1024)
    assert result["plan"]["max_context"] == 1024
    (reason,) = shortfalls(result)["max_context"]
    assert "kv_tokens of 1024 hold no more than 1024 tokens" in reason["text"]


def test_wanted_pool_beyond_memory(path: str) -> None:
    left = 3000 * TOKEN_BYTES_F16
    memory = (fixed_bytes(path) + left) * 20 // 19 + 20
    result = negotiate(path, kv_tokens=100_000, memory=memory)
    assert [reason["code"] for reason in shortfalls(result)["kv_tokens"]] == ["mem.kv_budget"]
    assert result["plan"]["kv_tokens"] <= 3000
    assert result["plan"]["max_context"] == 2048


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch", 0),
        ("prefill", 0),
        ("threads", 0),
        ("max_context", 2049),
        ("kv_tokens", 0),
        ("kv_tokens", 33),
    ],
)
def test_a_plan_that_the_model_cannot_have(path: str, field: str, value: int) -> None:
    values: dict = {"max_context": 64, "kv_tokens": 64, field: value}
    with pytest.raises(engine.EngineError, match=field) as caught:
        engine.LoadedModel(path, engine.ModePlan(**values))
    assert caught.value.code == "plan.range"


def test_facts_of_this_machine() -> None:
    facts = engine.host_facts()
    assert 1 <= facts["cores"] <= len(os.sched_getaffinity(0))
    assert 0 < facts["memory_available_bytes"] <= facts["memory_total_bytes"]
    assert facts["os"].startswith(platform.system())
    assert facts["cpu"]
