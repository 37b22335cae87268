"""The HTTP application: which path leads where, and what every request passes through.

`build_app` is what the process calls; `make_runner` is how it must be run, so that a client that
goes away cancels its request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from strata.serving.request import Service
from strata.text.model import TextModel


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Bounds of the HTTP side; each has a setting in config.py."""

    body_bytes: int = 16 * 1024 * 1024
    body_idle_s: float = 30.0  # a body must make progress this often
    ping_s: float = 10.0  # silence after which a stream gets a `: ping` comment
    write_idle_s: float = 300.0  # a client that takes nothing for so long is let go


def build_app(
    service: Service,
    model_name: str,
    text: TextModel,
    *,
    limits: ApiLimits | None = None,
    api_keys: Sequence[str] = (),
    model_aliases: Sequence[str] = (),
    extra_routes: Sequence[web.RouteDef] = (),
    open_paths: Sequence[str] = ("/health/live",),
) -> web.Application:
    """The whole application.

    `model_name` is what `/v1/models` lists; `model_aliases` (the file's name and path) are accepted
    besides it. With `api_keys`, every path but `open_paths` wants `Authorization: Bearer KEY`.
    `extra_routes` are the operations endpoints (health, status, metrics); they get the same
    errors, request ids and key check.
    """
    raise NotImplementedError


def make_runner(app: web.Application, *, shutdown_s: float = 60.0) -> web.AppRunner:
    """A runner with handler cancellation on; `shutdown_s` bounds the wait for open requests."""
    raise NotImplementedError
