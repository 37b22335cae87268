"""Token ids against llama.cpp's, and what the tokenizer promises beyond them."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strata.text.detokenizer import Detokenizer, detokenize
from strata.text.errors import TextError, TokenizerError
from strata.text.model import TextModel
from strata.text.pre_tokenizers import PRE_TOKENIZERS

from tests.data.text.pre_tokenizer_corpus import NAMES, corpus, vocabulary
from tests.text.small_models import load, metadata, small_model

GROUPS = load("vectors.json")["groups"]


def named(groups: list[dict[str, Any]]) -> list[Any]:
    return [
        pytest.param(group, name, id=f"{group['model']}-{name}")
        for group in groups
        for name in group["names"]
    ]


def test_every_pre_tokenizer_has_vectors() -> None:
    covered = {name for group in GROUPS if group["model"] == "gpt2" for name in group["names"]}
    assert covered == set(PRE_TOKENIZERS)


@pytest.mark.parametrize(("group", "name"), named(GROUPS))
def test_equals_llama_cpp(group: dict[str, Any], name: str) -> None:
    tokenizer = small_model(model=group["model"], pre=name).tokenizer
    for index, text in enumerate(load("vectors.json")["texts"]):
        plain = group["plain"][index]
        special = group["special"].get(str(index), plain)
        assert tokenizer.encode(text, parse_special=False) == plain, text
        assert tokenizer.encode(text, parse_special=True) == special, text


CORPUS = corpus()
CUTS = load("pre_tokenizers.json")


@pytest.mark.parametrize("name", NAMES)
def test_cuts_equal_llama_cpp(name: str) -> None:
    """With a vocabulary that joins all that could be joined, so that each cut shows in the ids."""
    assert len(CORPUS) > 500
    tokenizer = small_model(pre=name, **as_fields(vocabulary(CORPUS))).tokenizer
    tiny = TextModel(load("tiny.json")["vocabulary"] | {"tokenizer.ggml.pre": name}).tokenizer
    first, own = CUTS["ids"][NAMES[0]], CUTS["ids"][name]
    for index, text in enumerate(CORPUS):
        expected = own[index] if name == NAMES[0] else own.get(str(index), first[index])
        assert tokenizer.encode(text, parse_special=False) == expected, repr(text)
        assert digest(tiny.encode(text, parse_special=False)) == CUTS["tiny"][name][index]


@pytest.mark.parametrize(
    ("name", "other", "least"),
    [("qwen35", "qwen2", 30), ("qwen35", "smollm", 100), ("qwen2", "llama-bpe", 100)],
)
def test_the_corpus_tells_pre_tokenizers_apart(name: str, other: str, least: int) -> None:
    fields = as_fields(vocabulary(CORPUS))
    one, two = (small_model(pre=n, **fields).tokenizer for n in (name, other))
    encode = {"parse_special": False}
    assert sum(one.encode(t, **encode) != two.encode(t, **encode) for t in CORPUS) >= least


@pytest.mark.model
def test_smollm2_cuts_equal_llama_cpp(smollm2: TextModel) -> None:
    for text, expected in zip(CORPUS, CUTS["smollm2"], strict=True):
        ids = smollm2.tokenizer.encode(text, parse_special=False)
        assert digest(ids) == expected, repr(text)


def digest(ids: list[int]) -> str:
    return hashlib.blake2b(repr(ids).encode(), digest_size=4).hexdigest()


def as_fields(made: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": made["tokens"], "token_type": made["types"], "merges": made["merges"]}


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> TextModel:
    return TextModel.from_gguf(smollm2_path)


@pytest.mark.model
def test_smollm2_equals_llama_cpp(smollm2: TextModel) -> None:
    golden = load("smollm2.json")
    for index, text in enumerate(golden["texts"]):
        encode = smollm2.tokenizer.encode
        assert encode(text, parse_special=False) == golden["plain"][index], text
        assert encode(text, parse_special=True) == golden["special"][index], text


@pytest.mark.model
def test_smollm2_facts(smollm2: TextModel) -> None:
    assert smollm2.vocabulary.size == 49152
    assert smollm2.context_length == 8192
    assert smollm2.stop_ids == (0, 2)  # <|endoftext|>, <|im_end|>
    assert smollm2.has_chat
    assert smollm2.encode_prompt("Hello world") == [19556, 905]  # no begin token


def test_tiny_models_equal_llama_cpp(repository: Path) -> None:
    golden = json.loads((repository / "tests/data/text/tiny.json").read_text())
    for name, items in golden["vectors"].items():
        found = golden["vocabulary"] | {"tokenizer.ggml.pre": name}
        tokenizer = TextModel(found).tokenizer
        for item in items:
            assert tokenizer.encode(item["text"], parse_special=True) == item["ids"]


@pytest.mark.parametrize("model", ["gpt2", "llama"])
@settings(deadline=None)
@given(text=st.text(max_size=60))
def test_round_trip(model: str, text: str) -> None:
    built = BUILT[model]
    ids = built.tokenizer.encode(text, parse_special=False)
    back = detokenize(built.vocabulary, ids)
    if model == "llama":
        text = text.replace("\u2581", " ")  # the vocabulary cannot tell them apart
        back = back.removeprefix(" ") if text else back  # the space before the first word
    assert back == text
    assert not set(ids) & set(built.stop_ids)


BUILT = {model: small_model(model=model, template=None) for model in ("gpt2", "llama")}


@pytest.mark.parametrize("model", ["gpt2", "llama"])
@settings(deadline=None)
@given(data=st.data())
def test_plain_text_never_becomes_a_control_token(model: str, data: st.DataObject) -> None:
    built = BUILT[model]
    names = st.sampled_from(list(built.tokenizer.control_texts))
    text = data.draw(st.lists(names | st.text(max_size=5), max_size=8).map("".join))
    control = {built.vocabulary.tokens.index(name) for name in built.tokenizer.control_texts}
    assert not control & set(built.tokenizer.encode(text, parse_special=False))


def test_emoji_split_over_tokens_is_held_back() -> None:
    vocabulary = BUILT["gpt2"].vocabulary
    raw = "🙂".encode()
    ids = [vocabulary.pieces.index(bytes([b])) for b in raw]
    one = Detokenizer(vocabulary)
    assert [one.feed(i) for i in ids] == ["", "", "", "🙂"]
    assert one.flush() == ""


def test_broken_utf8_becomes_replacement_characters() -> None:
    vocabulary = BUILT["gpt2"].vocabulary
    ids = [vocabulary.pieces.index(bytes([b])) for b in b"a\xf0\x9fb\xff\xc3"]
    one = Detokenizer(vocabulary)
    pieces = [one.feed(i) for i in ids] + [one.flush()]
    assert pieces == ["a", "", "", "\ufffdb", "\ufffd", "", "\ufffd"]
    assert "".join(pieces) == b"a\xf0\x9fb\xff\xc3".decode(errors="replace")


@settings(deadline=None)
@given(raws=st.lists(st.binary(max_size=12) | st.text(max_size=6).map(str.encode), max_size=4))
def test_each_sequence_decodes_as_if_it_were_alone(raws: list[bytes]) -> None:
    """What sequences share of a vocabulary does not depend on what they have in hand."""
    vocabulary = BUILT["gpt2"].vocabulary
    for raw in raws:
        ids = [vocabulary.pieces.index(bytes([b])) for b in raw]
        assert detokenize(vocabulary, ids) == raw.decode(errors="replace")


def test_control_tokens_are_hidden_and_user_defined_ones_shown() -> None:
    built = BUILT["gpt2"]
    ids = built.tokenizer.encode("<|im_start|>a<think>b<|im_end|>", parse_special=True)
    assert detokenize(built.vocabulary, ids) == "a<think>b"
    shown = Detokenizer(built.vocabulary, shows_hidden=True)
    assert "".join(map(shown.feed, ids)) == "<|im_start|>a<think>b<|im_end|>"
    assert shown.feed(10**6) == ""  # a row of the model without a token


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b"])
def test_lone_surrogates_are_refused(text: str) -> None:
    for parse_special in (True, False):
        with pytest.raises(TextError, match=r"lone surrogate \(U\+D"):
            BUILT["gpt2"].tokenizer.encode(text, parse_special=parse_special)


def test_begin_token() -> None:
    bos = BUILT["gpt2"].vocabulary.bos_id
    with_bos = small_model(add_bos_token=True)
    assert with_bos.encode_prompt("a")[0] == bos
    assert with_bos.encode_prompt("<|im_start|>a").count(bos) == 1  # not twice
    assert bos not in small_model(add_bos_token=False).encode_prompt("a")
    assert small_model(pre="llama-bpe").encode_prompt("a")[0] == bos  # the family's default
    assert small_model(model="llama", pre="default").encode_prompt("a")[0] == 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"model": "t5"}, "'t5' is not supported; known: gpt2, llama"),
        ({"pre": "klingon"}, "'klingon' is not supported; known: command-r, dbrx"),
        ({"merges": ["nospace"]}, r"merges\[0\] is 'nospace'"),
        ({"merges": ["zz yy"]}, "merges"),
        ({"tokens": ["a", "b", "a"]}, "'a' twice, as 0 and 2"),
        ({"tokens": []}, "tokens is not a list"),
        ({"token_type": [1]}, "token_type is not a list of"),
        ({"eos_token_id": 10**6}, "eos_token_id is 1000000, not an id"),
        ({"eos_token_id": -1}, "eos_token_id is -1"),
        ({"add_bos_token": "yes"}, "not a boolean"),
    ],
)
def test_bad_vocabularies_are_refused(change: dict[str, Any], what: str) -> None:
    found = metadata()
    found.update({f"tokenizer.ggml.{key}": value for key, value in change.items()})
    with pytest.raises(TokenizerError, match=what):
        TextModel(found)


@pytest.mark.parametrize("missing", ["model", "tokens", "merges"])
def test_missing_fields_are_named(missing: str) -> None:
    found = metadata()
    del found[f"tokenizer.ggml.{missing}"]
    with pytest.raises(TokenizerError, match=missing):
        TextModel(found)


def test_sentence_piece_without_byte_tokens_is_refused() -> None:
    found = metadata(model="llama")
    types = list(found["tokenizer.ggml.token_type"])  # type: ignore[arg-type]
    types[3] = 1
    found["tokenizer.ggml.token_type"] = types  # type: ignore[assignment]
    with pytest.raises(TokenizerError, match="lacks 1 of the 256 byte tokens"):
        TextModel(found)


def test_end_texts_are_found_without_metadata() -> None:
    found = metadata()
    del found["tokenizer.ggml.eos_token_id"]
    model = TextModel(found)
    tokens = model.vocabulary.tokens
    assert {tokens[i] for i in model.stop_ids} == {"<|im_end|>", "<|endoftext|>"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        " " * 1_000_000,
        (" " * 999 + "x") * 1000,
        "\n" * 1_000_000,
        "1" * 1_000_000,
        "the quick brown fox " * 50_000,
        "🙂" * 250_000,
        "<|im_end|>" * 100_000,
        "!?" * 500_000,
    ],
    ids=lambda text: repr(text[:6]),
)
def test_a_megabyte_is_bounded_in_time(text: str) -> None:
    begin_s = time.perf_counter()
    BUILT["gpt2"].tokenizer.encode(text, parse_special=True)
    # Linear in the text: 0.3 to 1.7 s here; quadratic behaviour would be hours.
    assert time.perf_counter() - begin_s < 60
