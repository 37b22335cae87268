"""The real engine over its pipes: handshake, requests, and every way it ends."""

from __future__ import annotations

import os
import platform
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from strata_protocol import messages as m
from strata_protocol.exit_codes import ExitCode

from tests.system.engine_driver import Engine, first_ready, submit

VOCAB = 320  # of the tiny model
FOREVER = 100_000  # more than its context


@pytest.fixture(scope="module")
def model(repository: Path) -> Path:
    return repository / "tests/data/oracle/tiny-qwen3.gguf"


def prompt(length: int, seed: int = 0) -> list[int]:
    return [random.Random(seed).randrange(VOCAB) for _ in range(length)]


@pytest.fixture
def engine(engine_path: Path, model: Path) -> Iterator[Engine]:
    with Engine(engine_path) as engine:
        engine.boot(model, batch=8, prefill=64, max_context=2048, kv_tokens=16384)
        yield engine


# --- handshake ---------------------------------------------------------------------------------


def test_handshake_proves_what_it_offers(engine_path: Path, model: Path) -> None:
    with Engine(engine_path) as engine:
        ready = engine.boot(model, batch=4, prefill=32, kv_tokens=4096)
        assert engine.caps.model.architecture == "qwen3"
        assert engine.caps.model.vocab == VOCAB
        assert ready.plan == engine.caps.configurations[0].plan
        assert not engine.caps.configurations[0].missing
        assert ready.plan.batch == 4
        assert ready.kv_pages * ready.page_tokens == ready.plan.kv_tokens
        assert {probe.mode for probe in engine.probes} == {
            "solo",
            "prefill",
            "batch",
            "max_context",
        }
        assert all(probe.ok and not probe.reasons for probe in engine.probes)
        assert any(p.phase == "pack" and p.done == p.total for p in engine.progress)


def test_what_the_plan_does_not_have_is_not_proven(engine_path: Path, model: Path) -> None:
    """One row at a time may be what is left after a prefill that ended an engine."""
    with Engine(engine_path) as engine:
        ready = engine.boot(model, batch=1, prefill=1)
        assert (ready.plan.batch, ready.plan.prefill) == (1, 1)
        assert [probe.mode for probe in engine.probes] == ["solo", "max_context"]


def test_missing_kernels_limit_the_batch_and_say_so(engine_path: Path, model: Path) -> None:
    with Engine(engine_path) as engine:
        ready = engine.boot(model, without=["*:sequences>1"], batch=4)
        asked = engine.caps.configurations[0]
        assert asked.plan.batch == 4
        assert {engine.caps.reasons[index].code for index in asked.missing} == {"kernel.missing"}
        assert ready.plan.batch == 1
        engine.send(submit(1, prompt(10), max_tokens=3), submit(2, prompt(11), max_tokens=3))
        assert [len(output.ids) for output in engine.finish(1, 2)] == [3, 3]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, "gguf.open"),
        (b"", "gguf.magic"),
        (b"GGUF\3\0\0\0", "gguf.truncated"),
        (b"PK\3\4" + bytes(100), "gguf.magic"),
    ],
)
def test_bad_model_file_is_refused(
    engine_path: Path, tmp_path: Path, content: bytes | None, code: str
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with Engine(engine_path) as engine:
        engine.expect(m.Hello)
        engine.send(engine.offer(path))
        refuse = engine.expect(m.Refuse)
        assert [reason.code for reason in refuse.reasons] == [code]
        assert str(path) in refuse.reasons[0].text
        assert refuse.exit_code == ExitCode.MODEL_BAD
        assert engine.exit_code() == ExitCode.MODEL_BAD


def test_nothing_can_run_is_refused_with_all_reasons(engine_path: Path, model: Path) -> None:
    with Engine(engine_path) as engine:
        engine.expect(m.Hello)
        engine.send(engine.offer(model, without=["matmul*", "attention*"]))
        caps = engine.expect(m.Caps)
        assert all(configuration.missing for configuration in caps.configurations)
        refuse = engine.expect(m.Refuse)
        text = "\n".join(reason.text for reason in refuse.reasons)
        assert "matmul" in text
        assert "attention" in text
        assert engine.exit_code() == ExitCode.CONFIG_REFUSED


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"batch": 0}, "batch"),
        ({"kv": "int3"}, "kv"),
        ({"kv_tokens": 33}, "kv_tokens"),
        ({"max_context": 1 << 30}, "max_context"),
        ({"activations": "bf16"}, "activations"),
    ],
)
def test_impossible_plan_is_refused(
    engine_path: Path, model: Path, change: dict[str, Any], named: str
) -> None:
    with Engine(engine_path) as engine:
        engine.expect(m.Hello)
        engine.send(engine.offer(model))
        plan = first_ready(engine.expect(m.Caps)).plan
        engine.send(m.Plan(plan=msgspec.structs.replace(plan, **change)))
        refuse = engine.expect(m.Refuse)
        assert [reason.code for reason in refuse.reasons] == ["plan.range"]
        assert named in refuse.reasons[0].text
        assert engine.exit_code() == ExitCode.CONFIG_REFUSED


# --- requests ----------------------------------------------------------------------------------


def test_one_request(engine: Engine) -> None:
    engine.send(submit(7, prompt(100), max_tokens=12, logprobs=2))
    (output,) = engine.finish(7)
    assert len(output.ids) == 12
    assert [len(logprob.top) for logprob in output.logprobs] == [2] * 12
    # Greedy: the chosen token is the best one.
    assert [lp.top[0].token for lp in output.logprobs] == output.ids
    assert all(lp.top[0].logprob == lp.logprob for lp in output.logprobs)
    assert output.done is not None
    assert output.done.reason is m.FinishReason.LENGTH
    assert (output.done.prompt_tokens, output.done.output_tokens) == (100, 12)
    assert output.done.timings.prefill_ms > 0


def mixed_requests(first_rid: int) -> list[m.Submit]:
    """Eight requests of different lengths, parameters and some equal beginnings."""
    shared = prompt(70, seed=99)
    sampled: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 0.9,
        "frequency_penalty": 0.5,
        "seed": 11,
    }
    return [
        submit(first_rid, prompt(150, 1), max_tokens=40),
        submit(first_rid + 1, prompt(3, 2), max_tokens=40),
        submit(first_rid + 2, shared, max_tokens=30, **sampled, choice=0),
        submit(first_rid + 3, shared, max_tokens=30, **sampled, choice=1),
        submit(first_rid + 4, shared + prompt(20, 3), max_tokens=30, top_k=5, temperature=0.7),
        submit(first_rid + 5, prompt(33, 4), max_tokens=50, repetition_penalty=1.3),
        submit(first_rid + 6, prompt(64, 5), max_tokens=25, min_p=0.1, temperature=1.2),
        submit(first_rid + 7, prompt(1, 6), max_tokens=60, typical_p=0.8, temperature=0.9),
    ]


@pytest.mark.parametrize("activations", ["int8", "f32"])
def test_same_tokens_alone_and_in_a_batch_of_eight(
    engine_path: Path, model: Path, activations: str
) -> None:
    size: dict[str, Any] = {"max_context": 2048, "kv_tokens": 8192, "activations": activations}
    with Engine(engine_path) as engine:
        engine.boot(model, batch=1, prefill=256, prefix_cache=False, **size)
        engine.send(*mixed_requests(1))
        alone = [output.ids for output in engine.finish(*range(1, 9))]
    with Engine(engine_path) as engine:
        engine.boot(model, batch=8, prefill=24, **size)
        for first_rid in (1, 101):  # the second time from the prefix cache
            engine.send(*mixed_requests(first_rid))
            together = engine.finish(*range(first_rid, first_rid + 8))
            assert [output.ids for output in together] == alone
        assert sum(engine.done(rid).cached_tokens for rid in range(101, 109)) > 300
    assert alone[2] != alone[3]


def test_cancel_ends_one_request(engine: Engine) -> None:
    engine.send(
        submit(1, prompt(20, 1), max_tokens=FOREVER), submit(2, prompt(20, 2), max_tokens=200)
    )
    engine.run_until(lambda: len(engine.outputs[1].ids) > 5)
    engine.send(m.Cancel(rid=1), m.Cancel(rid=12345))
    first, second = engine.finish(1, 2)
    assert first.done is not None
    assert first.done.reason is m.FinishReason.CANCELLED
    assert first.done.output_tokens == len(first.ids)
    assert len(second.ids) == 200


def test_credit_pauses_one_request(engine: Engine) -> None:
    engine.send(
        submit(1, prompt(20, 1), max_tokens=50, credit=10), submit(2, prompt(20, 2), max_tokens=99)
    )
    engine.finish(2)
    assert len(engine.outputs[1].ids) == 10
    assert engine.outputs[1].done is None
    engine.send(m.Credit(rid=1, upto=25))
    engine.run_until(lambda: len(engine.outputs[1].ids) == 25)
    engine.send(m.Credit(rid=1, upto=1000))
    assert len(engine.finish(1)[0].ids) == 50


def test_long_prompt_in_pieces(engine: Engine) -> None:
    ids = prompt(1000)
    engine.send(submit(1, ids, max_tokens=8))
    whole = engine.finish(1)[0].ids
    first = msgspec.structs.replace(submit(2, ids, max_tokens=8), ids=ids[:300])
    engine.send(
        first, m.Prompt(rid=2, offset=300, ids=ids[300:301]), submit(3, prompt(5), max_tokens=1)
    )
    engine.finish(3)  # others go on while a prompt arrives
    engine.send(m.Prompt(rid=2, offset=301, ids=ids[301:]))
    assert engine.finish(2)[0].ids == whole


def test_resume_goes_on_where_another_engine_stopped(
    engine_path: Path, model: Path, engine: Engine
) -> None:
    params: dict[str, Any] = {"temperature": 1.0, "seed": 5, "presence_penalty": 0.7, "top_p": 0.95}
    whole = submit(1, prompt(90), max_tokens=40, **params)
    engine.send(whole)
    tokens = engine.finish(1)[0].ids
    with Engine(engine_path) as other:
        other.boot(model, batch=2)
        other.outputs[1].ids = tokens[:17]
        other.send(
            m.Resume(
                rid=1,
                prompt_tokens=90,
                ids=whole.ids,
                generated=tokens[:17],
                params=whole.params,
            )
        )
        (output,) = other.finish(1)
        assert output.ids == tokens
        assert other.done(1).output_tokens == 40


def test_stop_id_is_reported_and_not_delivered(engine: Engine) -> None:
    engine.send(submit(1, prompt(30), max_tokens=20))
    tokens = engine.finish(1)[0].ids
    stop_id = tokens[6]
    engine.send(submit(2, prompt(30), max_tokens=20, stop_ids=[stop_id]))
    done = engine.done(2)
    assert (done.reason, done.stop_id) == (m.FinishReason.STOP, stop_id)
    assert engine.outputs[2].ids == tokens[: tokens.index(stop_id)]
    engine.send(submit(3, prompt(30), max_tokens=20, stop_ids=[stop_id], ignore_eos=True))
    assert engine.finish(3)[0].ids == tokens


def test_prompt_is_scored(engine: Engine) -> None:
    ids = prompt(100)
    engine.send(submit(1, ids, max_tokens=0, prompt_logprobs=1))
    (scored,) = engine.finish(1)
    assert sorted(scored.prompt_logprobs) == list(range(1, 100))
    assert scored.ids == []
    # The same number comes out when the token is generated behind the same prefix.
    engine.send(submit(2, ids[:50], max_tokens=1, logprobs=0, logit_bias=[[ids[50], 100.0]]))
    (generated,) = engine.finish(2)
    assert generated.ids == [ids[50]]
    assert generated.logprobs[0].logprob == scored.prompt_logprobs[50].logprob


def test_context_limit_ends_with_length(engine_path: Path, model: Path) -> None:
    with Engine(engine_path) as engine:
        engine.boot(model, batch=2, max_context=64)
        engine.send(submit(1, prompt(60), max_tokens=FOREVER))
        done = engine.done(1)
        assert (done.reason, done.output_tokens) == (m.FinishReason.LENGTH, 4)


BAD_REQUESTS: dict[str, tuple[m.Submit | m.Resume, str]] = {
    "token": (submit(1, [1, VOCAB]), "request.ids"),
    "empty": (submit(1, []), "request.prompt_tokens"),
    "too many ids": (
        msgspec.structs.replace(submit(1, [1, 2, 3]), prompt_tokens=2),
        "request.ids",
    ),
    "long": (submit(1, prompt(2048)), "context_length_exceeded"),
    "longer than sent": (
        msgspec.structs.replace(submit(1, [1]), prompt_tokens=1 << 31),
        "context_length_exceeded",
    ),
    "top_p": (submit(1, [1], top_p=1.5), "sampling.top_p"),
    "nan": (submit(1, [1], temperature=float("nan")), "sampling.temperature"),
    "stop id": (submit(1, [1], stop_ids=[VOCAB]), "sampling.stop_ids"),
    "logprobs": (submit(1, [1], logprobs=1000), "sampling.logprobs"),
    "generated": (
        m.Resume(
            rid=1,
            prompt_tokens=1,
            ids=[1],
            generated=[2, 3],
            params=m.SamplingParams(max_tokens=1),
        ),
        "request.generated",
    ),
    "generated token": (
        m.Resume(rid=1, prompt_tokens=1, ids=[1], generated=[VOCAB], params=m.SamplingParams()),
        "request.generated",
    ),
}


def test_bad_request_ends_alone(engine: Engine) -> None:
    engine.send(submit(1000, prompt(10), max_tokens=300))
    for rid, (name, (bad, code)) in enumerate(BAD_REQUESTS.items(), start=1):
        engine.send(msgspec.structs.replace(bad, rid=rid))
        done = engine.done(rid)
        assert (done.reason, done.error_kind) == (
            m.FinishReason.ERROR,
            m.ErrorKind.INVALID_REQUEST,
        ), name
        assert done.code == code, name
        assert done.text, name
    assert len(engine.finish(1000)[0].ids) == 300


@pytest.mark.parametrize(
    "piece",
    [
        m.Prompt(rid=1, offset=4, ids=[1]),  # a gap
        m.Prompt(rid=1, offset=3, ids=[1] * 8),  # more than the rest
        m.Prompt(rid=1, offset=3, ids=[]),
        m.Prompt(rid=1, offset=3, ids=[VOCAB]),
    ],
)
def test_bad_piece_of_a_prompt_ends_its_request(engine: Engine, piece: m.Prompt) -> None:
    engine.send(msgspec.structs.replace(submit(1, [1, 2, 3]), prompt_tokens=10), piece)
    assert engine.done(1).code == "request.prompt"
    engine.send(m.Prompt(rid=1, offset=3, ids=[1]), submit(2, [5], max_tokens=2))
    assert len(engine.finish(2)[0].ids) == 2


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_name_in_use_ends_once(engine: Engine, is_whole: bool) -> None:
    first = submit(1, prompt(10), max_tokens=FOREVER)
    if not is_whole:
        first = msgspec.structs.replace(first, prompt_tokens=11)
    engine.send(first, submit(1, prompt(10), max_tokens=5), submit(2, prompt(9), max_tokens=5))
    assert engine.done(1).code == "request.rid"
    engine.finish(2)
    engine.outputs.clear()
    engine.send(submit(1, prompt(10), max_tokens=5))  # free again
    assert len(engine.finish(1)[0].ids) == 5


def test_ping_and_stats(engine: Engine) -> None:
    engine.send(m.Ping(nonce=5))
    engine.run_until(lambda: bool(engine.pongs))
    assert (engine.pongs[0].nonce, engine.pongs[0].busy) == (5, False)
    engine.send(submit(1, prompt(500), max_tokens=FOREVER))
    engine.run_until(lambda: len(engine.outputs[1].ids) > 0)
    engine.send(m.Ping(nonce=6))
    engine.run_until(lambda: len(engine.pongs) == 2)
    assert engine.pongs[1].busy
    assert engine.pongs[1].step > engine.pongs[0].step
    engine.send(m.Cancel(rid=1))
    engine.run_until(lambda: bool(engine.stats) and engine.stats[-1].running == 0)
    stats = engine.stats[-1]
    assert stats.prompt_tokens == 500
    assert stats.output_tokens == len(engine.outputs[1].ids)
    assert stats.kv_pages_used == 0 < stats.kv_pages_cached <= stats.kv_pages_total
    assert stats.rss_bytes > 0
    assert stats.step_ms > 0


# --- the end -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_busy", [True, False])
def test_end_of_commands_ends_the_process(engine: Engine, is_busy: bool) -> None:
    if is_busy:
        engine.send(submit(1, prompt(10), max_tokens=FOREVER))
        engine.run_until(lambda: len(engine.outputs[1].ids) > 0)
    engine.close_commands()
    assert engine.exit_code() == ExitCode.PARENT_DIED


def test_end_of_commands_during_the_handshake(engine_path: Path) -> None:
    with Engine(engine_path) as engine:
        engine.expect(m.Hello)
        engine.close_commands()
        assert engine.exit_code() == ExitCode.PARENT_DIED


def test_another_parent_than_announced(engine_path: Path) -> None:
    with Engine(engine_path, parent=1) as engine:
        assert engine.process.wait(30) == ExitCode.PARENT_DIED


def test_garbage_is_a_fault_with_last_words(engine: Engine) -> None:
    engine.send(submit(1, prompt(10), max_tokens=FOREVER))
    engine.run_until(lambda: len(engine.outputs[1].ids) > 0)
    engine.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
    assert engine.exit_code() == ExitCode.PROTOCOL_BROKEN
    assert engine.dying is not None
    assert engine.dying.code == "proto.magic"


def test_garbage_before_hello_is_a_fault(engine_path: Path) -> None:
    for _ in range(10):  # the reader and the first message race
        with Engine(engine_path, first=bytes(64)) as engine:
            assert engine.process.wait(30) == ExitCode.PROTOCOL_BROKEN


def test_message_out_of_order_is_a_fault(engine_path: Path, engine: Engine) -> None:
    with Engine(engine_path) as other:
        other.expect(m.Hello)
        other.peer.phase = engine.peer.phase  # pretend that the handshake is over
        other.send(m.Ping(nonce=1))
        other.read()
        assert other.exit_code() == ExitCode.PROTOCOL_BROKEN
        assert other.dying is not None
        assert other.dying.code == "proto.order"


@pytest.mark.parametrize("how", ["sigterm", "drain"])
def test_drain_finishes_what_runs(engine: Engine, how: str) -> None:
    engine.send(submit(1, prompt(10), max_tokens=400), submit(2, prompt(11), max_tokens=100))
    engine.run_until(lambda: len(engine.outputs[1].ids) > 0)
    if how == "sigterm":
        engine.process.send_signal(signal.SIGTERM)
        # A request that arrives behind the signal is refused; until the engine has seen the
        # signal it may still be taken.
        rid = 3
        engine.send(submit(rid, prompt(5), max_tokens=1))
        while engine.done(rid).code != "engine_draining":
            assert len(engine.outputs[1].ids) < 400, "the engine does not drain"
            rid += 1
            engine.send(submit(rid, prompt(5), max_tokens=1))
        assert engine.done(rid).error_kind is m.ErrorKind.OVERLOADED
    else:
        engine.send(m.Drain())
    assert [len(output.ids) for output in engine.finish(1, 2)] == [400, 100]
    assert engine.exit_code() == ExitCode.OK


def test_sigterm_while_idle(engine: Engine) -> None:
    engine.process.send_signal(signal.SIGTERM)
    assert engine.exit_code() == ExitCode.OK


def test_sigterm_during_the_handshake(engine_path: Path) -> None:
    with Engine(engine_path) as engine:
        engine.expect(m.Hello)
        engine.process.send_signal(signal.SIGTERM)
        assert engine.exit_code() == ExitCode.OK


def test_closed_event_pipe_ends_the_process(engine_path: Path, model: Path) -> None:
    with Engine(engine_path) as engine:
        engine.boot(model)
        unused, event_fd = os.pipe()
        os.close(unused)
        os.dup2(event_fd, engine.event_fd)  # nobody reads the events any more
        os.close(event_fd)
        engine.send(submit(1, prompt(5), max_tokens=5))
        assert engine.process.wait(30) == ExitCode.PARENT_DIED


# --- command line ------------------------------------------------------------------------------

# An instruction set that the processor of this machine cannot have.
OTHER_ISA = "avx2" if platform.machine() in ("aarch64", "arm64") else "neon"


@pytest.mark.parametrize(
    ("flags", "named", "code"),
    [
        (["--batchh", "4"], "--batchh", ExitCode.USAGE),
        (["--isa"], "--isa", ExitCode.USAGE),
        (["--isa", "sse9"], "sse9", ExitCode.USAGE),
        (["--batch", "many"], "--batch", ExitCode.USAGE),
        (["--describe=1"], "--describe", ExitCode.USAGE),
        (["--ipc", "3"], "--ipc", ExitCode.USAGE),
        (["--ipc", "x,4"], "command", ExitCode.USAGE),
        (["--ipc", "991,992"], "991", ExitCode.USAGE),
        ([], "--help", ExitCode.USAGE),
        (["--isa", OTHER_ISA], OTHER_ISA, ExitCode.ISA_MISSING),
        (
            ["--without-kernel", "matmul*:colour=red", "--describe"],
            "colour",
            ExitCode.CONFIG_REFUSED,
        ),
    ],
)
def test_bad_flag_is_one_clear_sentence(
    engine_path: Path, flags: list[str], named: str, code: ExitCode
) -> None:
    result = subprocess.run(
        [engine_path, *flags], capture_output=True, text=True, timeout=30, check=False
    )
    assert result.returncode == code
    assert named in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def run_json(engine_path: Path, *flags: str) -> dict[str, Any]:
    result = subprocess.run([engine_path, *flags], capture_output=True, timeout=30, check=True)
    return msgspec.json.decode(result.stdout, type=dict[str, Any])


def test_plan_prints_what_caps_says(engine_path: Path, model: Path) -> None:
    printed = run_json(engine_path, "--plan", str(model), "--batch", "3", "--threads", "1")
    with Engine(engine_path) as engine:
        engine.expect(m.Hello)
        engine.send(engine.offer(model, batch=3))
        caps = msgspec.to_builtins(engine.expect(m.Caps))
    for facts in (printed["host"], printed["device"], caps["host"], caps["device"]):
        facts.pop("memory_available_bytes")
    assert printed == caps


def test_help_and_version(engine_path: Path) -> None:
    for flag, word in (("--help", "--without-kernel"), ("--version", "strata-engine-cpu")):
        result = subprocess.run(
            [engine_path, flag], capture_output=True, text=True, timeout=30, check=True
        )
        assert word in result.stdout
