"""What a chaos engine is told to do, and the tokens it computes.

A script is a JSON list of `EpochScript`, one per engine start; the last one repeats. Everything a
test asserts of the tokens follows from `continuation`: each token depends on the prompt, the seed,
the choice and every token before it, so a resumed stream is right only where the engine got all of
them back, in order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from strata_protocol.features import FIELDS
from strata_protocol.messages import SamplingParams

# In the order of an engine's life. `prefill` and `decode` are steps, the others happen once.
Place = Literal[
    "launch", "handshake", "map", "pack", "probe", "ready", "submit", "prefill", "decode", "drain"
]
Kind = Literal[
    "exit",  # with status `value`
    "signal",  # ends by signal `value`, as its default action does
    "stop",  # SIGSTOP to itself
    "freeze_io",  # neither reads nor answers PING any more; steps go on
    "freeze_compute",  # the step stands for ever; PING is answered
    "freeze",  # both
    "bad_magic", "bad_crc", "bad_length", "bad_version",  # one frame that is none
    "truncated",  # the event pipe ends within a frame, the process does not
    "truncated_exit",  # the same, and it ends with status `value`
    "fill",  # sends STATS without end; marks <script>.full once nobody takes them any more
    "close",  # closes the event pipe and stays
    "stderr",  # a thread writes `value` bytes to standard error
    "print",  # writes a stray line, and bytes that look like a frame, to standard output
    "grandchild",  # leaves a child that holds all descriptors, in its own group
    "grandchild_session",  # the same in a session of its own, for at most `value` seconds
    "grow",  # takes memory until `value` bytes more than now are refused
    "slow",  # each step takes `value` ms longer from now on
    "ignore_term",  # neither SIGTERM nor DRAIN ends it
    "no_parent_death",  # outlives its supervisor: no parent-death signal
]  # fmt: skip


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    do: Kind
    at: Place = "launch"
    after: int = 0  # times that the place is passed unharmed
    value: int = 0
    prompt: str = ""  # only in a step (or SUBMIT) of the prompt with this fingerprint


class EpochScript(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    faults: list[Fault] = []
    batch: int = 8  # the most that it can run together
    max_context: int = 4096
    prefill: int = 256  # prompt rows of a step
    vocab: tuple[int, int] = (10, 250)  # ids that it generates: from, below
    load_ms: float = 0.0  # of map and pack each
    step_ms: float = 0.0
    protocol: tuple[int, int] = (1, 1)
    features: list[str] = msgspec.field(default_factory=lambda: [f.value for f in FIELDS])
    missing: str = ""  # why it cannot batch although more was asked


def write_script(path: Path, epochs: Sequence[EpochScript]) -> None:
    path.write_bytes(msgspec.json.encode(list(epochs)))


def next_epoch(path: Path) -> EpochScript:
    """The script of the start that is under way; counts it in `<path>.starts`, with its pid."""
    starts = path.with_name(path.name + ".starts")
    number = len(starts.read_text().split()) if starts.exists() else 0
    epochs = msgspec.json.decode(path.read_bytes(), type=list[EpochScript])
    return epochs[min(number, len(epochs) - 1)]


def note_pid(path: Path, pid: int, start_time: str) -> None:
    """Appends a process of this engine to `<path>.pids`, to be found by whoever looks for rests."""
    with path.with_name(path.name + ".pids").open("a") as file:
        file.write(json.dumps([pid, start_time]) + "\n")


def noted_pids(path: Path) -> list[tuple[int, str]]:
    """Every process that engines of this script noted: pid and start time."""
    file = path.with_name(path.name + ".pids")
    if not file.exists():
        return []
    return [(int(pid), str(at)) for pid, at in map(json.loads, file.read_text().splitlines())]


def fingerprint(prompt: Sequence[int]) -> str:
    return hashlib.blake2b(_bytes(prompt), digest_size=8).hexdigest()


class Stream:
    """Tokens of one request, one after the other."""

    def __init__(
        self, prompt: Sequence[int], params: SamplingParams, vocab: tuple[int, int]
    ) -> None:
        self._low, high = vocab
        self._count = high - self._low
        # Greedy does not depend on the seed, as in any engine.
        salt = (params.seed, params.choice) if params.temperature > 0 else ()
        self._state = hashlib.blake2b(_bytes((*salt, len(salt), *prompt)), digest_size=16).digest()

    def next(self) -> int:
        """The token at this place; `take` moves on."""
        return self._low + int.from_bytes(self._state[:8], "little") % self._count

    def take(self, token: int) -> None:
        """Appends a token, its own or one that an earlier engine generated."""
        self._state = hashlib.blake2b(
            self._state + token.to_bytes(4, "little"), digest_size=16
        ).digest()


def continuation(
    prompt: Sequence[int], params: SamplingParams, vocab: tuple[int, int] = (10, 250)
) -> Iterator[int]:
    """What an engine that never fails generates, without end."""
    stream = Stream(prompt, params, vocab)
    while True:
        token = stream.next()
        yield token
        stream.take(token)


def _bytes(numbers: Sequence[int]) -> bytes:
    return b"".join(n.to_bytes(8, "little") for n in numbers)
