"""Reason codes: what engine and supervisor can emit is what protocol/strata_protocol/reasons.py
lists, nothing else and nothing less."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from strata_protocol.messages import WantedModes
from strata_protocol.reasons import REASONS, find_reason

from tests.style.test_tidy import REPOSITORY, tracked

CODE = re.compile(r"[a-z]+\.[a-z][a-z0-9_]*")
LIST = "protocol/strata_protocol/reasons.py"
LISTS = {LIST, "protocol/strata_protocol/decision_reasons.py"}
# First parts of dotted texts that are no codes: keys of GGUF files, names of memory parts, of
# control group files, of loggers, of OpenAI's objects.
OTHER_FIRST = {
    *("attention", "general", "hyper_connection", "indexer", "nextn", "ple", "rope", "split"),
    *("ssm", "tokenizer"),
    *("aiohttp", "asyncio", "chat", "memory", "strata", "weights"),
}
MEMORY_PARTS = {
    *("drafter.activations", "drafter.hidden", "drafter.kv", "drafter.logits"),
    *("kv.index", "state.checkpoints"),
}
FILE_NAME = re.compile(
    r".*\.(bin|cpp|gguf|gz|h|html|json|jsonl|lock|log|md|py|sock|toml|txt|weight)"
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
SOURCES = [
    name
    for name in tracked(".cpp", ".h", ".py")
    if name.startswith(("engine/", "protocol/cpp/", "protocol/strata_protocol/", "supervisor/"))
    and name not in LISTS
]


def is_code(text: str) -> bool:
    return (
        CODE.fullmatch(text) is not None
        and FILE_NAME.fullmatch(text) is None
        and text not in MEMORY_PARTS
        and text.partition(".")[0] not in OTHER_FIRST
    )


def texts_of(name: str) -> set[str]:
    """All string constants of a source file, without comments."""
    source = (REPOSITORY / name).read_text()
    if name.endswith(".py"):
        nodes = ast.walk(ast.parse(source))
        return {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return set(re.findall(r'"((?:[^"\\\n]|\\.)*)"', COMMENT.sub("", source)))


TEXTS = {name: texts_of(name) for name in SOURCES}


@pytest.mark.parametrize("name", [name for name in SOURCES if any(map(is_code, TEXTS[name]))])
def test_codes_in_the_sources_are_listed(name: str) -> None:
    unlisted = {text for text in TEXTS[name] if is_code(text) and find_reason(text) is None}
    assert not unlisted, f"{name}: add to {LIST}, with meaning and what to do: {sorted(unlisted)}"


def test_listed_codes_are_in_the_sources() -> None:
    used = set().union(*TEXTS.values())
    unused = {e.code for e in REASONS if (e.prefix or e.code) not in used}
    assert not unused, f"{LIST} lists what nothing emits: {sorted(unused)}"


def test_the_scan_finds_codes_and_no_file_names(tmp_path: Path) -> None:
    source = tmp_path / "x.cpp"
    source.write_text('throw Error(k, "mem.new", "a b"); // "mem.comment"\nopen("state.json");')
    assert {t for t in texts_of(str(source)) if is_code(t)} == {"mem.new"}


def test_each_code_is_listed_once_and_says_what_to_do() -> None:
    codes = [entry.code for entry in REASONS]
    assert len(set(codes)) == len(codes)
    for entry in REASONS:
        assert entry.meaning.endswith("."), entry
        assert entry.action.endswith("."), entry


def test_families_stand_for_their_codes_only() -> None:
    for name in WantedModes.__struct_fields__:
        found = find_reason(f"config.{name}")
        assert found is not None
        assert found.code == "config.<mode>"
    assert find_reason("config.isa") not in (None, find_reason("config.batch"))
    assert find_reason("config.") is None
    assert find_reason("kernel.unheard_of") is None
