"""The real engine's features over its pipes: stated in CAPS, at work, and nothing else accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from strata_protocol import messages as m
from strata_protocol.features import FIELDS

from tests.system.engine_driver import Engine, submit

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture
def engine(engine_path: Path, repository: Path) -> Iterator[Engine]:
    with Engine(engine_path) as engine:
        engine.boot(repository / "tests/data/oracle/tiny-qwen3.gguf", batch=2, max_context=256)
        yield engine


def test_caps_state_every_feature_that_has_a_field(engine: Engine) -> None:
    assert engine.caps.features == [feature.value for feature in FIELDS]


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_need_that_the_engine_lacks_is_refused_and_nothing_else(
    engine: Engine, is_resumed: bool
) -> None:
    message: m.Submit | m.Resume = submit(1, PROMPT, max_tokens=4, needs=["top_k", "grammar"])
    if is_resumed:
        message = m.Resume(
            rid=1, prompt_tokens=len(PROMPT), ids=PROMPT, generated=[1], params=message.params
        )
    engine.send(message, submit(2, PROMPT, max_tokens=4, needs=["top_k"], top_k=2))
    done = engine.done(1)
    assert (done.reason, done.error_kind) == (m.FinishReason.ERROR, m.ErrorKind.UNSUPPORTED)
    assert done.code == "mode_unsupported"
    assert done.text == "the request needs grammar, which this engine does not have"
    assert engine.outputs[1].ids == []
    assert engine.done(2).error_kind is None
    assert len(engine.outputs[2].ids) == 4


def test_ignore_eos_is_at_work(engine: Engine) -> None:
    engine.send(submit(1, PROMPT, max_tokens=4))
    first = engine.finish(1)[0].ids
    engine.send(
        submit(2, PROMPT, max_tokens=4, stop_ids=first[:1]),
        submit(3, PROMPT, max_tokens=4, stop_ids=first[:1], ignore_eos=True, needs=["ignore_eos"]),
    )
    assert engine.done(2).reason is m.FinishReason.STOP
    assert engine.done(3).reason is m.FinishReason.LENGTH
    assert engine.outputs[3].ids == first


def test_prompt_logprobs_are_at_work(engine: Engine) -> None:
    engine.send(submit(1, PROMPT, max_tokens=1, prompt_logprobs=1, needs=["prompt_logprobs"]))
    (output,) = engine.finish(1)
    assert sorted(output.prompt_logprobs) == [1, 2, 3, 4]
    assert all(len(entry.top) == 1 for entry in output.prompt_logprobs.values())
