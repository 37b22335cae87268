"""From when on an engine counts as good: it has been ready for so long, and has served so many."""

GOOD_READY_S = 600.0
GOOD_SERVED = 20
