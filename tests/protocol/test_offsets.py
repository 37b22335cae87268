from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strata_protocol import messages as m
from strata_protocol.errors import FaultCode, ProtocolFault, SendError
from strata_protocol.framing import encode_frame
from strata_protocol.streams import IDS_PER_FRAME, new_tokens, split_prompt

PARAMS = m.SamplingParams(stop_ids=[1, 2, 3])


def rejoined(parts: list[m.Submit | m.Resume | m.Prompt]) -> list[int]:
    ids: list[int] = []
    for part in parts:
        if isinstance(part, m.Prompt):
            assert part.offset == len(ids)
        ids += part.ids
    return ids


def test_a_short_prompt_is_one_message() -> None:
    submit = m.Submit(rid=1, prompt_tokens=3, ids=[1, 2, 3], params=PARAMS)
    assert list(split_prompt(submit, m.Limits())) == [submit]


@given(
    st.integers(0, 200_000),
    st.sampled_from([4096, 65_536, 1024 * 1024]),
    st.integers(0, 300) | st.none(),
)
def test_every_part_fits_and_nothing_is_lost(
    count: int, data_bytes: int, generated: int | None
) -> None:
    limits = m.Limits(control_bytes=4096, data_bytes=data_bytes)
    ids = [0x7FFF_FFFF - i for i in range(count)]  # five bytes each, the longest there is
    whole: m.Submit | m.Resume
    if generated is None:
        whole = m.Submit(rid=2**64 - 1, prompt_tokens=count, ids=ids, params=PARAMS)
    else:
        whole = m.Resume(
            rid=2**64 - 1,
            prompt_tokens=count,
            ids=ids,
            generated=ids[:generated],
            params=PARAMS,
        )
    parts = list(split_prompt(whole, limits))
    assert rejoined(parts) == ids
    assert all(len(part.ids) <= IDS_PER_FRAME for part in parts)
    assert all(isinstance(part, m.Prompt) for part in parts[1:])
    assert parts[0] == msgspec.structs.replace(whole, ids=parts[0].ids)
    for part in parts:
        encode_frame(part, limits)  # raises SendError where it does not fit


def test_what_cannot_be_cut_is_refused() -> None:
    resume = m.Resume(
        rid=1, prompt_tokens=1, ids=[1], generated=[70_000] * 2000, params=m.SamplingParams()
    )
    with pytest.raises(SendError, match="2000 generated ids exceed 8192 bytes"):
        list(split_prompt(resume, m.Limits(control_bytes=4096, data_bytes=8192)))


@given(st.integers(0, 50), st.integers(0, 50), st.lists(st.integers(0, 9), max_size=50))
def test_duplicates_are_dropped_by_offset(received: int, offset: int, ids: list[int]) -> None:
    if offset > received:
        with pytest.raises(ProtocolFault, match=f"token {offset}, but only {received}") as caught:
            new_tokens(received, offset, ids)
        assert caught.value.code is FaultCode.ORDER
        return
    expected = [t for i, t in enumerate(ids) if offset + i >= received]
    assert list(new_tokens(received, offset, ids)) == expected
