"""Which mode an engine's end implicates. Pure: exit class, beacon and plan in, an entry of OFFER's
quarantine list out.

Only ends of the engine's own doing implicate anything: a fault, an assertion, `exit()` or a hang
while a mode was being proven or a step was computed.
"""

from __future__ import annotations

from dataclasses import dataclass

from strata_protocol.beacon import BeaconView
from strata_protocol.exit_codes import ExitCode
from strata_protocol.messages import ModePlan

from strata.engines.exits import STEP_PHASES, ExitClass

_OWN_DOING = frozenset({ExitClass.SIGNAL, ExitClass.HANG, ExitClass.EXIT})


@dataclass(frozen=True, slots=True)
class Blame:
    """`is_certain` False: out only when the same signature comes a second time."""

    mode: str  # "batch", "prefill", "max_context=8192", "kv=f16", "activations=int8", "mtp", ...
    is_certain: bool = True


def blame(
    exit_class: ExitClass, status: int | None, view: BeaconView | None, plan: ModePlan | None
) -> Blame | None:
    """The mode that ended the engine, or None where nothing says so.

    `status`: exit status, None after a signal. `plan`: what was being proven or ran.
    """
    if view is None or plan is None or exit_class not in _OWN_DOING:
        return None
    if view.crash is not None and not _computes(view.crash.thread):
        return None
    if is_proving(view):
        mode = _proven(view, plan)
        return None if mode is None else Blame(mode)
    if exit_class is ExitClass.SIGNAL and view.crash is None:
        return None  # no word of its own: whoever sent the signal is not known
    if status == ExitCode.DEVICE_LOST or not is_in_step(view):
        return None
    has_drafts = drafts(view, plan)
    if view.sequences > 1:
        return Blame("batch_mtp" if has_drafts else "batch")
    if has_drafts:
        return Blame("mtp")
    return Blame("prefill", is_certain=False) if view.rows > 1 else None


def axis_of(exited_in: BeaconView | None, guilty: Blame | None, plan: ModePlan | None) -> str:
    """The axis on which a lower rung is likelier to hold; empty where nothing says so. Weaker than
    blame: a lost device implicates no mode, but if it was lost in a step of many sequences, a step
    of one is the better try, and behind a kernel's crash another type for that kernel is."""
    if guilty is not None:
        return guilty.mode.partition("=")[0]
    if exited_in is None or plan is None or not is_in_step(exited_in):
        return ""
    if drafts(exited_in, plan):
        return "batch_mtp" if exited_in.sequences > 1 else "mtp"
    if exited_in.sequences > 1:
        return "batch"
    return (_plain(exited_in, plan) or "").partition("=")[0]


def is_proving(view: BeaconView) -> bool:
    """Whether a mode was being proven. Last words leave the mode in place."""
    return bool(view.mode) and view.phase in ("probe", "dying")


def is_in_step(view: BeaconView) -> bool:
    """Whether a step was under way. After last words the kernel that was left says so."""
    return view.phase in STEP_PHASES or (view.phase == "dying" and bool(view.kernel))


def drafts(view: BeaconView, plan: ModePlan) -> bool:
    """Whether the step made drafts or verified them: only then a decoding sequence has more rows
    than one."""
    if plan.spec == 0:
        return False
    return view.phase == "draft" or (view.phase == "decode" and view.rows > view.sequences)


def _computes(thread: str) -> bool:
    """Whether a thread computes: reader, writer and signal thread serve every mode alike."""
    return not thread or thread == "compute" or thread.startswith("worker")


def _proven(view: BeaconView, plan: ModePlan) -> str | None:
    match view.mode.partition("="):
        case ["batch" | "prefill" | "batch_mtp" | "max_context", _, _]:
            return view.mode
        case ["mtp", _, _]:
            return "batch_mtp" if view.sequences > 1 else "mtp"
        case _:
            return _plain(view, plan)


def _plain(view: BeaconView, plan: ModePlan) -> str | None:
    """The plain path has no mode of its own; its kernel says which of its types it served."""
    kernel = view.crash.kernel if view.crash is not None and view.crash.kernel else view.kernel
    family = kernel.lower()
    if ("attention" in family or "kv_append" in family) and plan.kv != "f32":
        return f"kv={plan.kv}"
    if ("matmul" in family or "quantize" in family) and plan.activations == "int8":
        return "activations=int8"
    return "prefill" if view.rows > 1 else None
