"""What the time after a reload keeps in mind: settings to go back to, and requests that may have
done it.
"""

from __future__ import annotations

from strata.engines.probation import PROBATION_S, Probation


def test_probation_ends_and_returns_once() -> None:
    probation: Probation[str] = Probation()
    nobody = frozenset[str]()

    def crash(now: float, *suspects: str, is_known: bool = False) -> str | None:
        return probation.on_crash("crashed", frozenset(suspects), now, is_known=is_known)

    def begin(now: float, *, can_return: bool = True) -> None:
        probation.begin("old", "new", "key", now, can_return=can_return)

    assert crash(0) is None
    begin(0)
    assert probation.is_on(PROBATION_S - 1)
    assert crash(PROBATION_S) is None, "too late"
    begin(0)
    assert crash(5) == "old"
    assert crash(6) is None
    assert "crashed" in probation.why_not("key")
    assert probation.why_not("other") == ""
    begin(10, can_return=False)
    assert probation.why_not("key") == "", "it was forced"
    assert crash(11) is None, "nothing to go back to"
    assert probation.on_crash("crashed", nobody, 12, is_known=False) is None


def test_probation_weighs_requests() -> None:
    probation: Probation[str] = Probation()

    def crash(now: float, *suspects: str, is_known: bool = False) -> str | None:
        return probation.on_crash("crashed", frozenset(suspects), now, is_known=is_known)

    probation.begin("old", "new", "key", 0, can_return=True)
    assert crash(1, "a", is_known=True) is None, "a request did it"
    assert probation.is_on(2)
    assert crash(3, "a", "b") == "old", "nobody is known"
    assert probation.on_convicted("c", "old", 4) is None, "another crash's"
    assert probation.why_not("key")
    assert probation.on_convicted("b", "old", 5) == "new"
    assert probation.why_not("key") == ""
    assert probation.on_convicted("b", "old", 5) is None, "once"
    assert probation.is_on(6), "as after a reload"
    assert crash(7) == "old"
