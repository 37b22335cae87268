"""Hypothesis strategies for every message, derived from the Structs themselves."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import msgspec.inspect as mi
from hypothesis import strategies as st
from strata_protocol import messages as m


def _field(kind: mi.Type) -> st.SearchStrategy[Any]:
    match kind:
        case mi.IntType(ge=low, le=high):
            assert low is not None
            most = 2**64 - 1 if high is None else high
            edges = [v for v in (low, most, 0, 31, 127, 128, 255, 256, 65535, 65536) if v <= most]
            return st.integers(low, most) | st.sampled_from(edges)
        case mi.FloatType():
            return st.floats()
        case mi.StrType():
            return st.text(max_size=40) | st.integers(31, 300).map("é".__mul__)
        case mi.BoolType():
            return st.booleans()
        case mi.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case mi.ListType(item_type=item):
            return st.lists(_field(item), max_size=4) | st.lists(
                _field(item), min_size=15, max_size=17
            )
        case mi.UnionType(types=(inner, mi.NoneType())):
            return st.none() | _field(inner)
        case mi.StructType(cls=cls):
            return struct_of(cls)
    raise AssertionError(f"no strategy for {kind}")


def struct_of(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    info = mi.type_info(cls)
    assert isinstance(info, mi.StructType)
    return st.builds(cls, **{f.name: _field(f.type) for f in info.fields})


HANDSHAKE_TO_ENGINE = typing.get_args(m.TO_ENGINE)
RUN_TO_ENGINE = typing.get_args(m.TO_ENGINE_RUN)
HANDSHAKE_TO_SUPERVISOR = typing.get_args(m.TO_SUPERVISOR)
RUN_TO_SUPERVISOR = typing.get_args(m.TO_SUPERVISOR_RUN)
TO_ENGINE = HANDSHAKE_TO_ENGINE + RUN_TO_ENGINE
TO_SUPERVISOR = HANDSHAKE_TO_SUPERVISOR + RUN_TO_SUPERVISOR
ALL = TO_ENGINE + TO_SUPERVISOR

to_engine = st.one_of([struct_of(cls) for cls in TO_ENGINE])
to_supervisor = st.one_of([struct_of(cls) for cls in TO_SUPERVISOR])

# MessagePack values that no schema describes.
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def tree(value: Any) -> Any:
    """A message as (type, fields) all the way down, so that NaN can be compared by repr."""
    if isinstance(value, msgspec.Struct):
        return (type(value).__name__, [tree(getattr(value, f)) for f in value.__struct_fields__])
    if isinstance(value, list):
        return [tree(item) for item in value]
    return repr(value)
