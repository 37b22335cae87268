"""The real engine with drafts: every request gets what it gets without them, bit for bit, alone and
beside others, however it is sampled and however it ends."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from strata_protocol import messages as m

from tests.system.engine_driver import Engine, Output, submit
from tools.synth_model import Shape, write_model
from tools.synth_shapes import RECURRENT, STREAMS

DRAFTER = Path(__file__).resolve().parents[1] / "data" / "mtp" / "smollm2-135m-mtp-q8_0.gguf"
SHAPE = Shape(layers=2, tied=False, draft_layers=1, context=1024, attention_interval=2, top_k=48)


@dataclass(frozen=True)
class Case:
    """A model with a drafter, and how much of a text its requests take."""

    model: Path
    want: dict[str, object]
    vocab: int
    tokens: int


@pytest.fixture(scope="module", params=["llama", "qwen3", *RECURRENT, STREAMS, "smollm2"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    want: dict[str, object] = {"batch": 4, "spec": 3, "kv_tokens": 4096, "prefill": 24}
    if request.param == "smollm2":
        model = request.getfixturevalue("smollm2_path")
        return Case(model, want | {"mtp": str(DRAFTER), "threads": 2}, 49152, 16)
    path = tmp_path_factory.mktemp("drafts") / f"{request.param}.gguf"
    shape = dataclasses.replace(SHAPE, architecture=request.param)
    write_model(path, shape, kind="q8_0", predictable=True)
    return Case(path, want, 320, 90)


def prompt(number: int, length: int, vocab: int) -> list[int]:
    return [(7919 * number + 31 * i * i + 5 * i) % (vocab - 20) for i in range(length)]


def requests(case: Case) -> list[m.Submit]:
    """One of each kind; prompts that share pages among them."""
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 0.9, "seed": 5, "top_p": 0.9, "logprobs": 0},
        {"temperature": 0.7, "seed": 6, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
        {"temperature": 0.0, "repetition_penalty": 1.2, "presence_penalty": 0.5, "logprobs": 1},
        {"temperature": 0.0, "max_tokens": 7},
        {"temperature": 0.0, "max_tokens": 1},
        {"temperature": 1.0, "seed": 9, "min_p": 0.05, "logit_bias": [m.LogitBias(11, 2.0)]},
        {"temperature": 0.0, "prompt_logprobs": 1},
    ]
    return [
        submit(
            rid,
            prompt(rid % 3, 33 + 20 * (rid % 2), case.vocab),
            **({"max_tokens": case.tokens} | kind),
        )
        for rid, kind in enumerate(kinds, start=1)
    ]


def serve(
    program: Path, case: Case, asked: list[m.Submit], *, drafts: bool, together: bool
) -> list[Output]:
    want = case.want if drafts else case.want | {"mtp": "off", "spec": 0}
    with Engine(program, "--fixed-drafts") as engine:
        ready = engine.boot(case.model, **want)
        assert (ready.plan.spec, ready.plan.batch_mtp) == ((3, True) if drafts else (0, False))
        assert all(probe.ok for probe in engine.probes), engine.probes
        if together:
            engine.send(*asked)
            return engine.finish(*(message.rid for message in asked))
        outputs = []
        for message in asked:
            engine.send(message)
            outputs += engine.finish(message.rid)
        return outputs


def same(a: Output, b: Output) -> bool:
    assert a.done is not None
    assert b.done is not None
    ends = [(done.reason, done.stop_id, done.output_tokens) for done in (a.done, b.done)]
    return (a.ids, a.logprobs, a.prompt_logprobs, ends[0]) == (
        b.ids,
        b.logprobs,
        b.prompt_logprobs,
        ends[1],
    )


def test_every_request_gets_what_it_gets_without_drafts(engine_path: Path, case: Case) -> None:
    asked = requests(case)
    (first,) = serve(engine_path, case, asked[:1], drafts=False, together=False)
    # A token of the first text ends another one there: a stop in the middle of accepted drafts.
    stop = first.ids[len(first.ids) // 2]
    params = msgspec.structs.replace(asked[0].params, stop_ids=[stop], min_tokens=2)
    asked.append(msgspec.structs.replace(asked[0], rid=20, params=params))
    plain = serve(engine_path, case, asked, drafts=False, together=False)
    for together in (False, True):
        drafted = serve(engine_path, case, asked, drafts=True, together=together)
        for message, a, b in zip(asked, plain, drafted, strict=True):
            assert same(a, b), (message, together, a.ids, b.ids)
        counts = [(o.done.drafted_tokens, o.done.accepted_tokens) for o in drafted if o.done]
        assert sum(accepted for _, accepted in counts) > 10, counts
        assert all(accepted <= drafted for drafted, accepted in counts)
        assert counts[5] == (0, 0)  # one token needs no drafts
    assert plain[-1].done is not None
    assert plain[-1].done.reason is m.FinishReason.STOP


def test_credit_and_cancel_within_steps_of_several_tokens(engine_path: Path, case: Case) -> None:
    first, second = requests(case)[0], requests(case)[3]
    (whole,) = serve(engine_path, case, [first], drafts=False, together=False)
    with Engine(engine_path, "--fixed-drafts") as engine:
        engine.boot(case.model, **case.want)
        engine.send(msgspec.structs.replace(first, credit=5), second)
        engine.finish(second.rid)
        assert engine.outputs[first.rid].ids == whole.ids[:5]
        engine.send(m.Credit(rid=first.rid, upto=11))
        engine.run_until(lambda: len(engine.outputs[first.rid].ids) == 11)
        assert engine.outputs[first.rid].ids == whole.ids[:11]
        engine.send(m.Cancel(rid=first.rid))
        (cancelled,) = engine.finish(first.rid)
        assert cancelled.done is not None
        assert cancelled.done.reason is m.FinishReason.CANCELLED
        assert cancelled.ids == whole.ids[:11]


def test_a_resumed_request_goes_on_with_drafts(engine_path: Path, case: Case) -> None:
    first = requests(case)[1]
    (whole,) = serve(engine_path, case, [first], drafts=False, together=False)
    half = whole.ids[: len(whole.ids) // 2]
    with Engine(engine_path, "--fixed-drafts") as engine:
        engine.boot(case.model, **case.want)
        engine.outputs[2].ids += half
        engine.send(
            m.Resume(
                rid=2,
                prompt_tokens=first.prompt_tokens,
                ids=first.ids,
                generated=half,
                params=first.params,
            )
        )
        (resumed,) = engine.finish(2)
    assert resumed.ids == whole.ids
    assert resumed.done is not None
    assert resumed.done.drafted_tokens > 0
