"""The bounds of resuming: what is given up, when, and with which words."""

from __future__ import annotations

from strata.engines.port import EngineLost
from strata.serving.admission import Closure, SchedulerLimits
from strata.serving.effects import Deliver, Effect, Send
from strata.serving.journal import Journal
from strata.serving.poison import RECORDS_MAX, TRIAL_TOKENS, Quarantine
from strata.serving.recorder import NullRecorder
from strata.serving.request import Event, Failed, Paused
from strata.serving.scheduler import Scheduler
from strata_protocol.messages import Credit, ErrorKind, Resume, Submit, Tokens, TokensItem

from tests.supervisor.test_scheduler import facts, killed, scheduler, spec


def begin(s: Scheduler, count: int = 1, tokens: int = 3) -> list[int]:
    """Requests that have `tokens` tokens each."""
    rids = [s.submit(spec(4, token=n), 0)[0] for n in range(count)]
    items = [TokensItem(rid=rid, offset=0, ids=list(range(tokens))) for rid in rids]
    s.on_tokens(Tokens(step=1, items=items), 0)
    return rids


def events(effects: list[Effect]) -> list[tuple[int, Event]]:
    return [(e.rid, e.event) for e in effects if isinstance(e, Deliver)]


def messages(effects: list[Effect]) -> list[object]:
    return [e.message for e in effects if isinstance(e, Send)]


def test_the_third_engine_that_dies_ends_the_request() -> None:
    s = scheduler()
    s.on_ready(facts(), 0)
    (rid,) = begin(s)
    for _ in range(2):
        assert events(s.on_lost(killed(), 1)) == [
            (rid, Paused("the engine restarts, the request goes on"))
        ]
        assert isinstance(messages(s.on_ready(facts(), 2))[0], Resume)
    ((_, failed),) = events(s.on_lost(killed("it died again"), 3))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.code) == (ErrorKind.INTERNAL, "engine_restarted")
    assert failed.text == "the engine ended 3 times with this request: it died again"
    assert s.recovery.journal.bytes == 0


def test_the_end_that_leads_to_a_lower_rung_does_not_count_once() -> None:
    s = scheduler()
    s.on_ready(facts(), 0)
    (rid,) = begin(s)
    paused = [(rid, Paused("the engine restarts, the request goes on"))]
    for is_lower in (False, False, True):  # three of one signature, the third steps down
        assert events(s.on_lost(EngineLost("it died", (rid,), is_lower=is_lower), 1)) == paused
        assert isinstance(messages(s.on_ready(facts(), 2))[0], Resume)
        # Passes its trial, so that it is not convicted; a lower rung forgets by itself.
        records = list(s.recovery.quarantine._records)
        assert len(records) == (0 if is_lower else 1)
        for record in records:
            s.recovery.quarantine.on_cleared(record)
    ((_, failed),) = events(s.on_lost(EngineLost("it died", (rid,), is_lower=True), 3))
    assert isinstance(failed, Failed)
    assert failed.code == "engine_restarted"


def test_eight_streams_survive_the_crash_that_leads_down() -> None:
    """Their resumes are used up at the very crash that ends the cause."""
    s = scheduler()
    s.on_ready(facts(batch=8), 0)
    rids = begin(s, 8)
    for is_lower in (False, False, True):
        lost = EngineLost("it crashed", is_external=True, is_lower=is_lower)
        paused = [rid for rid, event in events(s.on_lost(lost, 1)) if isinstance(event, Paused)]
        assert paused == rids
        s.on_ready(facts(batch=8), 2)
    ended = events(s.on_lost(killed(), 3))
    assert [(rid, type(event)) for rid, event in ended] == [(rid, Failed) for rid in rids]


def test_the_largest_record_is_given_up_first() -> None:
    journal = Journal(200)
    journal.append(1, 12, range(5))
    journal.append(2, 2, range(5))
    assert journal.bytes == 96 + 20 + 16 + 20
    journal.append(2, 2, range(17))
    assert journal.generated(1) is None
    assert journal.generated(2) == [*range(5), *range(17)]
    assert (journal.bytes, journal.overflows) == (16 + 88, 1)
    journal.append(1, 12, [7])  # stays given up
    assert journal.generated(1) is None
    journal.close(1)
    journal.close(2)
    assert (journal.bytes, journal.generated(1)) == (0, [])


def test_what_did_not_fit_the_journal_says_so_when_it_matters() -> None:
    limits = SchedulerLimits(10, 0, 0, journal_bytes=60)
    s = Scheduler(limits, NullRecorder(), lambda: 0.5)
    s.on_ready(facts(batch=2), 0)
    first, second = begin(s, 2)
    ended = dict(events(s.on_lost(killed(), 1)))
    failed = ended[first]
    assert isinstance(failed, Failed)
    assert (failed.code, "journal_bytes = 60" in failed.text) == ("engine_restarted", True)
    assert isinstance(ended[second], Paused)


def test_a_smaller_context_ends_what_has_outgrown_it_only() -> None:
    s = scheduler()
    s.on_ready(facts(batch=2), 0)
    short, long = begin(s, 2)
    s.on_tokens(Tokens(step=2, items=[TokensItem(rid=long, offset=3, ids=[1] * 40)]), 0)
    s.on_lost(killed(), 1)
    effects = s.on_ready(facts(batch=2, max_context=20), 2)
    ((rid, failed),) = events(effects)
    assert isinstance(failed, Failed)
    assert (rid, failed.code) == (long, "context_length_exceeded")
    assert "47 tokens" in failed.text
    assert "20 tokens" in failed.text
    (resumed,) = messages(effects)
    assert isinstance(resumed, Resume)
    assert (resumed.rid, resumed.ids, resumed.generated) == (short, [0] * 4, [0, 1, 2])


def test_hold_is_waited_out_by_what_had_begun_up_to_the_bound() -> None:
    s = scheduler(park_s=30)
    s.on_ready(facts(), 0)
    (begun,) = begin(s)
    (fresh,) = [s.submit(spec(), 0)[0]]
    s.on_lost(killed(), 1)
    closure = Closure("engine_hold", "held", 5)
    assert [rid for rid, _ in events(s.on_closed(closure, 2))] == [fresh]
    assert s.on_closed(closure, 20) == []  # the bound runs from the first time
    assert s.on_tick(31.9) == []
    ((rid, failed),) = events(s.on_tick(32))
    assert (rid, failed) == (begun, closure.failed())


def test_nobody_waits_for_a_start_that_comes_after_the_bound() -> None:
    s = scheduler(park_s=330)
    s.on_ready(facts(), 0)
    (begun,) = begin(s)
    s.on_lost(killed(), 1)
    assert s.on_closed(Closure("engine_hold", "held", 300), 2) == []
    later = Closure("engine_hold", "held again", 600)
    assert events(s.on_closed(later, 302)) == [(begun, later.failed())]


def test_a_refusal_is_waited_out_by_what_had_begun_as_nobody_knows_how_long_it_lasts() -> None:
    s = scheduler(park_s=30)
    s.on_ready(facts(), 0)
    (begun,) = begin(s)
    s.on_lost(killed(), 1)
    closure = Closure("engine_refused", "no kernel", None)
    assert s.on_closed(closure, 2) == []
    assert closure.error().retry_after_s is None
    assert events(s.on_tick(32)) == [(begun, closure.failed())]


def test_deadline_and_cancel_work_while_parked() -> None:
    s = scheduler(timeout_s=10)
    s.on_ready(facts(batch=2), 0)
    late, cancelled = begin(s, 2)
    s.on_lost(killed(), 1)
    assert s.parked == 2
    assert [rid for rid, _ in events(s.cancel(cancelled, 2))] == [cancelled]
    ((rid, failed),) = events(s.on_tick(10))
    assert isinstance(failed, Failed)
    assert (rid, failed.code) == (late, "deadline_exceeded")
    assert s.on_ready(facts(), 11) == []


def test_suspects_are_tried_alone_and_then_all_go_on() -> None:
    s = scheduler()
    s.on_ready(facts(batch=3), 0)
    rids = begin(s, 3)
    (waiting,) = [s.submit(spec(), 0)[0]]
    s.on_lost(EngineLost("it crashed", tuple(rids[:2])), 1)
    for number, rid in enumerate(rids[:2]):
        effects = (
            s.on_ready(facts(batch=3), 2)
            if number == 0
            else s.on_tokens(
                Tokens(
                    step=9,
                    items=[TokensItem(rid=rids[0], offset=3, ids=list(range(TRIAL_TOKENS)))],
                ),
                3,
            )
        )
        (tried,) = messages(effects)
        assert isinstance(tried, Resume)
        assert (tried.rid, tried.credit) == (rid, 3 + TRIAL_TOKENS)
    item = TokensItem(rid=rids[1], offset=3, ids=list(range(TRIAL_TOKENS)))
    sent = messages(s.on_tokens(Tokens(step=20, items=[item]), 4))
    assert [type(m) for m in sent] == [Credit, Credit, Resume, Submit]
    assert [m.rid for m in sent if isinstance(m, Resume | Submit)] == [rids[2], waiting]
    assert s.recovery.quarantine.count(5) == 0


def test_quarantine_is_bounded_and_expires() -> None:
    table = Quarantine()
    for number in range(RECORDS_MAX + 5):
        table.on_crash({number.to_bytes(4)}, 0, is_alone=True)
    assert table.on_crash({(0).to_bytes(4)}, 1, is_alone=True) is None  # was forgotten
    last = (RECORDS_MAX + 4).to_bytes(4)
    assert table.on_crash({last}, 2, is_alone=False) is None  # among others it convicts nobody
    assert table.on_crash({last}, 3, is_alone=True) == last
    assert table.count(4) == 1
    assert table.count(4 + 24 * 3600) == 0
