"""Which mode serves a request: its needs against the features of the modes that run. Pure.

A request is served by a mode that has all it needs, routed to another one that has, or refused
with every need that is in the way; nothing it asked for is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec
from strata_protocol.features import FIELDS, Feature, asked_fields, known
from strata_protocol.messages import ModePlan, SamplingParams, ServingMode

MODE_UNSUPPORTED = "mode_unsupported"


@dataclass(frozen=True, slots=True)
class Need:
    feature: Feature
    asked_by: str  # what in the request asks for it: "response_format json_schema"
    param: str = ""  # the body's field, where it has another name


@dataclass(frozen=True, slots=True)
class Mode:
    """One way in which the running engine serves a request beside others."""

    name: str  # "batch 4, no drafts"
    features: AbstractSet[Feature]


@dataclass(frozen=True, slots=True)
class Misfit:
    """No mode serves the request."""

    text: str  # one sentence for people
    param: str  # what asks for the first need that is missing


# Fields of SamplingParams that a body has under another name.
_BODY_NAMES = {"choice": "n", "prompt_logprobs": "echo"}


def needs_of(params: SamplingParams) -> tuple[Need, ...]:
    """What the parameters of one sequence need."""
    fields = {f: _BODY_NAMES.get(name, name) for f, name in asked_fields(params).items()}
    return tuple(Need(feature, name, name) for feature, name in fields.items())


def unreachable(needs: Sequence[Need]) -> Misfit | None:
    """The refusal of what cannot be asked of any engine, or None; known before one is ready."""
    missing = [need for need in needs if need.feature not in FIELDS]
    return _misfit(missing, "which no mode of this server has") if missing else None


def misfit(needs: Sequence[Need], modes: Sequence[Mode]) -> Misfit | None:
    """Why none of the running `modes` serves the needs, or None; before any runs (empty), why no
    mode ever will."""
    if not modes:
        return unreachable(needs)
    placed = place(needs, modes)
    return placed if isinstance(placed, Misfit) else None


def serving_modes(plan: ModePlan, stated: Sequence[ServingMode]) -> tuple[Mode, ...]:
    """The modes of an engine that runs `plan` and has `stated` these, in order of preference. One
    that has stated none decodes greedily."""
    return tuple(
        Mode(mode_name(msgspec.structs.replace(plan, spec=mode.drafts)), known(mode.features))
        for mode in stated or [ServingMode(drafts=plan.spec)]
    )


def place(needs: Sequence[Need], modes: Sequence[Mode]) -> Mode | Misfit:
    """The first of `modes` (in order of preference, at least one) that has every need.

    Where there is none, the answer names the needs that the best of them lacks: the one with the
    fewest missing, the earlier of two.
    """
    if not modes:
        raise ValueError("place() needs the modes that run")
    lacks = [[need for need in needs if need.feature not in mode.features] for mode in modes]
    best = min(range(len(modes)), key=lambda i: len(lacks[i]))
    if not lacks[best]:
        return modes[best]
    nowhere = [need for need in lacks[best] if all(need in lack for lack in lacks)]
    if len(modes) == 1:
        return _misfit(nowhere, f"which the running mode ({modes[0].name}) does not have")
    names = "; ".join(mode.name for mode in modes)
    if nowhere:
        return _misfit(nowhere, f"which none of the running modes ({names}) has")
    texts = [
        f"the mode ({mode.name}) lacks {_list([need.feature.value for need in lack])}"
        for mode, lack in zip(modes, lacks, strict=True)
    ]
    return Misfit(
        "no running mode has all that the request needs: " + "; ".join(texts),
        lacks[best][0].param,
    )


def mode_name(plan: ModePlan) -> str:
    """ "batch 4, no drafts"; "batch 4, up to 3 drafts"; "batch 4, up to 3 drafts while alone"."""
    if not plan.spec:
        return f"batch {plan.batch}, no drafts"
    alone = "" if plan.batch_mtp or plan.batch == 1 else " while alone"
    drafts = "1 draft" if plan.spec == 1 else f"{plan.spec} drafts"
    return f"batch {plan.batch}, up to {drafts}{alone}"


def _misfit(missing: Sequence[Need], who: str) -> Misfit:
    asked = _list([f"{need.asked_by} needs {need.feature.value}" for need in missing])
    return Misfit(f"{asked}, {who}", missing[0].param)


def _list(items: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
