"""The two pieces of arithmetic over absolute offsets: prompts cut into frames, and output tokens
received once although they may be sent twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from strata_protocol.errors import FaultCode, ProtocolFault, SendError
from strata_protocol.messages import Limits, Prompt, Resume, Submit

IDS_PER_FRAME: Final = 60_000  # so that CANCEL or PING never waits behind more than 300 KB
_ID_BYTES: Final = 5  # the longest encoding of a token id
_HEAD_BYTES: Final = 64  # tag, rid, counts and array headers


def split_prompt(message: Submit | Resume, limits: Limits) -> Iterator[Submit | Resume | Prompt]:
    """`message` as frames may carry it: itself with the first ids, then PROMPT messages in order.

    Raises SendError (length) where what cannot be cut (parameters, generated ids) exceeds
    `limits.data_bytes` by itself.
    """
    fixed = _HEAD_BYTES + len(msgspec.msgpack.encode(message.params))
    generated = len(message.generated) if isinstance(message, Resume) else 0
    room = (limits.data_bytes - fixed) // _ID_BYTES - generated
    if room < 0:
        text = f"parameters and {generated} generated ids exceed {limits.data_bytes} bytes"
        raise SendError(FaultCode.LENGTH, text, message)
    ids = message.ids
    first = min(room, max(0, IDS_PER_FRAME - generated))
    if len(ids) <= first:
        yield message
        return
    yield msgspec.structs.replace(message, ids=ids[:first])
    step = min(IDS_PER_FRAME, (limits.data_bytes - _HEAD_BYTES) // _ID_BYTES)
    for start in range(first, len(ids), step):
        yield Prompt(rid=message.rid, offset=start, ids=ids[start : start + step])


def new_tokens(received: int, offset: int, ids: Sequence[int]) -> Sequence[int]:
    """The part of `ids` that is new to a receiver of `received` tokens of this request.

    `offset` is absolute, so what was sent before (by an earlier engine, say) is dropped. Raises
    ProtocolFault (order) for a gap: tokens are missing that nobody will send.
    """
    if offset > received:
        text = f"TOKENS starts at token {offset}, but only {received} came before"
        raise ProtocolFault(FaultCode.ORDER, text)
    return ids[received - offset :]
