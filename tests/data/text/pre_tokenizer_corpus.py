"""Texts and a vocabulary that show where words are cut, for `pre_tokenizers.json`.

The vocabulary joins every text of the corpus into ever longer tokens, across all that a
pre-tokenizer might cut, so that one cut more or less changes the ids. Both are made here, the same
each time, with nothing but Python's standard library; `generate.py` asks llama.cpp for the ids.
"""

from __future__ import annotations

import random
from typing import Any

from strata.text.vocabulary import byte_letters

NAMES = ("qwen35", "qwen2", "smollm", "llama-bpe")
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4

_CODE = [
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];\n}\n",
    "def f(self, *args, **kwargs) -> dict[str, int]:\n        return {k: v for k, v in args}\n",
    "SELECT `id`, COUNT(*) FROM t WHERE x <> 'it''s' GROUP BY 1;--end\r\n",
    "#include <vector>\r\n#define MAX(a,b) ((a)>(b)?(a):(b))\r\n",
    "let x: Vec<&'static str> = vec![\"a\", 'b'];\n\n\n// end",
    "<a href=\"x?y=1&amp;z=%20\">l'été</a><!-- 'll -->",
    "\\frac{\\partial^2 u}{\\partial x^2} = \\alpha_{ij}^{(n+1)}",
    "$ ls -la | grep '^d' && echo $? > /dev/null 2>&1",
    '{"k":[1.0e-10,true,null],"s":"\\n\\u00e9"}',
    "if x==1:\n\n\n    pass  # don't\n  \n\treturn",
    "100%|████████| 3/3 [00:01<00:00, 2.5it/s]",
    "v=0xDEADbeef;w=0b1010_0101;u=1_000_000L",
]
_WORDS = [
    "I'm you're he'll THEY'VE we'd it's 'tis rock'n'roll O'Neil's",
    "i\u2019m you\u2019re it\u2019s",  # the typographic apostrophe begins no suffix
    "'S 'T 'RE 'Ve 'M 'LL 'D 'ſ 'Kelvin\u212a",
    "naïve coöperate Ångström ŒUVRE ǅ ǆ ﬁ ﬀ ß ẞ",
    "e\u0301a\u0308o\u0323\u0302 \u0301alone n\u0303\u0303\u0303",
    "क्षत्रिय हिन्दी में लिखा है। १२३४५",
    "தமிழ் மொழி க் கா கி ௧௨௩",
    "ภาษาไทย ๑๒๓ น้ำ ที่ กรุงเทพฯ",
    "မြန်မာဘာသာ ၁၂၃ ខ្មែរ ១២៣ ລາວ",
    "བོད་སྐད། ༡༢༣",
    "العربية ١٢٣ مُحَمَّد \u200fقال\u200e «نعم»، ثم؟",
    "עִבְרִית 123 שלום, עולם!",
    "فارسی می\u200cخواهم ۱۲۳۴",
    "ܫܠܡܐ ܐܪܡܝܐ \u07ca\u07cb\u07cc",
    "日本語テキスト、ひらがな・カタカナ ー々〆ヶ １２３ ＡＢＣ",
    "中文测试，“引号”；数字二〇二六年１２月 3日。",
    "한국어 조선말 \u1112\u1161\u11ab ㄱㄴㄷ 123원",
    "㍿㎏ ㊙ ㈱ ① ⑳ ⅷ Ⅻ ½ ¾ ² ₃ ៛ ฿ €5 £6 ¥7",
    "Ελληνικά Привіт Ўзбек Ҷ ծանոթ ქართული ᏣᎳᎩ ᚠᚢᚦ",
    "\U0001d518\U0001d52b𝟘𝟙𝟚 𐌰𐌱 𓀀𓁐 𐎠 \U00010400\U00010428",
    "mixЛатиница漢字abcدست123ไทยend",
    "a1b2c3 1a 2b 3c x86_64 H2O CO₂ 3D 4K 5th 2nd",
]
_EMOJI = [
    "🙂",
    "👨‍👩‍👧‍👦 family",
    "🏳️‍🌈🏴‍☠️",
    "👍🏽👍🏿 ok",
    "🇩🇪🇫🇷🇯🇵",
    "❤️‍🔥 ❤ ♥️",
    "1️⃣2️⃣ #️⃣ *️⃣",
    "🧑🏻‍🤝‍🧑🏿",
    "👁️‍🗨️",
    "a🙂b 🙂c d🙂 🙂🙂",
    "☕️ ☀︎ ™️ ©️ ®",
    "🫠🫡🩷 🪿 new",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
]
_DIGITS = [
    "1",
    "12",
    "123",
    "1234",
    "12345",
    "123456",
    "1234567",
    "1234567890123456789",
    " 1 12 123 1234",
    "3.14159 2,718 1.000.000,00 -5 +7 1e-9 0.5%",
    "٠١٢٣٤٥ ۰۱۲۳ ०१२३ ๐๑๒๓ ０１２３",
    "1٢3",
    "²³¹ x² 10⁻³ H₂O ½½ 1½",
    "ⅠⅡⅢⅣ 一二三 〇",
    "2026-12-01T03:59:59.999Z",
    "192.168.0.1:8080",
    "+49 (0)30 123-456",
    "1st2nd3rd",
    "a1 b22 c333 d4444",
    "1\n2\n\n3",
    "1 \n 2",
    "000",
    "0 0  0   0",
]
_SPACES = [
    "\n",
    "\n\n",
    "\n\n\n\n",
    "\r",
    "\r\n",
    "\r\n\r\n",
    "\n\r",
    "\t",
    "\t\t\t",
    " ",
    "  ",
    "   ",
    " " * 17,
    "\u00a0",
    "\u3000\u3000",
    "\u2028\u2029\u0085",
    "\v\f\x1c\x1d\x1e\x1f",
    "\u200b\u2060\ufeff",
    "\u1680\u2000\u200a\u202f\u205f\u180e",
    "a\n",
    "a \n",
    "a\n b",
    "a\n\n b",
    "a \n\n b",
    "a  \n  b",
    "a\r\nb\r\n",
    "a \r\n b",
    "\n a",
    " \na",
    "  \n\n  a",
    "\ta\t b",
    "a\t\nb",
    "a  ",
    "a   b",
    "a\u00a0b",
    "a\u00a0\u00a0b",
    "a \u00a0 b",
    "\u00a0\n\u00a0a",
    "a\u3000b",
    "a\u2003\u2003b",
    "a\u200bb",
    "a\vb",
    "a\x85b",
    "x\n\n\n",
    "x\n \n \n",
    "!\n",
    "! \n",
    "!\n\n a",
    ".\r\n\r\nA",
    "..\n..",
    ") {\n\n}",
    " !\n",
    "\n!",
    "\n\n!!\n\n",
    "    indented\n        more\n\ttab\n",
    "  - item\n  - item\n\n",
    "a\n\t\n\tb",
    " \t \t x",
    "\t \n",
    "\n \t\n x",
]
_PUNCTUATION = [
    "!!!",
    "...",
    " ...",
    "a...b",
    "?!?!\n",
    "(a)[b]{c}",
    "--flag",
    "a--b",
    "«a» „b“ ‚c‘ ”d”",
    "¿qué? ¡ay!",
    "a/b\\c",
    "a_b__c_",
    "___",
    "@user #tag $x %y ^z",
    "a=b==c!=d",
    "*bold* **b** _i_ `c`",
    "$5 €5 5$ 5€",
    "~/.x/*",
    "§1 ¶2 †3 ‡",
    "→←⇒ ∀x∈ℝ: x²≥0",
    "☃ ☂a ♫b",
    "─│┌┐ ═║",
    "a，b。c！d？",
    "・・・",
    "…a…",
    "‼⁇ ⁉",
    "\ufffd\ufffd a\ufffdb",
    "\ue000\uf8ff",
    "\U000f0000a",
    "<|x|> <|im_end",
    "a<|b",
    "'a' ' a '",
    "''",
    "'''a",
    '"\'s"',
    "x's's",
    "'sa 'll'",
    " 's",
    "\n's",
    "1's",
    "!'s",
    "é's",
]
_CONTROLS = [
    "\x00",
    "\x00\x00a",
    "a\x00b",
    "\x01\x02\x03",
    "\x1b[31mred\x1b[0m",
    "a\x7fb",
    "\x80\x81\x9f",
    "\x07 bell",
    "a\x08b",
    "\u0600\u06dd",
    "\u200e\u200f\u202a\u202c",
    "\u2066a\u2069",
    "a\u00adb",
    "\ufe0fa",
    "\U000e0001\U000e0020",
    "\u034f\u115f\u3164",
    "\u061ca",
]
# Letters, marks and digits of Unicode 15 and before. What Unicode 16 added is left out: llama.cpp's
# tables know it, those of `tokenizers`, which the models were trained with, do not.
_LATE = [
    "\U0001fae8 \U0001fadc",
    "\U00011f50\U00011f04",
    "\U0002ebf0\U00031350",
    "\U0001e4d0\U0001e4f0",
    "\u0eba\u0ece",
    "\ua7d0a\ua7f2",
    "\U00010f70\U00016ac0",
    "\u19da \u1369\u136a \u3007 \u3021\u3038",
    "\u2160\u2188 \u16ee",
    "ª º ˠ ʰ",
]
_POOLS = [
    "abcXYZ",
    " \n\t",
    "\r\n ",
    "0123456789",
    "'sStTrReEvVmMlLdD",
    "éàüñ",
    "\u0301\u0308\u0323\u093e\u064e",
    "日本語中文한글",
    "अकखाि",
    "עברית",
    "عربي",
    "🙂👍\U0001f3fd\u200d\ufe0f",
    ".,;:!?-_/\\",
    "()[]{}<>|",
    "$%^&*+=~`@#",
    "\u00a0\u3000\u2003",
    "\x00\x01\x7f\x85",
    "٣४２½²Ⅷ",
    "ǅﬁſK",
    "𝔘𐌰𓀀",
]


def corpus() -> list[str]:
    """About 640 texts, each once."""
    rng = random.Random(35)
    texts = [*_CODE, *_WORDS, *_EMOJI, *_DIGITS, *_SPACES, *_PUNCTUATION, *_CONTROLS, *_LATE]
    lefts = ("a", "1", " ", "\n", "!", "é", "日", "'", "\u0301")
    rights = ("a", "1", " ", "\n", "!", "\u0301", "\u00a0", "🙂", "'s", "\r\n")
    texts += [f"x{a}{b}y {a}{b}" for a in lefts for b in rights]
    for _ in range(330):
        chosen = rng.sample(_POOLS, rng.randint(1, 4))
        texts.append("".join(rng.choice(rng.choice(chosen)) for _ in range(rng.randint(2, 20))))
    return list(dict.fromkeys(texts))


def vocabulary(texts: list[str]) -> dict[str, Any]:
    """`tokens`, `types`, `merges`: each text in rounds, two neighbours at a time, until it is one
    token; merges of earlier rounds rank first."""
    letters = sorted(byte_letters(), key=byte_letters().__getitem__)
    tokens = dict.fromkeys(letters)
    merges: dict[str, None] = {}
    rows = [[letters[byte] for byte in text.encode()] for text in texts]
    while any(len(row) > 1 for row in rows):
        for i, row in enumerate(rows):
            pairs = [row[at : at + 2] for at in range(0, len(row), 2)]
            for pair in pairs:
                if len(pair) == 2:
                    merges.setdefault(" ".join(pair))
                    tokens.setdefault("".join(pair))
            rows[i] = ["".join(pair) for pair in pairs]
    names = [*tokens, "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    types = [NORMAL] * len(tokens) + [CONTROL] * 3 + [USER_DEFINED] * 2
    return {"tokens": names, "types": types, "merges": list(merges)}
