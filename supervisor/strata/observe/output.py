"""One thread that writes to the terminal and to the log, so that a blocked pipe or a terminal
stopped with Ctrl-S never stops the service. What does not fit in its queue is dropped.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

QUEUE_MAX = 10_000
CLOSE_WAIT_S = 2.0

Action = Callable[[], None]


class Output:
    """`post` from any thread; actions run one after another, in order."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Action | None] = queue.Queue(QUEUE_MAX)
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def post(self, action: Action) -> None:
        """Dropped where the queue is full: nobody has read for a long time."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(action)

    def close(self) -> None:
        """Writes what is queued, for at most CLOSE_WAIT_S."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(CLOSE_WAIT_S)

    def _run(self) -> None:
        while (action := self._queue.get()) is not None:
            # A closed pipe or a full disk at the other end: there is nowhere left to say so.
            with contextlib.suppress(OSError, ValueError):
                action()
