"""The codes of the decision log: what the supervisor decided about the engine. Part of the list in
`reasons.py`."""

from __future__ import annotations

from typing import Final

from strata_protocol.reason_code import ReasonCode

DECISIONS: Final[tuple[ReasonCode, ...]] = (
    ReasonCode("engine.ready", "An engine is ready.", "Nothing."),
    ReasonCode(
        "hang.stopped",
        "The engine is stopped by a signal or a debugger; it is left alone.",
        "Let it go on (SIGCONT), or end it.",
    ),
    ReasonCode("hang.continued", "An engine that was stopped runs again.", "Nothing."),
    ReasonCode(
        "hang.in_kernel",
        "The engine waits in the kernel, for a disk or a device; no second one is started.",
        "Look at disks, network file systems and devices in the system's log.",
    ),
    ReasonCode(
        "hang.pressure",
        "The machine is short of memory, so an engine that stands still gets twice the time.",
        "Free memory, or give the engine less.",
    ),
    ReasonCode(
        "hang.ended",
        "The engine stood still for too long and is ended.",
        "See `crashes` for what it was doing.",
    ),
    ReasonCode(
        "hang.went_on",
        "An engine that seemed to hang moved again when it was asked.",
        "Nothing; if it happens often, look for what stops it.",
    ),
    ReasonCode("restart.at_once", "The engine starts again at once.", "Nothing."),
    ReasonCode(
        "restart.delayed",
        "The engine starts again after a delay, which grows with each crash.",
        "See `crashes`.",
    ),
    ReasonCode(
        "restart.held",
        "The engine has ended too often and is started again only now and then.",
        "See `crashes`; ending and starting the service tries at once.",
    ),
    ReasonCode(
        "restart.refused",
        "The engine refuses the model or the configuration; no start changes that.",
        "See the reasons in `status`.",
    ),
    ReasonCode(
        "restart.stopped", "The service ends, and the engine is not started again.", "Nothing."
    ),
    ReasonCode(
        "restart.stepped_down",
        "The service went down its ladder of modes.",
        "See `crashes`; it goes up again by itself.",
    ),
    ReasonCode(
        "restart.stepped_up", "The service tries a higher rung of its ladder of modes.", "Nothing."
    ),
    ReasonCode(
        "restart.makes_room",
        "An idle engine is ended, so that the next one can try a higher rung.",
        "Nothing.",
    ),
    ReasonCode(
        "restart.forgotten",
        "Build, model file or modes have changed, so former crashes no longer count.",
        "Nothing.",
    ),
    ReasonCode(
        "service.started",
        "The supervisor was started.",
        "Nothing.",
    ),
    ReasonCode(
        "service.draining",
        "The service was told to end; accepted requests finish.",
        "Nothing; a second signal ends it at once.",
    ),
    ReasonCode(
        "poison.refused",
        "A request that ended engines is refused from now on.",
        "See `crashes` for its hash and lengths; change the request.",
    ),
    ReasonCode(
        "poison.shape_apart",
        "Several requests of one kind ended engines; such requests run alone for an hour.",
        "See `crashes` for what they have in common.",
    ),
    ReasonCode(
        "poison.shape_refused",
        "Requests of one kind are refused for an hour: two of them ended engines while alone.",
        "See `crashes` for what they have in common.",
    ),
    ReasonCode("poison.shape_free", "Requests of one kind run with others again.", "Nothing."),
    ReasonCode(
        "mode.acquitted",
        "A mode is offered again: a request is convicted of the crashes it was taken out for.",
        "Nothing; see `crashes` for the request's hash and lengths.",
    ),
    ReasonCode(
        "reload.rolled_back",
        "The new engine crashed soon after it had taken over; the former settings came back.",
        "See `crashes`; correct what was changed, or reload with --force.",
    ),
    ReasonCode(
        "reload.kept",
        "The new engine crashed with a request that had ended an engine before; it is not taken"
        " back for that.",
        "See `crashes`.",
    ),
    ReasonCode(
        "reload.restored",
        "What was taken back comes forward again: a request was convicted of that very crash.",
        "Nothing.",
    ),
    ReasonCode("reload.started", "Another engine is started to take over.", "Nothing."),
    ReasonCode("reload.done", "Another engine has taken over.", "Nothing."),
    ReasonCode(
        "reload.failed",
        "A new engine could not take over; one of the former settings serves.",
        "See the sentence; correct the settings and reload again.",
    ),
)
