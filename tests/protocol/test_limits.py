from __future__ import annotations

import re
from pathlib import Path

import pytest
from strata_protocol.limits import MODE_MAX
from strata_protocol.messages import ModePlan, WantedModes

CODES = Path(__file__).resolve().parents[2] / "protocol/cpp/codes.h"


@pytest.mark.parametrize("name", MODE_MAX)
def test_a_limit_belongs_to_a_field_and_admits_its_default(name: str) -> None:
    assert name in ModePlan.__struct_fields__
    assert 0 <= getattr(WantedModes(), name) <= MODE_MAX[name] < 2**63


def test_the_engine_has_the_same_limits() -> None:
    found = re.findall(r"constexpr (\w+) k(\w+)Max = (\d+);", CODES.read_text(encoding="utf-8"))
    names = {"".join(part.capitalize() for part in name.split("_")): name for name in MODE_MAX}
    assert {names[name]: int(value) for _, name, value in found} == MODE_MAX
    assert {names[name]: kind for kind, name, _ in found} == {
        "batch": "uint32_t",
        "prefill": "uint32_t",
        "threads": "uint32_t",
        "kv_tokens": "uint64_t",
        "spec": "uint32_t",
    }
