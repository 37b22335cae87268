"""No mode is accepted that will not run: hundreds of combinations, each put to a real engine."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from strata_protocol import messages as m

from tests.modes.matrix import (
    READY_LEAST,
    Checker,
    Combination,
    Models,
    Outcome,
    Served,
    all_pairs,
    combinations,
    left_out,
    memory_failures,
    pairs,
)

COUNT = 800
SAMPLE = 8  # of every so many combinations, all ready configurations are run
WORKERS = 3  # each waits for a process of its own most of the time
ISAS = ("avx512vnni", "avx2", "neon", "portable")


@pytest.fixture(scope="module")
def served(engine_path: Path) -> set[Served]:
    """What the engine says that its kernels take, with nothing hidden."""
    done = subprocess.run([engine_path, "--describe"], capture_output=True, check=True, timeout=60)
    rows = json.loads(done.stdout)["ops"]
    return {(row["op"], field, row[field]) for row in rows for field in ("weight", "kv")}


@pytest.fixture(scope="module")
def isas(engine_path: Path) -> list[str]:
    """Those that this processor runs."""
    runs = [
        isa
        for isa in ISAS
        if subprocess.run(
            [engine_path, "--isa", isa, "--describe"], capture_output=True, check=False, timeout=60
        ).returncode
        == 0
    ]
    assert "portable" in runs
    return runs


def test_every_pair_of_levels_is_met(isas: list[str]) -> None:
    met = {pair for c in combinations(isas, COUNT) for pair in pairs(c.levels)}
    assert met == set(all_pairs(isas))


def caps_of(needed: int, *codes: str) -> m.Caps:
    """Of one configuration that needs so many bytes, with these reasons in its way."""
    plan = m.ModePlan(1, 64, "f32", 1, "f32", threads=1, kv_tokens=64)
    memory = [m.MemoryPart("weights.packed", needed - 64), m.MemoryPart("kv", 64)]
    reasons = [m.Reason(code=code, text=f"{code} of 4 rows") for code in codes]
    asked = m.Configuration(plan=plan, missing=list(range(len(reasons))), memory=memory)
    device = m.DeviceFacts(memory_available_bytes=1 << 40)
    host, model = m.HostFacts(), m.ModelFacts(layers=1)
    return m.Caps(host, model, configurations=[asked], reasons=reasons, device=device)


@pytest.mark.parametrize(
    ("needed", "codes", "is_true"),
    [
        (950_000, (), True),  # of a million, less a twentieth
        (950_001, ("mem.insufficient",), True),
        (950_000, ("mem.insufficient",), False),
        (950_000, ("kernel.missing",), True),
        (970_000, (), False),
        (970_000, ("kernel.missing",), False),
    ],
)
def test_reasons_of_memory_are_held_against_its_parts(
    needed: int, codes: tuple[str, ...], is_true: bool
) -> None:
    combination = Combination((("device_memory", 1_000_000),))
    assert (memory_failures(caps_of(needed, *codes), combination) == []) is is_true


def test_reasons_that_a_report_leaves_out_are_counted_by_kind() -> None:
    caps = caps_of(100, "kernel.missing", "kernel.none", "kv.block")
    caps.reasons.append(m.Reason(code="kv.block", text="kv.block of 17 rows"))
    caps.configurations[0].missing.append(3)
    assert left_out(caps, caps.reasons[:1]) == 2
    assert left_out(caps, caps.reasons) == 0


@pytest.mark.timeout(300)  # a minute on two cores of its own
def test_accepted_but_failed_is_zero(
    engine_path: Path,
    isas: list[str],
    served: set[Served],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = combinations(isas, COUNT)
    models = Models(tmp_path)
    for combination in chosen:
        models.path(str(combination["shape"]), str(combination["types"]))
    checker = Checker(engine_path, models, served)
    with ThreadPoolExecutor(WORKERS) as pool:
        futures = [
            pool.submit(checker.check, combination, all_ready=i % SAMPLE == 0)
            for i, combination in enumerate(chosen)
        ]
        outcomes: list[Outcome] = [future.result() for future in futures]
    counts = Counter(
        "accepted" if o.accepted else "fell back" if o.fallback else "refused" for o in outcomes
    )
    failed = [
        f"{combination}: {failure}"
        for combination, outcome in zip(chosen, outcomes, strict=True)
        for failure in outcome.failures
    ]
    with capsys.disabled():
        runs, ready = (sum(getattr(o, name) for o in outcomes) for name in ("runs", "ready"))
        print(
            f"\n{len(chosen)} combinations: {dict(counts)}, ran {runs} of {ready} ready"
            f" configurations, failed {len(failed)}"
        )
    assert not failed, "\n".join(failed[:20])
    assert all(o.runs >= min(o.ready, READY_LEAST) for o in outcomes)
    sampled = outcomes[::SAMPLE]
    assert all(o.runs == o.ready for o in sampled)
    assert sum(o.ready > READY_LEAST for o in sampled) >= 20  # it runs more than the others do
    assert min(counts[kind] for kind in ("accepted", "fell back", "refused")) >= 20, counts
