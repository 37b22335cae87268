"""What streams are made of: user prompts from templates, topics and word lists, as token ids.

A stream alternates between forced tokens (a prompt, the headers of a turn) and tokens that the base
model samples. The pieces that open and close turns are cut out of the model's own chat template, so
that any template that keeps the order of its messages will do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from strata.text.chat_template import ChatMessage, ChatTemplate
from strata.text.errors import TokenizerError
from strata.text.gguf_metadata import MetadataError, read_metadata
from strata.text.tokenizer import Tokenizer, build_tokenizer

from tools.train_mtp.base_file import BaseFileError

HERE = Path(__file__).resolve().parent
DOCUMENT_START = "<|endoftext|>"  # by its name in the vocabularies that have one
MARKS = ("@first@", "@answer@", "@second@")
COUNTS = (2, 3, 4, 5, 6, 7, 8, 10)
PERCENTS = (5, 10, 15, 20, 25, 30, 50)
STYLED = ("explain", "write", "advice", "list")  # kinds that take "Keep it short."
# Shares of prompts with the template's own system prompt, with none, with another.
SYSTEM_DEFAULT, SYSTEM_NONE = 0.65, 0.20


@dataclass(frozen=True, slots=True)
class Turns:
    """The text around a chat's contents. `follow` closes an answer and opens the next prompt."""

    opening: str
    answer: str  # from the end of a prompt to the beginning of the answer
    follow: str

    def first(self, prompt: str) -> str:
        return self.opening + prompt + self.answer

    def next(self, prompt: str) -> str:
        return self.follow + prompt + self.answer


class Writer:
    """Chats of one model file as text and ids."""

    def __init__(self, path: Path) -> None:
        """Raises BaseFileError for a file without tokenizer or chat template."""
        try:
            metadata = read_metadata(path, lambda key: key.startswith("tokenizer."))
            self.tokenizer: Tokenizer = build_tokenizer(metadata)
        except (MetadataError, TokenizerError) as error:
            raise BaseFileError(str(error)) from error
        source = metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            raise BaseFileError(f"{path.name} has no chat template")
        tokens = metadata["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        names = {
            key: str(tokens[int(str(metadata.get(f"tokenizer.ggml.{key}_id", 0)))])
            for key in ("bos_token", "eos_token")
        }
        self.template = ChatTemplate(source, **names)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, parse_special=True)

    def document_start(self) -> str:
        """What texts that are no chats begin with."""
        vocabulary = self.tokenizer.vocabulary
        if DOCUMENT_START in vocabulary.tokens:
            return DOCUMENT_START
        return vocabulary.token_text(vocabulary.bos_id)

    def ends(self) -> list[int]:
        """The tokens with which the model ends an answer."""
        return sorted({self.closing(), *self.tokenizer.vocabulary.stop_ids})

    def turns(self, system: str | None) -> Turns:
        """`system` None leaves it to the template, which may bring one of its own."""
        chat = [
            ChatMessage(role, mark)
            for role, mark in zip(("user", "assistant", "user"), MARKS, strict=True)
        ]
        if system is not None:
            chat.insert(0, ChatMessage("system", system))
        text = self.template.render(chat, {})
        opening, rest = text.split(MARKS[0])
        _, rest = rest.split(MARKS[1])
        follow, answer = rest.split(MARKS[2])
        return Turns(opening, answer, follow)

    def closing(self) -> int:
        """The token that closes an answer."""
        return self.ids(self.turns(None).follow)[0]

    def bare_turns(self) -> Turns:
        """A chat that begins with the user's turn, without any system prompt."""
        turns = self.turns(None)
        closing = self.tokenizer.vocabulary.tokens[self.closing()]
        return Turns(turns.follow.removeprefix(closing).lstrip("\n"), turns.answer, turns.follow)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The word lists of `prompts.json`."""

    weights: Mapping[str, float]
    templates: Mapping[str, Sequence[str]]
    words: Mapping[str, Sequence[str]]
    topics: Sequence[str]
    systems: Sequence[str]
    raw_openings: Sequence[str]
    suffixes: Sequence[str]
    openings: Sequence[str]

    @classmethod
    def load(cls) -> Corpus:
        return cls(**json.loads((HERE / "prompts.json").read_text()))

    def prompt(self, rng: random.Random, topics: Sequence[str]) -> str:
        kinds = list(self.templates)
        kind = rng.choices(kinds, [self.weights[k] for k in kinds])[0]
        small = rng.randint(2, 20)
        names: dict[str, object] = {name: rng.choice(of) for name, of in self.words.items()}
        names |= {
            "topic": rng.choice(topics), "other_topic": rng.choice(topics),
            "count": rng.choice(COUNTS), "percent": rng.choice(PERCENTS),
            "large": rng.randint(2, 999), "medium": rng.randint(2, 99), "small": small,
            "small_twice": small * 2, "small_thrice": small * 3,
            "square": rng.randint(2, 30) ** 2, "die": rng.randint(1, 6),
        }  # fmt: skip
        text = rng.choice(self.templates[kind]).format(**names)
        chance = rng.random()
        if chance < 0.06 and kind in STYLED:
            return text + rng.choice(self.suffixes)
        if 0.06 <= chance < 0.10:
            return rng.choice(self.openings) + text
        return text.lower() if 0.10 <= chance < 0.13 else text


def segments(writer: Writer, count: int, seed: int) -> dict[str, list[str]]:
    """Texts by kind of segment: openings of streams, what follows an answer, headers, and the
    held-out prompts of the evaluation, none of which is an instance of a training template.
    """
    corpus = Corpus.load()
    heldout = json.loads((HERE / "heldout.json").read_text())
    rng = random.Random(seed)
    topics = [topic for topic in corpus.topics if topic not in heldout["topics"]]
    unique: set[str] = set()
    while len(unique) < count:
        unique.add(corpus.prompt(rng, topics))
    prompts = sorted(unique - set(heldout["prompts"]))
    rng.shuffle(prompts)
    usual, bare = writer.turns(None), writer.bare_turns()
    others = [writer.turns(system) for system in corpus.systems]

    def opening() -> Turns:
        chance = rng.random()
        if chance < SYSTEM_DEFAULT:
            return usual
        return bare if chance < SYSTEM_DEFAULT + SYSTEM_NONE else rng.choice(others)

    part = len(prompts) * 2 // 3
    return {
        "first": [opening().first(prompt) for prompt in prompts[:part]],
        "follow": [usual.next(prompt) for prompt in prompts[part:]],
        "user_header": [usual.follow],
        "answer_header": [usual.answer],
        "opening": [turns.opening for turns in (usual, usual, usual, bare, *others[:3])],
        "raw": [writer.document_start() + text for text in corpus.raw_openings],
        "heldout": [usual.first(prompt) for prompt in heldout["prompts"]],
        "heldout_topics": [
            usual.first(corpus.prompt(rng, heldout["topics"])) for _ in heldout["prompts"]
        ],
    }


def write_segments(path: Path, out: Path, count: int, seed: int) -> dict[str, int]:
    """Writes `NAME.tokens` (all segments of a kind in a row) and `NAME.ends` for each kind, and
    `end_tokens`, which end an answer. Returns how many there are of each.
    """
    writer = Writer(path)
    texts = segments(writer, count, seed)
    arrays: dict[str, npt.NDArray[np.int32]] = {}
    for kind, those in texts.items():
        ids = [writer.ids(text) for text in those]
        arrays[f"{kind}.tokens"] = np.array([i for one in ids for i in one], np.int32)
        arrays[f"{kind}.ends"] = np.cumsum([len(one) for one in ids]).astype(np.int32)
    arrays["end_tokens"] = np.array(writer.ends(), np.int32)
    np.savez_compressed(out, allow_pickle=False, **arrays)
    return {kind: len(those) for kind, those in texts.items()}
