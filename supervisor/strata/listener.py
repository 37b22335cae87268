"""The listening socket of the service, and the descriptors that its connections take."""

from __future__ import annotations

import contextlib
import resource
import socket

from strata.config import Config
from strata.errors import AddressError

LISTEN_BACKLOG = 1024  # connections that the kernel holds until we accept them


def raise_descriptor_limit() -> None:
    """As many descriptors as the system allows: each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    # Where the system's own limit is below the hard one (macOS), the soft one stays.
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def listen(config: Config) -> socket.socket:
    """A bound socket, not yet listening. Raises AddressError."""
    try:
        found = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise AddressError(f"host {config.host} is not an address: {error.strerror}") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressError(
            f"cannot listen on {config.host} port {config.port}: {error.strerror};"
            " choose another with --port (0: any free one)"
        ) from None
    listener.setblocking(False)
    return listener
