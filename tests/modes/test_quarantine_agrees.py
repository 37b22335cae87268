"""What a quarantine entry hides is one fact on both sides: the real engine's CAPS against the
supervisor's own judgement of the same configurations, for each axis of the schema's list.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from strata.engines.modes import QUARANTINED
from strata.engines.modes.quarantined import hides, is_mode
from strata_protocol import messages as m
from strata_protocol.limits import CONTEXT_MIN, MODE_PLAINEST

from tests.system.engine_driver import Engine
from tools.synth_model import Shape, write_model


@dataclass(frozen=True)
class Record:
    mode: str
    text: str = "a crash"


VALUES = {
    "batch": ["1", "2", "3", "8"],
    "max_context": ["1", "96", str(CONTEXT_MIN), str(CONTEXT_MIN + 1), "512"],
    "kv": ["f32", "f16"],
    "prefill": ["1", "16", "256"],
    "activations": ["f32", "int8"],
    "prefix_cache": ["on"],
    "mtp": ["model", "off"],
    "spec": ["1", "2", "4"],
    "batch_mtp": ["on", "off"],
}
ENTRIES = [*VALUES, *(f"{axis}={value}" for axis, values in VALUES.items() for value in values)]


def test_every_axis_of_the_schema_is_tried() -> None:
    assert list(VALUES) == list(MODE_PLAINEST)
    assert all(is_mode(entry) for entry in ENTRIES)
    assert not is_mode("kv_resident")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    return write_model(path, Shape(draft_layers=1), kind="q4_0")


def caps(engine_path: Path, model: Path, context: int, *quarantine: str) -> m.Caps:
    with Engine(engine_path) as engine:
        engine.expect(m.Hello)
        offer = engine.offer(model, batch=4, spec=4, batch_mtp="on", max_context=context)
        engine.send(m.Offer(**{**fields(offer), "quarantine": list(quarantine)}))
        return engine.expect(m.Caps)


def fields(offer: m.Offer) -> dict[str, object]:
    return {name: getattr(offer, name) for name in offer.__struct_fields__}


@pytest.mark.parametrize("context", [96, 512])
@pytest.mark.parametrize("entry", ENTRIES)
def test_both_sides_hide_the_same(engine_path: Path, model: Path, entry: str, context: int) -> None:
    found = caps(engine_path, model, context, entry)
    verdicts = {
        c.plan: any(found.reasons[i].code == QUARANTINED for i in c.missing)
        for c in found.configurations
    }
    wrong = [plan for plan, hidden in verdicts.items() if hidden != hides(Record(entry), plan)]
    assert not wrong
    if entry.startswith("prefix_cache"):  # switched off rather than kept from being offered
        assert not any(c.plan.prefix_cache for c in found.configurations)
    elif entry in ("batch", "prefill", "spec", "mtp", "kv=f16", "batch_mtp=on", "activations=int8"):
        assert set(verdicts.values()) == {True, False}


def test_an_axis_that_is_not_of_the_list_is_refused(engine_path: Path, model: Path) -> None:
    with Engine(engine_path) as engine:
        engine.expect(m.Hello)
        offer = engine.offer(model)
        engine.send(m.Offer(**{**fields(offer), "quarantine": ["kv_resident"]}))
        (reason,) = engine.expect(m.Refuse).reasons
    assert reason.code == "config.quarantine"
    assert ", ".join(MODE_PLAINEST) in reason.text
