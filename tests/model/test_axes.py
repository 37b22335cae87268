"""Each axis by itself: how "auto" resolves, what stands in its way, and what is given instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import strata_engine_testing as engine

from tests.model.test_configurations import GIB, SHAPE, codes, negotiate, plans
from tools.synth_model import Shape, write_model


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "m.gguf", SHAPE, kind="q4_1")


@pytest.mark.parametrize("kv", ["bf16", "int8", "q4_0"])
def test_kv_types_are_planned_and_what_they_lack_is_derived(path: Path, kv: str) -> None:
    result = negotiate(path, kv=kv)
    first = result["configurations"][0]
    assert first["plan"]["kv"] == kv
    lacking = [reason["text"] for reason in first["missing"] if reason["code"] == "kernel.missing"]
    assert set(codes(first["missing"])) == (
        set() if kv in result["kv_types"] else {"kernel.kv_type", "kernel.missing"}
    )
    assert all(f"kv={kv}" in text for text in lacking)
    resolved = engine.plan_mode(str(path), engine.ModePlan(**first["plan"]))
    assert [text for _, text in resolved["missing"]] == lacking
    assert plans(result)[1]["kv"] == "f16"  # what is plainer comes next


def test_kv_types_with_kernels_are_those_whose_plans_resolve(path: Path) -> None:
    """Also where kernels are hidden: nothing is typed in."""
    for masks in ([], ["attention*:kv=f16"], ["kv_append*:kv=f32"], ["attention*"]):
        result = negotiate(path, without_kernels=masks)
        plan = result["configurations"][-1]["plan"]
        served = [
            kv
            for kv in ("f32", "f16", "bf16", "int8", "q4_0")
            if not engine.plan_mode(
                str(path), engine.ModePlan(**{**plan, "kv": kv}), without_kernels=masks
            )["missing"]
        ]
        assert result["kv_types"] == served
        asked = result["configurations"][0]["missing"]
        texts = [reason["text"] for reason in asked if reason["code"] == "kernel.kv_type"]
        runs = ", ".join(served)
        expected = f"the backend cpu runs kv {runs} here and has no kernels for f16"
        assert texts == ([expected] if served and "f16" not in served else [])


def test_kv_takes_the_bytes_of_its_type(path: Path) -> None:
    elements = 2 * SHAPE.layers * SHAPE.kv_heads * SHAPE.head_dim
    for kv, bits in {"f32": 32, "f16": 16, "bf16": 16, "int8": 8.5, "q4_0": 4.5}.items():
        first = negotiate(path, kv=kv, batch=1)["configurations"][0]
        assert first["memory"]["kv"] == first["plan"]["kv_tokens"] * elements * bits / 8


@pytest.mark.parametrize("kv", ["int8", "q4_0"])
def test_kv_blocks_must_fill_heads(tmp_path: Path, kv: str) -> None:
    shape = Shape(width=64, heads=4, kv_heads=2, head_dim=16)
    path = write_model(tmp_path / "m.gguf", shape)
    result = negotiate(path, kv=kv)
    (reason,) = (r for r in result["configurations"][0]["missing"] if r["code"] == "kv.block")
    assert reason["text"].startswith(f"kv {kv} stores blocks of 32 elements; heads of 16 ")
    assert result["plan"]["kv"] == "f16"


def test_a_plan_of_a_type_without_kernels_is_refused_with_them(path: Path) -> None:
    plan = engine.ModePlan(max_context=64, kv_tokens=64, kv="q4_0")
    resolved = engine.plan_mode(str(path), plan)
    if not resolved["missing"]:
        pytest.skip("this build has kernels for q4_0")
    with pytest.raises(engine.EngineError, match=r"no kernel for attention .*kv=q4_0") as caught:
        engine.LoadedModel(str(path), plan)
    assert (caught.value.kind, caught.value.code) == ("unsupported", "kernel.missing")


@pytest.mark.parametrize(
    ("values", "text"),
    [({"spec": 8, "mtp": "model"}, "allowed are 0 to 7"), ({"spec": 2}, "drafts need both")],
)
def test_a_plan_whose_drafts_make_no_sense(path: Path, values: dict, text: str) -> None:
    plan = engine.ModePlan(max_context=64, kv_tokens=64, **values)
    with pytest.raises(engine.EngineError, match=text) as caught:
        engine.LoadedModel(str(path), plan)
    assert caught.value.code == "plan.range"


@pytest.mark.parametrize("device", ["auto", "0", engine.DEVICE_NAME])
def test_device_by_name_and_index(path: Path, device: str) -> None:
    assert negotiate(path, device=device)["configurations"][0]["missing"] == []


@pytest.mark.parametrize("device", ["1", "CUDA0", ""])
def test_a_device_that_is_not_there(path: Path, device: str) -> None:
    result = negotiate(path, device=device)
    assert result["plan"] is None
    (reason,) = result["refused"]
    assert reason["code"] == "device.unknown"
    assert f'"{device}"' in reason["text"]
    assert f'0 ("{engine.DEVICE_NAME}", cpu)' in reason["text"]


def test_device_memory_is_a_budget(path: Path) -> None:
    fixed = negotiate(path)["memory"]
    budget = sum(fixed.values()) - fixed["kv"] // 2
    result = negotiate(path, device_memory=budget, kv_tokens=8 * 2048)
    first = result["configurations"][0]
    assert first["missing"] == []
    assert sum(first["memory"].values()) <= budget
    (reason,) = first["shortfalls"]["kv_tokens"]
    assert reason["code"] == "mem.kv_budget"
    assert f"need {fixed['kv'] / 2**20:.0f} MiB" in reason["text"]
    assert "allowed by device_memory" in reason["text"]
    assert f"chose {first['plan']['kv_tokens']} tokens" in reason["text"]


def test_device_memory_beyond_what_is_there_changes_nothing(path: Path) -> None:
    assert negotiate(path, device_memory=1 << 50) == negotiate(path)


def test_too_little_device_memory_says_what_is_needed_by_part(path: Path) -> None:
    result = negotiate(path, device_memory=1 << 16, memory_available=8 * GIB)
    text = result["refused"][0]["text"]
    assert text.startswith("need ")
    for part in ("weights.packed", "activations", "logits", "kv", "have 0 MiB allowed by device"):
        assert part in text


def test_residency_is_planned_and_not_built(path: Path) -> None:
    result = negotiate(path, kv_resident=1024)
    first = result["configurations"][0]
    assert first["plan"]["kv_resident"] == 1024
    assert codes(first["missing"]) == ["mode.not_built"]
    assert "no kernel moves keys and values" in first["missing"][0]["text"]
    assert result["plan"] == first["plan"] | {"kv_resident": 0}


def test_experts_of_a_model_without_any(path: Path) -> None:
    assert negotiate(path, expert_cache="auto")["configurations"][0]["shortfalls"] == {}
    first = negotiate(path, expert_cache="8")["configurations"][0]
    assert first["missing"] == []
    assert first["plan"]["expert_cache"] == "off"
    assert codes(first["shortfalls"]["expert_cache"]) == ["model.no_experts"]


@pytest.mark.parametrize(("mtp", "text"), [("auto", "no draft layers"), ("off", "mtp is off")])
def test_drafts_asked_for_without_a_drafter(path: Path, mtp: str, text: str) -> None:
    first = negotiate(path, mtp=mtp, spec=2, batch_mtp="on")["configurations"][0]
    assert first["missing"] == []
    assert (first["plan"]["mtp"], first["plan"]["spec"]) == ("off", 0)
    for axis in ("spec", "batch_mtp"):
        (reason,) = first["shortfalls"][axis]
        assert reason["code"] == "mode.no_drafts"
        assert text in reason["text"]


def test_context_threads_and_locks_are_shortfalls(path: Path) -> None:
    first = negotiate(path, max_context=4096, threads=9, mlock=True, memory_lockable=1 << 16)[
        "configurations"
    ][0]
    assert first["missing"] == []
    assert (first["plan"]["max_context"], first["plan"]["threads"]) == (2048, 4)
    assert not first["plan"]["mlock"]
    found = {axis: codes(reasons) for axis, reasons in first["shortfalls"].items()}
    assert found == {
        "max_context": ["model.context"],
        "threads": ["host.cores"],
        "mlock": ["mem.memlock"],
    }


def test_locks_and_maps_as_asked(path: Path) -> None:
    first = negotiate(path, mlock=True, mmap=False, memory_lockable=1 << 40)["configurations"][0]
    assert first["shortfalls"] == {}
    assert (first["plan"]["mlock"], first["plan"]["mmap"]) == (True, False)
    assert "weights.mapped" not in first["memory"]


@pytest.mark.parametrize(
    ("entry", "field", "hidden", "given"),
    [
        ("batch=8", "batch", 8, 4),
        ("kv=f16", "kv", "f16", "f32"),
        ("activations", "activations", "int8", "f32"),
        ("prefill=200", "prefill", 256, 128),
        ("max_context=1500", "max_context", 2048, 1024),
        ("max_context", "max_context", 2048, 256),
    ],
)
def test_quarantine_hides_a_value_and_leaves_a_way(
    path: Path, entry: str, field: str, hidden: object, given: object
) -> None:
    result = negotiate(path, quarantine=[entry])
    first = result["configurations"][0]
    assert first["plan"][field] == hidden
    assert codes(first["missing"]) == ["mode.quarantined"]
    assert first["missing"][0]["text"] == f"{field} {hidden} is in quarantine ({entry})"
    assert result["plan"][field] == given
    for configuration in result["configurations"]:
        is_hidden = "mode.quarantined" in codes(configuration["missing"])
        assert is_hidden == (configuration["plan"][field] == hidden) or field == "batch"


@pytest.mark.parametrize(
    ("entry", "runs"),
    [
        ("mtp", lambda plan: plan["mtp"] == "off"),
        ("mtp=model", lambda plan: plan["mtp"] == "off"),
        ("spec=2", lambda plan: plan["spec"] < 2),
        ("spec", lambda plan: plan["spec"] == 0),
        ("batch_mtp", lambda plan: not plan["batch_mtp"]),
    ],
)
def test_quarantine_of_drafts(tmp_path: Path, entry: str, runs: object) -> None:
    shape = Shape(width=64, heads=4, kv_heads=2, head_dim=16, draft_layers=1)
    path = write_model(tmp_path / "m.gguf", shape)
    result = negotiate(path, quarantine=[entry])
    assert "mode.quarantined" in codes(result["configurations"][0]["missing"])
    for configuration in result["configurations"]:
        is_hidden = "mode.quarantined" in codes(configuration["missing"])
        assert is_hidden != runs(configuration["plan"])  # type: ignore[operator]


def test_quarantine_is_about_what_would_run(path: Path) -> None:
    """A context that memory shortens below the hidden value is not in quarantine."""
    result = negotiate(path, kv_tokens=1024, quarantine=["max_context=1500"])
    first = result["configurations"][0]
    assert (first["plan"]["max_context"], first["missing"]) == (1024, [])


def test_quarantine_of_the_prefix_cache_switches_it_off(path: Path) -> None:
    first = negotiate(path, quarantine=["prefix_cache"])["configurations"][0]
    assert (first["missing"], first["plan"]["prefix_cache"]) == ([], False)
    assert codes(first["shortfalls"]["prefix_cache"]) == ["mode.quarantined"]
