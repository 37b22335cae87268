"""The service's log: text lines or JSON lines on standard error, through the output thread.

JSON: one object per line with `ts`, `lvl`, `ev` (the logger, a stable dotted name), `pid`, `rid`
where a request is being served, and `msg`. Lines of the engine come as `ev` = engine.output.
Prompts, completions and keys are never logged.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

import msgspec

from strata.observe.output import Output

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""The request being served in this task; shown by every line logged in it."""


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str | int] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "lvl": record.levelname.lower(),
            "ev": _event(record),
            "pid": os.getpid(),
        }
        rid = request_id.get()
        if rid:
            line["rid"] = rid
        line["msg"] = record.getMessage()
        if record.exc_info:
            line["exc"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        rid = request_id.get()
        text = record.getMessage()
        line = f"{time} {record.levelname.lower():7} {_event(record)}: {text}"
        if rid:
            line += f" [{rid}]"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _event(record: logging.LogRecord) -> str:
    return record.name.removeprefix("strata.")


class OutputHandler(logging.Handler):
    """Formats where the record is made, writes in the output thread."""

    def __init__(self, output: Output, write_line: Callable[[str], None]) -> None:
        super().__init__()
        self._output = output
        self._write_line = write_line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        self._output.post(lambda: self._write_line(line))


def set_up(
    level: str,
    form: Literal["text", "json"],
    output: Output,
    write_line: Callable[[str], None],
) -> OutputHandler:
    """Routes all logging to `write_line`; returns the handler, for `tear_down`."""
    handler = OutputHandler(output, write_line)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    # Requests are counted in metrics; one line each would be the bulk of the log.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    return handler


def tear_down(handler: OutputHandler) -> None:
    logging.getLogger().removeHandler(handler)
