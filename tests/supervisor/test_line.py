"""The order of the waiting line: fair between keys, by priority and age within one, batch last."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from strata.serving.fair_queue import AGEING_S, AGEING_TOKENS_PER_S, KEYS_REMEMBERED, FairQueue
from strata.serving.line import BATCH_EVERY, Line


class Waiter:
    def __init__(
        self, key: str, prompt_tokens: int = 10, priority: int = 0, arrived_s: float = 0
    ) -> None:
        self.key = key
        self.prompt_tokens = prompt_tokens
        self.priority = priority
        self.arrived_s = arrived_s


def pops(line: Line[Waiter], count: int) -> list[Waiter]:
    return [entry for entry in (line.pop() for _ in range(count)) if entry is not None]


def drain_order(line: Line[Waiter], count: int) -> list[str]:
    return [entry.key for entry in pops(line, count)]


def line_of(*waiters: Waiter) -> Line[Waiter]:
    line: Line[Waiter] = Line()
    for waiter in waiters:
        line.push(waiter)
    return line


def test_keys_share_fairly_whoever_sends_more() -> None:
    line = line_of(*(Waiter("greedy") for _ in range(6)), *(Waiter("modest") for _ in range(2)))
    assert drain_order(line, 8)[:4].count("modest") == 2


def test_long_prompts_and_long_answers_count() -> None:
    line = line_of(
        *(Waiter("long", 100) for _ in range(4)), *(Waiter("short", 10) for _ in range(4))
    )
    assert drain_order(line, 8)[:5].count("short") == 4
    talker = Waiter("a")
    line.push(talker)
    line.push(Waiter("b"))
    line.on_served(talker, 10_000)
    assert drain_order(line, 2) == ["b", "a"]


def test_absence_earns_no_credit() -> None:
    line = line_of(*(Waiter("steady") for _ in range(50)))
    drain_order(line, 50)
    for _ in range(4):
        line.push(Waiter("steady"))
        line.push(Waiter("newcomer"))
    assert drain_order(line, 8)[:4].count("newcomer") <= 3


def test_a_newcomer_gets_no_credit_for_answers_it_did_not_see() -> None:
    talker = Waiter("talker")
    line = line_of(talker)
    assert pops(line, 1) == [talker]
    line.on_served(talker, 100_000)  # alone, so nobody was kept waiting
    for _ in range(4):
        line.push(Waiter("newcomer"))
        line.push(Waiter("talker"))
    assert drain_order(line, 8)[:4].count("talker") >= 1


def test_priority_orders_a_keys_own_requests_only() -> None:
    urgent, plain = Waiter("a", priority=-5, arrived_s=9), Waiter("a", arrived_s=1)
    other = Waiter("b", arrived_s=2)
    line = line_of(plain, other, urgent)
    line.on_served(urgent, 100)
    assert pops(line, 3) == [other, urgent, plain]


def test_batch_work_waits_for_everyone_but_gets_its_turn() -> None:
    batch = [Waiter("a", priority=1) for _ in range(3)]
    line = line_of(*batch, *(Waiter("b") for _ in range(3 * BATCH_EVERY)))
    order = [w.priority > 0 for w in pops(line, 2 * BATCH_EVERY)]
    assert order == ([False] * (BATCH_EVERY - 1) + [True]) * 2
    alone = line_of(Waiter("a", priority=7))
    assert len(pops(alone, 1)) == 1


def test_returned_requests_go_before_all_in_their_order() -> None:
    line = line_of(Waiter("a", priority=-9), Waiter("b"))
    returned = [Waiter("c", priority=3), Waiter("c")]
    line.push_front(returned)
    late = Waiter("d")
    line.push_returned(late)
    assert pops(line, 3) == [*returned, late]
    line.push_front(returned)
    line.remove(returned[0])
    assert (line.pop(), line.count, line.tokens) == (returned[1], 2, 20)


def test_short_prompts_pass_long_ones_until_those_have_aged() -> None:
    long = Waiter("a", 1_000_000, arrived_s=0)
    soon, late = Waiter("a", 1, arrived_s=AGEING_S - 1), Waiter("a", 1, arrived_s=AGEING_S + 1)
    assert pops(line_of(long, soon, late), 3) == [soon, long, late]
    middling = Waiter("a", AGEING_TOKENS_PER_S, arrived_s=0)
    assert pops(line_of(middling, Waiter("a", 1, arrived_s=1.5)), 1) == [middling]


def test_what_is_known_of_keys_is_bounded() -> None:
    queue: FairQueue[Waiter] = FairQueue()
    for n in range(3 * KEYS_REMEMBERED):
        queue.push(Waiter(str(n)))
        queue.pop()
    assert len(queue._served) <= KEYS_REMEMBERED + 1
    assert len(queue._levels) <= 1


COSTS = st.tuples(st.integers(1, 400), st.integers(0, 400))


@settings(deadline=None)
@given(
    keys=st.integers(2, 5),
    costs=st.lists(COSTS, min_size=1, max_size=120),
    priorities=st.lists(st.integers(-3, 0), min_size=1, max_size=7),
)
def test_keys_that_keep_waiting_are_served_alike(
    keys: int, costs: list[tuple[int, int]], priorities: list[int]
) -> None:
    """Whatever the sizes: no two of them are ever further apart than one request costs."""
    line: Line[Waiter] = Line()
    answers: dict[Waiter, int] = {}
    served: Counter[str] = Counter({str(k): 0 for k in range(keys)})
    most = max(prompt + answer for prompt, answer in costs)

    def push(key: str, n: int) -> None:
        prompt, answer = costs[n % len(costs)]
        waiter = Waiter(key, prompt, priorities[n % len(priorities)], arrived_s=n)
        answers[waiter] = answer
        line.push(waiter)

    for n in range(2 * keys):
        push(str(n % keys), n)
    for n in range(4 * len(costs)):
        waiter = line.pop()
        assert waiter is not None
        served[waiter.key] += waiter.prompt_tokens + answers[waiter]
        line.on_served(waiter, answers[waiter])
        push(waiter.key, n)
        assert max(served.values()) - min(served.values()) <= most


@settings(deadline=None)
@given(
    prompts=st.lists(st.integers(1, 20_000), min_size=1, max_size=40),
    gaps=st.lists(st.floats(0, 4), min_size=40, max_size=40),
)
def test_none_is_passed_by_what_came_after_its_ageing(
    prompts: list[int], gaps: list[float]
) -> None:
    line: Line[Waiter] = Line()
    now = 0.0
    for prompt, gap in zip(prompts, gaps, strict=False):
        now += gap
        line.push(Waiter("a", prompt, arrived_s=now))
    order = pops(line, len(prompts))
    for at, waiter in enumerate(order):
        assert all(later.arrived_s >= waiter.arrived_s - AGEING_S for later in order[at:])


class LineMachine(RuleBasedStateMachine):
    """Nothing is lost, doubled or miscounted, whatever comes, goes and comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.line: Line[Waiter] = Line()
        self.waiting: list[Waiter] = []
        self.out: list[Waiter] = []

    @rule(key=st.sampled_from("abcd"), prompt=st.integers(0, 9000), priority=st.integers(-2, 2))
    def push(self, key: str, prompt: int, priority: int) -> None:
        waiter = Waiter(key, prompt, priority)
        self.line.push(waiter)
        self.waiting.append(waiter)

    @rule()
    def pop(self) -> None:
        waiter = self.line.pop()
        assert (waiter is None) == (not self.waiting)
        if waiter is not None:
            self.waiting.remove(waiter)
            self.out.append(waiter)

    @precondition(lambda self: bool(self.waiting))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.waiting))
        self.line.remove(waiter)
        self.waiting.remove(waiter)

    @precondition(lambda self: bool(self.out))
    @rule(count=st.integers(1, 3), at_front=st.booleans())
    def give_back(self, count: int, at_front: bool) -> None:
        back, self.out = self.out[:count], self.out[count:]
        if at_front:
            self.line.push_front(back)
        else:
            for waiter in back:
                self.line.push_returned(waiter)
        self.waiting += back

    @precondition(lambda self: bool(self.out))
    @rule(tokens=st.integers(1, 5000))
    def serve(self, tokens: int) -> None:
        self.line.on_served(self.out[0], tokens)

    @invariant()
    def counts_hold(self) -> None:
        assert set(self.line) == set(self.waiting)
        assert len(self.line) == len(self.waiting)
        assert self.line.tokens == sum(w.prompt_tokens for w in self.waiting)


TestLine = LineMachine.TestCase
TestLine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
