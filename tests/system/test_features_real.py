"""The real engine's features over its pipes: stated in CAPS, at work, and nothing else accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from strata_protocol import messages as m
from strata_protocol.features import FIELDS

from tests.system.engine_driver import Engine, submit
from tools.synth_model import Shape, write_model

PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture
def engine(engine_path: Path, repository: Path) -> Iterator[Engine]:
    with Engine(engine_path) as engine:
        engine.boot(repository / "tests/data/oracle/tiny-qwen3.gguf", batch=2, max_context=256)
        yield engine


EVERYTHING = [feature.value for feature in FIELDS]


def test_every_configuration_states_how_it_serves(engine: Engine) -> None:
    """Each with all features that have a field; READY says the same of what runs."""
    assert engine.caps.serving == [m.ServingMode(drafts=0, features=EVERYTHING)]
    assert all(c.serving == [0] for c in engine.caps.configurations)
    assert engine.ready.serving == engine.caps.serving


def test_configurations_with_drafts_state_their_own(engine_path: Path, tmp_path: Path) -> None:
    shape = Shape(draft_layers=1)
    model = write_model(tmp_path / "m.gguf", shape, kind="q4_0")
    with Engine(engine_path) as engine:
        engine.expect(m.Hello)
        engine.send(engine.offer(model, batch=2, spec=3, batch_mtp="on"))
        caps = engine.expect(m.Caps)
    drafting = {c.plan.spec: c for c in caps.configurations}
    assert set(drafting) >= {0, 1, 3}
    for spec, configuration in drafting.items():
        first = caps.serving[configuration.serving[0]]
        assert first.drafts == spec
        offered = {name for i in configuration.serving for name in caps.serving[i].features}
        assert offered == set(EVERYTHING)
    # Each way is written once, and one that offers no more than the way before it is not there.
    assert len(caps.serving) == len({(mode.drafts, *mode.features) for mode in caps.serving})
    for configuration in caps.configurations:
        ways = [set(caps.serving[i].features) for i in configuration.serving]
        assert all(not ways[i] <= ways[i - 1] for i in range(1, len(ways)))


def test_a_mode_that_is_not_there_is_refused_for_that_request(engine: Engine) -> None:
    message = msgspec.structs.replace(submit(1, PROMPT, max_tokens=4), mode=1)
    engine.send(message, submit(2, PROMPT, max_tokens=4))
    done = engine.done(1)
    assert (done.error_kind, done.code) == (m.ErrorKind.INVALID_REQUEST, "request.mode")
    assert done.text == "mode: 1; this engine serves in 1, counted from 0"
    assert engine.done(2).error_kind is None


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
    assert done.text == "the request needs grammar, which its mode does not have"
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
