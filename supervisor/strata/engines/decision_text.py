"""What the restart policy decided, as sentences of the decision log. Apart from the log itself,
which commands read that have no time to import the policy.
"""

from __future__ import annotations

from strata.engines.restart import Decision, Hold, StartAfter, StayDown, Step, Stopped


def step_sentence(step: Step) -> str:
    """A step down."""
    text = f"The engine goes down from rung {step.old} to {step.new}: {step.why}."
    if step.is_pinned:
        text += " It stays there until the engine's build, the model file or its modes change."
    return text


def decision_sentence(decision: Decision) -> tuple[str, str]:
    """Code and sentence of what follows an exit, a step aside."""
    match decision:
        case StartAfter(delay_s) if delay_s == 0:
            return "restart.at_once", "The engine starts again at once."
        case StartAfter(delay_s):
            return "restart.delayed", f"The engine starts again in {delay_s:.1f} s."
        case Hold(delay_s, reason):
            text = f"The engine is held: {reason}; the next start is in {delay_s:.0f} s."
            return "restart.held", text
        case StayDown():
            text = "The engine stays down until its build or the model file changes: it refuses."
            return "restart.refused", text
        case Stopped():
            return "restart.stopped", "The engine is not started again: the service ends."
