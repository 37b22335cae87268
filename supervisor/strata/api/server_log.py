"""Keeps the faults of clients out of the error log.

aiohttp logs bytes that are no HTTP, and what it finds when it drains a body that could not be
decoded, as errors with a traceback. Anyone can send these, they are answered with 400, and nothing
of the service is wrong: here they become debug records. Every other record passes unchanged.
"""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_CLIENT_FAULTS = (HttpProcessingError, web.RequestPayloadError)


class ClientFaultFilter(logging.Filter):
    """For the logger that aiohttp's server writes to."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], _CLIENT_FAULTS):
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return self._logger.isEnabledFor(record.levelno)


SERVER_LOG = logging.getLogger("aiohttp.server")
SERVER_LOG.addFilter(ClientFaultFilter(SERVER_LOG))
