"""Rules of STYLE.md that a script can check, over the files git knows."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
LINES_MAX = 450
TEST_LINES_MAX = 600
KERNEL_LINES_MAX = 900
GENERATED = {"protocol/cpp/messages.h", "protocol/cpp/messages.cpp"}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
BANNED_WORDS = re.compile(r"\b(FIXME|XXX|HACK)\b")

# A folder may include or import from itself and from the folders named here.
CPP_LAYERS: dict[str, set[str]] = {
    "engine/base": set(),
    "engine/quant": {"engine/base"},
    "engine/gguf": {"engine/base", "engine/quant"},
    "engine/model": {"engine/base", "engine/quant", "engine/gguf", "engine/plan"},
    "engine/plan": {"engine/base", "engine/quant", "engine/gguf", "engine/model", "protocol/cpp"},
    "engine/backend": {"engine/base", "engine/quant", "engine/gguf", "engine/model", "engine/plan"},
    "engine/cpu": {"engine/base", "engine/quant", "engine/plan", "engine/backend"},
    "engine/cuda": {"engine/base", "engine/quant", "engine/plan", "engine/backend"},
    "engine/metal": {"engine/base", "engine/quant", "engine/plan", "engine/backend"},
    "engine/state": {"engine/base", "engine/plan", "engine/backend"},
    "engine/decode": {"engine/base", "engine/backend"},
    "protocol/cpp": {"engine/base"},
}
PYTHON_LAYERS: dict[str, set[str]] = {
    "strata_protocol": set(),
    "strata.engines": {"strata_protocol", "strata.config", "strata.errors"},
    "strata.serving": {"strata_protocol", "strata.engines", "strata.config", "strata.errors"},
    "strata.text": {"strata.errors"},
    "strata.api": {
        "strata_protocol",
        "strata.serving",
        "strata.text",
        "strata.engines.modes",
        "strata.observe",
        "strata.errors",
    },
    "strata.observe": {
        "strata_protocol",
        "strata.engines",
        "strata.serving",
        "strata.config",
        "strata.errors",
    },
}


def tracked(*suffixes: str) -> list[str]:
    """Tracked and new source files with one of the suffixes, relative to the repository."""
    try:
        out = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a git checkout")
    return [f for f in out.splitlines() if f.endswith(suffixes) and (REPOSITORY / f).exists()]


@pytest.mark.parametrize("name", tracked(".py", ".cpp", ".h"))
def test_source_file(name: str) -> None:
    text = (REPOSITORY / name).read_text()
    stem = Path(name).stem
    assert stem not in BANNED_NAMES, f"{name}: say what it owns instead of {stem!r}"
    if name != "tests/style/test_tidy.py":
        found = BANNED_WORDS.search(text)
        assert found is None, f"{name}: {found and found.group()}"
    if name not in GENERATED:
        limits = {"engine/cpu/": KERNEL_LINES_MAX, "tests/": TEST_LINES_MAX}
        limit = next((n for p, n in limits.items() if name.startswith(p)), LINES_MAX)
        assert text.count("\n") <= limit, f"{name}: more than {limit} lines"
    if text.strip() and not name.startswith("tests/"):
        first = text.lstrip().removeprefix("#!/usr/bin/env python3").lstrip()
        assert first.startswith(("//", '"""', "#")), (
            f"{name}: does not start by saying what it owns"
        )


@pytest.mark.parametrize(
    "name", [f for f in tracked(".cpp", ".h") if f.startswith(("engine/", "protocol/"))]
)
def test_cpp_includes_point_one_way(name: str) -> None:
    folder = str(Path(name).parent)
    if folder not in CPP_LAYERS:
        return
    allowed = CPP_LAYERS[folder] | {folder}
    for include in re.findall(
        r'^#include "([^"]+)"', (REPOSITORY / name).read_text(), re.MULTILINE
    ):
        assert str(Path(include).parent) in allowed, f"{name} includes {include}"


def python_module(name: str) -> str:
    return ".".join(Path(name).with_suffix("").parts[1:]).removesuffix(".__init__")


def imported(name: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse((REPOSITORY / name).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {m for m in found if m.startswith(("strata", "strata_protocol"))}


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


@pytest.mark.parametrize(
    "name", [f for f in tracked(".py") if f.startswith(("supervisor/", "protocol/strata"))]
)
def test_python_imports_point_one_way(name: str) -> None:
    module = python_module(name)
    modules = imported(name)
    assert not any(within(m, "strata_engine_testing") for m in modules), f"{name}: tests only"
    for layer, allowed in PYTHON_LAYERS.items():
        if not within(module, layer):
            continue
        for other in modules:
            assert any(within(other, p) for p in allowed | {layer}), f"{name} imports {other}"
    if (
        not within(module, "strata.text")
        and not within(module, "strata.api")
        and module
        not in {
            "strata.cli",
            "strata.__main__",
        }
    ):
        assert not any(within(m, "strata.text") for m in modules), (
            f"{name}: text is used by api only"
        )


def test_every_folder_is_on_the_map() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text()
    folders = {str(Path(f).parent) for f in tracked(".py", ".cpp", ".h")}
    missing = sorted(f for f in folders if f not in {".", "tests"} and f"`{f}/`" not in text)
    assert not missing, f"ARCHITECTURE.md has no line for {missing}"
