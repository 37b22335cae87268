"""Peers brought to a phase by a legal exchange."""

from __future__ import annotations

from strata_protocol import messages as m
from strata_protocol.peer import EnginePeer, SupervisorPeer

PLAN = m.ModePlan(
    batch=2,
    max_context=128,
    kv="f16",
    prefill=32,
    activations="f32",
    threads=1,
    kv_tokens=256,
)
HELLO = m.Hello(proto_min=1, proto_max=1, build="b", backend="cpu", device="a CPU", pid=1)
CAPS = m.Caps(host=m.HostFacts(), model=m.ModelFacts(), configurations=[m.Configuration(plan=PLAN)])
PROGRESS = m.Progress(phase="map", done=1, total=2)
PROBE = m.Probe(mode="batch", ok=True, ms=1.0)
REFUSE = m.Refuse(reasons=[m.Reason(code="mem.weights", text="too large")], exit_code=78)
DYING = m.Dying(error_kind=m.ErrorKind.INTERNAL, code="x", text="y")
SUBMIT = m.Submit(rid=1, prompt_tokens=1, ids=[5], params=m.SamplingParams())


def offer(limits: m.Limits | None = None, proto: int = 1) -> m.Offer:
    return m.Offer(
        proto=proto,
        run_id="r",
        epoch=1,
        model="m.gguf",
        want=m.WantedModes(),
        limits=limits or m.Limits(),
    )


def ready(limits: m.Limits | None = None) -> m.Ready:
    return m.Ready(
        plan=PLAN,
        load_ms=1.0,
        warm_ms=1.0,
        kv_pages=8,
        page_tokens=32,
        limits=limits or m.Limits(),
    )


def loading(limits: m.Limits | None = None) -> tuple[SupervisorPeer, EnginePeer]:
    """Both ends after PLAN."""
    supervisor, engine = SupervisorPeer(), EnginePeer()
    supervisor.feed(engine.send(HELLO))
    engine.feed(supervisor.send(offer(limits)))
    supervisor.feed(engine.send(CAPS))
    engine.feed(supervisor.send(m.Plan(plan=PLAN)))
    return supervisor, engine


def running(limits: m.Limits | None = None) -> tuple[SupervisorPeer, EnginePeer]:
    """Both ends after READY."""
    supervisor, engine = loading(limits)
    supervisor.feed(engine.send(ready(limits)))
    return supervisor, engine
