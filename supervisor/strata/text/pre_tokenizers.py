"""How text is cut into words before byte-pair merging, by the name in `tokenizer.ggml.pre`.

A merge never crosses a cut, so a wrong pattern gives wrong ids without any error: a name is listed
here only when its ids equal llama.cpp's (tests/data/text/vectors.json covers every entry), and a
name that is not listed is refused.

The patterns are those of the models' own tokenizer files. Each one cuts what the one before left:
matches become words, and so does what lies between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from strata.text.errors import TokenizerError

_SUFFIX = r"'s|'t|'re|'ve|'m|'ll|'d"
_SUFFIX_ANY_CASE = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_GPT2 = _SUFFIX + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"(?:{_SUFFIX_ANY_CASE})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2 = (
    rf"(?:{_SUFFIX_ANY_CASE})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN35 = (
    rf"(?:{_SUFFIX_ANY_CASE})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    rf"|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The rules that go with one name."""

    patterns: tuple[str, ...]
    merges_ignored: bool = False  # a word that is a token is taken whole, whatever the merges say
    bos_added: bool = False  # when the file does not say


_GPT2_RULES = PreTokenizer((_GPT2,))
_DIGITS_RULES = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA3_RULES = PreTokenizer((_LLAMA3,), merges_ignored=True, bos_added=True)
_QWEN2_RULES = PreTokenizer((_QWEN2,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2_RULES,
    "phi-2": _GPT2_RULES,
    "mpt": _GPT2_RULES,
    "olmo": _GPT2_RULES,
    "smollm": _DIGITS_RULES,
    "starcoder": _DIGITS_RULES,
    "refact": _DIGITS_RULES,
    "command-r": _DIGITS_RULES,
    "llama-bpe": _LLAMA3_RULES,
    "llama-v3": _LLAMA3_RULES,
    "llama3": _LLAMA3_RULES,
    "dbrx": PreTokenizer((_LLAMA3,)),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "glm4": PreTokenizer((_LLAMA3,), merges_ignored=True),
    "qwen2": _QWEN2_RULES,
    "deepseek-r1-qwen": _QWEN2_RULES,
    "stablelm2": _QWEN2_RULES,
    "qwen35": PreTokenizer((_QWEN35,)),
    "deepseek-v3": PreTokenizer((r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
}


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """The rules of `name`. Raises TokenizerError, listing what is known, for any other."""
    rules = PRE_TOKENIZERS.get(name)
    if rules is None:
        raise TokenizerError(
            f"tokenizer.ggml.pre = {name!r} is not supported; known: "
            + ", ".join(sorted(PRE_TOKENIZERS))
        )
    return rules


def build_pre_tokenizer(rules: PreTokenizer) -> pre_tokenizers.PreTokenizer:
    """The rules as a `tokenizers` object that also maps bytes to the vocabulary's letters."""
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)
