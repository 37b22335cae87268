"""Generates the data in this folder: small vocabularies, and llama.cpp's token ids for them.

    c++ -std=c++17 -I LLAMA/include -I LLAMA/ggml/include peer_tokenize.cpp \\
        -L BUILD/bin -lllama -o peer_tokenize
    python generate.py ./peer_tokenize [SMOLLM2.gguf]
    python generate.py --cuts ./peer_tokenize SMOLLM2.gguf

The last one writes `pre_tokenizers.json` alone, for the texts of `pre_tokenizer_corpus.py`.

`vocabularies.json` is trained here (tokenizers' BPE trainer, on the texts below), so it is stable
only for one version of the trainer: regenerate all files together.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import gguf
from strata.text.pre_tokenizers import PRE_TOKENIZERS
from strata.text.vocabulary import byte_letters
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

sys.path.insert(0, str(Path(__file__).resolve().parent))
import pre_tokenizer_corpus  # beside this file

HERE = Path(__file__).resolve().parent
PROVENANCE = "llama.cpp 0c1e57098, llama_tokenize(add_special=false)"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

CORPUS = """The quick brown fox jumps over the lazy dog, and then it doesn't stop: they're, we've,
I'll, I'm, he'd said. THE WORLD'S LARGEST; numbers like 1234567890, 3.14159, 1,000,000 and 2024-12.
def function(value):\n    return value ** 2  # square\n\n\nclass Name(object):\n\tpass\n
{"key": [1, 22, 333, 4444, {"nested": null}], "https://example.org/path?x=1&y=%20"}
naïve café über straße señor façade Ελληνικά Привет мир, как дела? مرحبا بالعالم שלום עולם
日本語のテキストと漢字かな交じり文 中文字符测试 한국어 텍스트 สวัสดีชาวโลก हिन्दी पाठ
हिन्दी पाठ किताब की दुनिया में दिन की éé é̈ café
emoji 🙂 👍🏽 👩‍👩‍👧 🇩🇪   spaces    and     more      spaces       here        \r\nline\r\n\r\n
<p class="text">markup</p> --flag=value && || != == <= >= -> => ... !!! ??? ``` ~~~ ### ***
"""

TEXTS = [
    "",
    " ",
    "   ",
    "\n",
    "\n\n\n",
    "\r\n\r\n",
    "\t\t",
    "Hello world",
    "Hello, world!",
    " leading space",
    "  two leading",
    "trailing space ",
    "trailing  ",
    "two  spaces   three    four",
    "tab\tnew\nline\r\nend\n\n\n",
    " \n \n\n  x",
    "a\n b\n  c\n\n   d",
    "x \n",
    "x\n ",
    "1",
    "12",
    "123",
    "1234",
    "1234567890 3.14159 1,000,000",
    "v1.2.3-rc4 0x1F 0b101 1e-9",
    "٣٤٥ ½ ² № Ⅷ ①②",
    "don't can't I'll we've THEY'RE He'D i'M it'ſ",
    "'s 't 're 'quoted' ''",
    "CamelCase snake_case kebab-case SCREAMING_CASE",
    "def f(x):\n    return x**2  # square\n",
    '{"a": [1, 2, {"b": null}], "c": "\\u00e9\\n"}',
    "if (a&&b) { c[i++] = *p->q; } // done",
    "<div class='a'>text</div><!-- c -->",
    "http://localhost:8080/v1/chat?x=1&y=%20",
    "naïve café über straße",
    "e\u0301 combining a\u0308\u0323",
    "日本語のテキスト、漢字。カタカナ",
    "中文字符测试，包括标点。",
    "한국어 텍스트",
    "Привет, мир",
    "مرحبا بالعالم",
    "हिन्दी पाठ",
    "สวัสดีชาวโลก",
    "🙂",
    "🙂🙂 🙂",
    "👍🏽 emoji 👩\u200d👩\u200d👧 🇩🇪",
    "\u200b zero width\ufeff bom",
    "\u00a0nbsp\u00a0\u3000ideographic\u2003em",
    "line\u2028sep\u2029para\u0085nel",
    "\x00nul\x00 \x01\x1b[0m\x7f",
    "ﬁ ligature ﷽ Ǆ",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀",
    "!!!???...",
    "$^~`|+=<>",
    "x=1;y=2;//comment",
    "a" * 40,
    " " * 33,
    "\n" * 17,
    "=" * 21,
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|im_end",
    "<|im_end|><|im_end|>",
    " <|im_end|> ",
    "a<|endoftext|>b",
    "<think>\nx\n</think>\n\ny",
    "<thinking> <think>",
    "    <tool>",
    "</s><s><unk>",
    "▁▁ ▁a",
    "<0x0A><0xFF>",
]


def random_texts(count: int) -> list[str]:
    """Mixtures of letters that matter to the patterns; the same each time."""
    rng = random.Random(20)
    pools = [
        "abc XYZ  '",
        "\n\r\t  \u00a0\u3000",
        "0123456789٣½²",
        "🙂👩\u200d👧🏽🇩🇪",
        "日本語한국어ไทยعربيहिन्दी",
        "'s't're'VE'lL",
        "é\u0301\u0308ñ",
        '!?.,;:-_=+*/\\()[]{}#$%^&~`"<>|',
        "the fox def value and then it text spaces",
    ]
    texts = []
    for _ in range(count):
        chosen = rng.sample(pools, rng.randint(1, 4))
        texts.append("".join(rng.choice(rng.choice(chosen)) for _ in range(rng.randint(1, 24))))
    return texts


def train_byte_level() -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    split = (
        r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}\p{M}]+| ?\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = sorted(byte_letters(), key=byte_letters().__getitem__)
    trainer = trainers.BpeTrainer(
        vocab_size=760, min_frequency=2, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([CORPUS, *TEXTS, *random_texts(60)], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    types = [NORMAL] * len(tokens)
    for text, kind in (
        ("<|endoftext|>", CONTROL),
        ("<|im_start|>", CONTROL),
        ("<|im_end|>", CONTROL),
        ("<think>", USER_DEFINED),
        ("</think>", USER_DEFINED),
        ("    <tool>", USER_DEFINED),
        # a whole word that no merge makes: taken only where merges are ignored
        ("Ġcombining", NORMAL),
    ):
        if text not in tokens:
            tokens.append(text)
            types.append(kind)
    return {"tokens": tokens, "types": types, "merges": merges}


def train_sentence_piece() -> dict[str, Any]:
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=420, min_frequency=3, show_progress=False)
    words = CORPUS.replace("\n", " ").replace(" ", " \u2581").split()
    tokenizer.train_from_iterator(words + ["\u2581" * n for n in (2, 4, 8, 16)] * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    learned = sorted(model["vocab"], key=model["vocab"].get)
    merged = [t for t in learned if len(t) > 1]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256
    scores = [0.0] * len(tokens)
    for rank, token in enumerate(merged):
        tokens.append(token)
        types.append(NORMAL)
        scores.append(-float(rank))
    for token in sorted(t for t in learned if len(t) == 1):
        tokens.append(token)
        types.append(NORMAL)
        scores.append(-float(len(tokens)))
    tokens.append("<think>")
    types.append(USER_DEFINED)
    scores.append(0.0)
    return {"tokens": tokens, "types": types, "scores": scores}


def write_gguf(path: Path, model: str, pre: str, vocabulary: dict[str, Any]) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_feed_forward_length(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary["tokens"])
    writer.add_token_types(vocabulary["types"])
    if "merges" in vocabulary:
        writer.add_token_merges(vocabulary["merges"])
    if "scores" in vocabulary:
        writer.add_token_scores(vocabulary["scores"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def ids_of(peer: str, path: Path, texts: list[str], special: int) -> list[list[int]]:
    stdin = b"".join(
        bytes([special]) + struct.pack("<I", len(raw)) + raw for raw in (t.encode() for t in texts)
    )
    out = subprocess.run([peer, path], input=stdin, stdout=subprocess.PIPE, check=True).stdout
    lines = out.decode().split("\n")[: len(texts)]
    return [[int(i) for i in line.split()] for line in lines]


def compact(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n")


def digest(ids: list[int]) -> str:
    """Stands for ids where the ids themselves would make a large file."""
    return hashlib.blake2b(repr(ids).encode(), digest_size=4).hexdigest()


def write_cuts(peer: str, smollm2: Path) -> None:
    """The corpus under each pre-tokenizer; and as digests with the vocabulary of SmolLM2 and that
    of the tiny models."""
    texts = pre_tokenizer_corpus.corpus()
    made = pre_tokenizer_corpus.vocabulary(texts)
    tiny = json.loads((HERE / "tiny.json").read_text())["vocabulary"]
    tiny = {
        name: tiny[f"tokenizer.ggml.{key}"]
        for name, key in (("tokens", "tokens"), ("types", "token_type"), ("merges", "merges"))
    }
    first = pre_tokenizer_corpus.NAMES[0]
    ids: dict[str, Any] = {}
    tiny_digests: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        for name in pre_tokenizer_corpus.NAMES:
            write_gguf(path, "gpt2", name, made)
            answer = ids_of(peer, path, texts, 0)
            # Where the name makes no difference, the ids stand once.
            ids[name] = (
                answer
                if name == first
                else {i: a for i, a in enumerate(answer) if a != ids[first][i]}
            )
            write_gguf(path, "gpt2", name, tiny)
            tiny_digests[name] = [digest(a) for a in ids_of(peer, path, texts, 0)]
    compact(
        HERE / "pre_tokenizers.json",
        {
            "provenance": f"{PROVENANCE}; texts and vocabulary: pre_tokenizer_corpus.py",
            "ids": ids,
            "tiny": tiny_digests,
            "smollm2": [digest(a) for a in ids_of(peer, smollm2, texts, 0)],
        },
    )


def main() -> None:
    if sys.argv[1] == "--cuts":
        write_cuts(sys.argv[2], Path(sys.argv[3]))
        return
    peer = sys.argv[1]
    texts = TEXTS + random_texts(90)
    byte_level, sentence_piece = train_byte_level(), train_sentence_piece()
    compact(
        HERE / "vocabularies.json",
        {
            "provenance": "tokenizers BpeTrainer on the texts of generate.py",
            "gpt2": byte_level,
            "llama": sentence_piece,
        },
    )
    groups: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.gguf"
        for name in PRE_TOKENIZERS:
            write_gguf(path, "gpt2", name, byte_level)
            answer = {
                s: ids_of(peer, path, texts, flag) for s, flag in (("plain", 0), ("special", 1))
            }
            for group in groups:
                if group["plain"] == answer["plain"]:
                    group["names"].append(name)
                    break
            else:
                groups.append({"model": "gpt2", "names": [name], **answer})
        write_gguf(path, "llama", "default", sentence_piece)
        answer = {s: ids_of(peer, path, texts, flag) for s, flag in (("plain", 0), ("special", 1))}
        groups.append({"model": "llama", "names": ["default"], **answer})
    for group in groups:
        # Where special tokens change nothing, the ids stand once.
        pairs = zip(group["plain"], group["special"], strict=True)
        group["special"] = {i: s for i, (p, s) in enumerate(pairs) if p != s}
    compact(HERE / "vectors.json", {"provenance": PROVENANCE, "texts": texts, "groups": groups})
    if len(sys.argv) > 2:
        smollm2 = Path(sys.argv[2])
        compact(
            HERE / "smollm2.json",
            {
                "provenance": f"{PROVENANCE}, {smollm2.name}",
                "texts": texts,
                "plain": ids_of(peer, smollm2, texts, 0),
                "special": ids_of(peer, smollm2, texts, 1),
            },
        )


if __name__ == "__main__":
    main()
