"""The axes of a configuration: what was asked on each, how much less a plan gives, and the words.

An axis is a field of `WantedModes`. Here stands, once for each, how its values compare; choice,
ladder and rows are loops over this table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from strata_protocol.messages import ModePlan, WantedModes

from strata.config import Config

MODE_KEYS = frozenset(f.name for f in msgspec.structs.fields(WantedModes))

Value = int | float | str | bool

# Most exact first. A value left of another loses nothing that the other keeps.
EXACTNESS = ("f32", "f16", "bf16", "int8", "q4_0")

OFF_LOSS = 1e6  # a feature that is gone, against one that is smaller
INEXACT_LOSS = 1e6  # a type that is less exact than the one asked for


class Group(enum.IntEnum):
    """Axes that are given up together, cheapest first."""

    DRAFTS = 0
    BATCH = 1
    ACTIVATIONS = 2
    KV = 3
    PREFILL = 4
    CONTEXT = 5
    PREFIX_CACHE = 6
    MEMORY = 7
    THREADS = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """`auto`: the wanted value that leaves the choice to the engine; None: there is none.
    `richness` orders a plan's values: 0 is the plainest; the ladder goes down on it."""

    name: str
    group: Group
    auto: Value | None
    loss: Callable[[Value, Value], float]  # (asked, given) -> 0 where as asked or more
    richness: Callable[[Value], float]
    is_derived: bool = False  # follows from other axes and memory where it is left on auto
    is_size: bool = False  # may grow where another axis shrinks, for memory's sake
    is_feature: bool = False  # off and 0 mean that it does not run at all
    zero: str = "0"  # how 0 of a plan is shown

    def shown(self, value: Value) -> str:
        """A value of a plan, for people and status."""
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, float):
            return f"{value:g}"
        return self.zero if value == 0 else str(value)


def _fewer(asked: Value, given: Value) -> float:
    return max(float(asked) - float(given), 0.0)


def _other(asked: Value, given: Value) -> float:
    """Anything but the asked value is not as asked; off is the least of it."""
    return 0.0 if asked == given else OFF_LOSS if given in ("off", False) else 1.0


def _other_type(asked: Value, given: Value) -> float:
    steps = _exactness(given) - _exactness(asked)
    return INEXACT_LOSS + steps if steps > 0 else float(-steps)


def _exactness(value: Value) -> int:
    name = str(value)
    return EXACTNESS.index(name) if name in EXACTNESS else len(EXACTNESS)


def _experts(value: Value) -> float:
    return float(value) if str(value).isdigit() else 0.0


def _number(value: Value) -> float:
    return float(value)


def _is_on(value: Value) -> float:
    return float(value not in ("off", False))


def _numeric(
    name: str,
    group: Group,
    auto: Value | None = 0,
    *,
    is_derived: bool = False,
    is_size: bool = False,
    is_feature: bool = False,
) -> Axis:
    return Axis(
        name, group, auto, _fewer, _number,
        is_derived=is_derived, is_size=is_size, is_feature=is_feature,
    )  # fmt: skip


def _switch(name: str, group: Group, auto: Value | None = None) -> Axis:
    return Axis(name, group, auto, _other, _is_on, is_feature=True)


# In the order in which people read them.
AXES: tuple[Axis, ...] = (
    _numeric("batch", Group.BATCH),
    _numeric("max_context", Group.CONTEXT, is_derived=True, is_size=True),
    Axis("kv", Group.KV, "auto", _other_type, _exactness),
    Axis("activations", Group.ACTIVATIONS, "auto", _other_type, _exactness),
    _numeric("prefill", Group.PREFILL),
    Axis("mtp", Group.DRAFTS, "auto", _other, _is_on, is_feature=True),
    _numeric("spec", Group.DRAFTS, is_feature=True),
    Axis("spec_min_p", Group.DRAFTS, None, _other, lambda _: 0.0),
    _switch("batch_mtp", Group.DRAFTS, "auto"),
    Axis("mtp_hidden_norm", Group.DRAFTS, "auto", _other, lambda _: 0.0),
    _numeric("threads", Group.THREADS, is_derived=True, is_size=True),
    _numeric("kv_tokens", Group.CONTEXT, is_derived=True, is_size=True),
    _switch("prefix_cache", Group.PREFIX_CACHE),
    Axis("mmap", Group.MEMORY, None, _other, lambda _: 0.0),
    _switch("mlock", Group.MEMORY),
    Axis(
        "expert_cache", Group.MEMORY, "auto",
        lambda a, g: _other(a, g) and 1.0 + _fewer(_experts(a), _experts(g)),
        _experts, is_feature=True,
    ),
    Axis(
        "kv_resident", Group.MEMORY, None, _other,
        lambda value: float(value != 0), zero="all",
    ),
)  # fmt: skip
AXIS = {axis.name: axis for axis in AXES}


def wanted_modes(config: Config) -> WantedModes:
    """The modes of the configuration, in the protocol's terms: keys of the same name."""
    return msgspec.convert(config, WantedModes, from_attributes=True)


def given(axis: Axis, plan: ModePlan) -> Value:
    """A plan's value on an axis."""
    value: Value = getattr(plan, axis.name)
    return value


def is_auto(axis: Axis, want: WantedModes) -> bool:
    return axis.auto is not None and getattr(want, axis.name) == axis.auto


def asked(axis: Axis, want: WantedModes, first: ModePlan) -> Value | None:
    """What was asked on an axis, in a plan's terms; None where any value will do.

    `first` is the configuration as asked, in which the engine has resolved what was left to it.
    """
    if is_auto(axis, want):
        return None if axis.is_derived else given(axis, first)
    value: Value = getattr(want, axis.name)
    if axis.name == "batch_mtp":
        return value == "on"
    return value


def requested_text(axis: Axis, want: WantedModes) -> str:
    """What the operator wrote: "auto", "8", "on"."""
    if is_auto(axis, want):
        return "auto"
    return axis.shown(getattr(want, axis.name))


def loss(axis: Axis, target: Value | None, value: Value) -> float:
    """How much less than asked `value` is; 0 where nothing is given up."""
    return 0.0 if target is None else axis.loss(target, value)


def is_less_exact(axis: Axis, target: Value | None, value: Value) -> bool:
    """Whether a type is less exact than the one asked for."""
    return (
        axis.group in (Group.KV, Group.ACTIVATIONS)
        and target is not None
        and _exactness(value) > _exactness(target)
    )
