"""What drafts gain on this machine: SmolLM2 with its draft layer against the same engine without.

    python -m bench.drafts.run --engine build/strata-engine-cpu --model M.gguf --mtp D.gguf

Engines with no drafts, with a fixed depth of 1 to 3, and with the depth that the engine chooses
itself serve the same chat prompts in turn, a few requests each, so that whatever else the machine
does meets all alike. Reported are medians over the rounds of decode tokens per second (wall time
from the first token to the last, over all clients), the gain over no drafts within each round, the
engine's processor time per token, and how often drafts were right by their place.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from strata.text.chat_template import ChatMessage
from strata.text.model import TextModel
from strata_protocol import messages as m

from tests.system.engine_driver import Engine

QUESTIONS = (
    "Why is the sky blue?",
    "Write a short poem about a lighthouse.",
    "Explain to a child how a refrigerator works.",
    "Give me three ideas for a birthday party in a garden.",
    "What is the difference between a virus and a bacterium?",
    "Write a polite letter that cancels a gym membership.",
    "How do I cook rice without burning it?",
    "Summarise the story of Robinson Crusoe in a few sentences.",
)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Config:
    """One engine that is measured."""

    name: str
    engine: Engine
    wall: list[float] = field(default_factory=list)  # tokens per second of each round
    cpu: list[float] = field(default_factory=list)  # milliseconds per token of each round
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    texts: dict[int, list[int]] = field(default_factory=dict)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def boot(args: argparse.Namespace, name: str, clients: int, spec: int) -> Config:
    flags = ["--fixed-drafts"] if name.startswith("depth") else []
    engine = Engine(args.engine, *flags)
    want: dict[str, Any] = {
        "batch": clients,
        "threads": args.threads,
        "kv_tokens": 4096 * clients,
        "max_context": 2048,
        "prefix_cache": True,
        "mtp": str(args.mtp) if spec else "off",
        "spec": spec,
    }
    ready = engine.boot(args.model, **want)
    if ready.plan.spec != spec:
        raise SystemExit(f"{name}: {[probe for probe in engine.probes if not probe.ok]}")
    return Config(name, engine)


def measure(
    config: Config, prompts: list[list[int]], first: int, params: m.SamplingParams, clients: int
) -> None:
    """One round: `clients` requests at once, from prompt `first` on."""
    engine = config.engine
    rids = []
    before = cpu_s(engine.process.pid)
    for client in range(clients):
        number = (first + client) % len(prompts)
        rid = 1 + max(engine.outputs, default=0)
        chosen = msgspec.structs.replace(params, seed=number)
        ids = prompts[number]
        engine.send(m.Submit(rid=rid, prompt_tokens=len(ids), ids=ids, params=chosen))
        rids.append(rid)
        engine.outputs[rid]  # takes the number
    engine.run_until(lambda: all(engine.outputs[rid].ids for rid in rids))
    begin = time.monotonic()
    have = sum(len(engine.outputs[rid].ids) for rid in rids)
    outputs = engine.finish(*rids)
    seconds = time.monotonic() - begin
    tokens = sum(len(output.ids) for output in outputs) - have
    config.wall.append(tokens / seconds)
    config.cpu.append(1000 * (cpu_s(engine.process.pid) - before) / max(tokens, 1))
    config.tokens += tokens
    for client, output in enumerate(outputs):
        assert output.done is not None
        config.drafted += output.done.drafted_tokens
        config.accepted += output.done.accepted_tokens
        config.texts[(first + client) % len(prompts)] = output.ids


def measure_all(args: argparse.Namespace, clients: int, temperature: float) -> dict[str, object]:
    text = TextModel.from_gguf(args.model)
    prompts = [text.encode_chat([ChatMessage("user", question)]) for question in QUESTIONS]
    params = m.SamplingParams(
        max_tokens=args.tokens, temperature=temperature, stop_ids=list(text.stop_ids)
    )
    configs = [boot(args, "off", clients, 0)]
    configs += [boot(args, f"depth {depth}", clients, depth) for depth in (1, 2, 3)]
    configs.append(boot(args, "auto", clients, 3))
    for number in range(args.rounds + 1):
        order = configs if number % 2 else configs[::-1]
        for config in order:
            measure(config, prompts, number * clients, params, clients)
    plain = configs[0]
    out: dict[str, object] = {"clients": clients, "temperature": temperature}
    for config in configs:
        if any(config.texts[number] != ids for number, ids in plain.texts.items()):
            raise SystemExit(f"{config.name}: another text than without drafts")
        wall, cpu = config.wall[1:], config.cpu[1:]  # the first round warms up
        gains = [a / b for a, b in zip(wall, plain.wall[1:], strict=True)]
        savings = [b / a for a, b in zip(cpu, plain.cpu[1:], strict=True)]
        stats = config.engine.stats[-1] if config.engine.stats else None
        out[config.name] = {
            "tokens_per_s": round(statistics.median(wall), 1),
            "gain": round(statistics.median(gains), 3),
            "cpu_ms_per_token": round(statistics.median(cpu), 2),
            "cpu_gain": round(statistics.median(savings), 3),
            "drafted": config.drafted,
            "accepted": config.accepted,
            "accepted_at": [n for n in stats.accepted_at if n] if stats else [],
            "draft_steps": stats.draft_steps if stats else 0,
        }
        print(clients, temperature, config.name, out[config.name], file=sys.stderr)
        config.engine.__exit__(None, None, None)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--mtp", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--temperature", type=float, nargs="*", default=[0.0, 0.8])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result = {
        "model": args.model.name,
        "drafter": args.mtp.name,
        "threads": args.threads,
        "cores": os.cpu_count(),
        "load_average_before": os.getloadavg()[0],
        "rounds": args.rounds,
        "tokens_max": args.tokens,
        "runs": [
            measure_all(args, clients, temperature)
            for clients in args.clients
            for temperature in args.temperature
        ],
        "load_average_after": os.getloadavg()[0],
    }
    text = json.dumps(result, indent=1)
    if args.out:
        args.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
