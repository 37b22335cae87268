"""Chat templates: equal prompts, nothing of a client's text as a control token, bounds."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from strata.text import chat_template
from strata.text.chat_template import ChatMessage, ChatTemplate
from strata.text.control_guard import ControlGuard
from strata.text.errors import TemplateError, TextError
from strata.text.model import TextModel

from tests.text.small_models import CHATML, load, small_model

MODEL = small_model()
CONTROL = {MODEL.vocabulary.tokens.index(name) for name in MODEL.tokenizer.control_texts}


def user(content: str) -> list[ChatMessage]:
    return [ChatMessage("user", content)]


def render(source: str, content: str = "hi") -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(user(content), {})


@pytest.mark.model
def test_smollm2_prompts_equal_llama_cpp(smollm2_path: Path) -> None:
    model = TextModel.from_gguf(smollm2_path)
    for chat in load("smollm2-chat.json")["chat"]:
        messages = [ChatMessage(m["role"], m["content"]) for m in chat["messages"]]
        assert model.render_chat(messages) == chat["prompt"]
        assert model.encode_chat(messages) == model.tokenizer.encode(
            chat["prompt"], parse_special=True
        )


@pytest.mark.model
def test_smollm2_strings_equal_llama_cpp(smollm2_path: Path) -> None:
    model = TextModel.from_gguf(smollm2_path)
    strings = load("smollm2-chat.json")["strings"]
    assert len(strings) == 30
    for item in strings:
        encode = model.tokenizer.encode
        assert encode(item["text"], parse_special=True) == item["ids_parse_special"]
        assert encode(item["text"], parse_special=False) == item["ids_plain"]
        pieces = b"".join(model.vocabulary.pieces[i] for i in item["ids_plain"])
        assert pieces.decode() == item["detok"]


def split_ids(ids: list[int]) -> list[int]:
    return [i for i in ids if i in CONTROL]


TEMPLATES = {
    "as it is": CHATML,
    "trimmed": CHATML.replace("m['content']", "m['content'] | trim"),
    "as JSON": CHATML.replace("m['content']", "m['content'] | tojson"),
    "in pieces": CHATML.replace("m['content']", "m['content'].split('|')[0]"),
    "joined": CHATML.replace("m['content']", "m['content'].replace('#', '')"),
    "doubled": CHATML.replace("m['content']", "m['content'] ~ m['content']"),
    "upper": CHATML.replace("m['content']", "m['content'] | upper | lower"),
}
PARTS = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|im_", "end|>", "<|", "|>", "im_end|>", "#", " ", "<|endof",
     "text|>", "a", "\n", "<", "🙂"]
)  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None)
@given(contents=st.lists(st.lists(PARTS, max_size=6).map("".join), min_size=1, max_size=3))
@example(contents=["<|im_#end|>"])
@example(contents=["<|#im_end|>", "<#|im_start|>"])
@example(contents=["im_end|> <|", "<|im_", "end|>"])
def test_only_the_templates_own_control_tokens_count(name: str, contents: list[str]) -> None:
    model = BUILT[name]
    ids = model.encode_chat([ChatMessage("user", c) for c in contents])
    start, end = (model.vocabulary.tokens.index(t) for t in ("<|im_start|>", "<|im_end|>"))
    assert split_ids(ids) == [start, end] * len(contents) + [start]


BUILT = {name: small_model(template=source) for name, source in TEMPLATES.items()}


@settings(deadline=None)
@given(content=st.lists(PARTS, max_size=6).map("".join))
def test_the_words_stay_what_the_client_wrote(content: str) -> None:
    ids = MODEL.encode_chat(user(content))
    shown = b"".join(MODEL.vocabulary.pieces[i] for i in ids).decode()
    assert shown == f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    plain = MODEL.tokenizer.encode("user\n" + content, parse_special=False)
    assert ids[1 : 1 + len(plain)] == plain


def test_short_control_tokens_and_logic_of_templates() -> None:
    guard = ControlGuard(["</s>", "<s>", "[INST]", "x"])
    mark = guard.choose_mark(["a"])
    # A template that looks for this keeps finding it.
    assert guard.break_up("<think>a</think>b", mark) == "<think>a</think>b"
    assert "</s>" not in guard.break_up("a</s>", mark)
    assert guard.break_up("  s>b", mark) == f"  {mark}s>b"  # may follow "</" of another message
    assert guard.break_up("a</s>", mark).replace(mark, "") == "a</s>"


def test_marks_never_collide_with_text() -> None:
    first = ControlGuard([]).choose_mark([])
    content = f"{first}<|im_end|>{first}"
    shown = b"".join(MODEL.vocabulary.pieces[i] for i in MODEL.encode_chat(user(content)))
    assert content in shown.decode()
    every = "".join(chr(c) for c in range(0xFDD0, 0xFDF0))
    every += "".join(chr(p * 0x10000 + 0xFFFE) for p in range(1, 17))
    with pytest.raises(TemplateError, match="noncharacter"):
        MODEL.encode_chat(user(every))


def test_begin_token_is_added_once() -> None:
    bos = MODEL.vocabulary.bos_id
    adding = small_model(add_bos_token=True, template="{{ messages[0].content }}")
    assert adding.encode_chat(user("a"))[0] == bos
    writing = small_model(add_bos_token=True, template="{{ bos_token }}a")
    assert writing.encode_chat(user("a")).count(bos or 0) == 1


def test_what_templates_may_use() -> None:
    assert render("{{ {'b': 'é<', 'a': 1} | tojson }}") == '{"b": "é<", "a": 1}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert re.fullmatch(r"\d{4}", render("{{ strftime_now('%Y') }}"))
    assert (
        render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}x{% endfor %}") == "xx"
    )
    assert render("{% generation %}a{% endgeneration %}b") == "ab"
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"  # trim_blocks, lstrip_blocks
    assert render("{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}") == "<s></s>True"
    assert render("{{ messages[0].name is defined }}") == "False"
    named = [ChatMessage("user", "x", "Eve")]
    template = ChatTemplate("{{ messages[0].name }}{{ deep }}", bos_token="", eos_token="")
    assert template.render(named, {"deep": True}) == "EveTrue"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("{{ raise_exception('roles must alternate') }}", "^roles must alternate$"),
        ("{{ messages[0].content.nothing.more }}", "has no attribute 'nothing'"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 'a' * 1000000000 }}", "repetition"),
        ("{{ [0] * 1000000000 }}", "repetition"),
        ("{{ 10 ** 1000 }}", "exponent"),
        ("{% for i in range(1000000) %}{% endfor %}", "Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_failures_are_the_templates(source: str, what: str) -> None:
    with pytest.raises(TemplateError, match=what):
        render(source)


BIG = "{% set big = 'x' * 1000000 %}"
MANY = "{% set many = ['x' * 1000] * 1000000 %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a'.ljust(9999999999) }}",
        "{{ 'a'.rjust(9999999999) }}",
        "{{ 'a'.center(9999999999) }}",
        "{{ 'a'.zfill(9999999999) }}",
        "{{ '\\t'.expandtabs(9999999999) }}",
        "{{ '\\t'.expandtabs(tabsize=9999999999) }}",
        "{{ ('a' | attr('ljust'))(9999999999) }}",
        "{{ (1).to_bytes(9999999999, 'big') }}",
        "{{ 'a'.translate({97: 'x'}) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%.9999999999f' % 1 }}",
        "{{ '%*d' % (9999999999, 1) }}",
        "{{ '%.*f' % (9999999999, 1) }}",
        "{{ '%-5.*f' % (9999999999, 1) }}",
        "{{ '%(a(b))9999999999d' % {'a(b)': 1} }}",
        "{{ '%9999999999d'.encode() % 1 }}",
        "{{ '%9999999999d' | format(1) }}",
        "{{ '%(a)9999999999d' | format(a=1) }}",
        "{{ ['%9999999999d'] | map('format', 1) | list }}",
        "{{ '{:9999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 9999999999) }}",
        "{{ '{a:{b}}'.format_map({'a': 1, 'b': 9999999999}) }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ 'a' | center(width=9999999999) }}",
        "{{ 'a' | indent(9999999999, true) }}",
        "{{ [1] | batch(9999999999, 0) | list }}",
        "{{ 1.5 | round(9999999999, 'floor') }}",
        "{{ {'a': 1} | tojson(indent=9999999999) }}",
        "{{ 'a'.encode() * 9999999999 }}",
        "{{ (2 ** 64) ** 2 }}",
        "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
        BIG + "{{ big.replace('x', big) }}",
        BIG + "{{ big | replace('', big) }}",
        BIG + "{{ big.join(big) }}",
        BIG + "{{ big | join(big) }}",
        BIG + "{{ big.encode().replace('x'.encode(), big.encode()) }}",
        BIG + "{{ ('%(a)s' * 1000) % {'a': big} }}",
        BIG + "{{ ('{0}' * 1000).format(big) }}",
        BIG + "{% set n = namespace(x=big) %}"
        "{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
        BIG + "{% set n = namespace(x=big) %}"
        "{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        MANY + "{{ ''.join(many) }}",
        MANY + "{{ many | join }}",
    ],
)
def test_one_operation_makes_no_huge_result(source: str) -> None:
    """Refused before the work: none of these could be interrupted, most would need gigabytes."""
    with pytest.raises(TemplateError, match=r"exceeds|not available|not a number up to"):
        render(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a'.ljust(3) }}|{{ 'a' | center(3) }}|{{ '7'.zfill(3) }}", "a  | a |007"),
        ("{{ '%05.1f %s%%' % (2.25, 'x') }} {{ 7 % 4 }} {{ '%s' | format('y') }}", "002.2 x% 3 y"),
        ("{{ '**%s**' % 'a' }}{{ '%(k)s' | format(k=1) }}", "**a**1"),
        ("{{ '{:>3}{a}'.format(1, a=2) }}{{ '{a}'.format_map({'a': 3}) }}", "  123"),
        ("{{ [1, 2] | join('-') }}{{ '+'.join(['a', 'b']) }}{{ [{'a': 1}] | join(',', 'a') }}",
         "1-2a+b1"),
        ("{{ 'aab' | replace('a', 'x', 1) }}{{ 'aab'.replace('a', 'y') }}", "xabyyb"),
        ("{{ 'a\nb' | indent(2) }}{{ 2.55 | round(1) }}{{ 'a' ~ 1 ~ none }}", "a\n  b2.5a1None"),
        ("{{ [1, 2, 3] | batch(2, 0) | list }}{{ [1] + [2] }}", "[[1, 2], [3, 0]][1, 2]"),
    ],
)  # fmt: skip
def test_bounded_operations_do_what_they_did(source: str, text: str) -> None:
    assert render(source) == text
    assert ImmutableSandboxedEnvironment().from_string(source).render() == text


def test_endless_templates_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "RENDER_S", 0.05)
    silent = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    begin_s = time.perf_counter()
    with pytest.raises(TemplateError, match=r"within 0\.05 s"):
        render(silent)
    assert time.perf_counter() - begin_s < 5
    assert render("{{ 1 }}") == "1"  # the thread is fit for use afterwards


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "OUTPUT_CHARS_MAX", 1000)
    with pytest.raises(TemplateError, match="exceeds 1000 characters"):
        render("{% for a in range(99999) %}xxxxxxxxxx{% endfor %}")


@pytest.mark.parametrize("source", ["{% if %}", "{{", "{% for a in b %}", "{% nosuchtag %}"])
def test_invalid_templates_refuse_chats_only(source: str) -> None:
    model = small_model(template=source)
    assert not model.has_chat
    with pytest.raises(TemplateError, match="chat template is not valid"):
        model.encode_chat(user("a"))
    assert model.encode_prompt("a")


def test_no_template() -> None:
    model = small_model(template=None)
    with pytest.raises(TemplateError, match="model has no chat template"):
        model.encode_chat(user("a"))
    assert model.encode_prompt("a")


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(TextError, match="lone surrogate"):
        MODEL.encode_chat(user("\ud83d"))
