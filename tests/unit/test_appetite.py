"""Appetite: when a worker asks for jobs, and for how many."""

from __future__ import annotations

from casque.job import Job
from casque.rules.decide import Leased
from casque.worker.claim_policy import Appetite, Portion

JOB = Job(id="x", entrypoint="e", payload=b"")
EMPTY = Leased([], None)


def test_it_asks_for_what_there_is_room_for_until_nothing_comes() -> None:
    appetite = Appetite(None)
    assert appetite.portion(0, 0) is None
    assert appetite.portion(5, 0) == Portion(None, 5)
    appetite.fed(5, Leased([JOB] * 5, None), 0, 0, None)
    assert appetite.portion(3, 0) == Portion(None, 3)
    appetite.fed(3, EMPTY, 0, 0, None)
    assert not appetite.is_hungry
    assert appetite.portion(3, 10**9) is None


def test_an_empty_answer_says_when_to_ask_again() -> None:
    appetite = Appetite(None)
    appetite.portion(5, 100)
    appetite.fed(5, Leased([], 50), 100, 100, 1_000)
    assert appetite.ask_us == 150
    assert appetite.portion(5, 149) is None
    assert appetite.portion(5, 150) is not None
    appetite.fed(5, Leased([], 5_000), 150, 150, 1_000)
    assert appetite.ask_us == 1_150, "the store may be deaf for that long"
    appetite.portion(5, 1_150)
    appetite.fed(5, EMPTY, 1_150, 1_150, None)
    assert appetite.ask_us is None


def test_one_that_is_partly_filled_does_not_and_so_it_asks_soon() -> None:
    appetite = Appetite(None)
    appetite.portion(5, 0)
    appetite.fed(5, Leased([JOB], None), 0, 0, None)
    assert not appetite.is_hungry
    assert appetite.ask_us == 50_000


def test_a_ring_while_it_asks_is_heard() -> None:
    appetite = Appetite(None)
    appetite.portion(5, 0)
    appetite.ring()
    appetite.fed(5, EMPTY, 0, 0, None)
    assert appetite.is_hungry
    appetite.portion(5, 0)
    appetite.fed(5, EMPTY, 0, 0, None)
    assert not appetite.is_hungry


def test_of_several_queues_each_has_its_turn_and_the_soonest_time_counts() -> None:
    appetite = Appetite(("a", "b", "c"))
    assert appetite.portion(6, 0) == Portion("a", 2)
    appetite.fed(2, Leased([], 70), 0, 0, None)
    assert appetite.portion(6, 0) == Portion("b", 3)
    appetite.fed(3, Leased([], 40), 0, 0, None)
    assert appetite.portion(1, 0) == Portion("c", 1)
    appetite.fed(1, EMPTY, 0, 0, None)
    assert (appetite.is_hungry, appetite.ask_us) == (False, 40)
    assert appetite.portion(6, 39) is None
    assert appetite.portion(6, 40) == Portion("a", 2)
    appetite.fed(2, Leased([], 900), 40, 40, None)
    assert appetite.ask_us == 940, "a round begins anew"


def test_on_a_slow_store_a_round_comes_to_its_end_all_the_same() -> None:
    appetite = Appetite(("a", "b"))
    assert appetite.portion(4, 0) == Portion("a", 2)
    appetite.fed(2, EMPTY, 0, 900, 200)
    assert appetite.portion(4, 2_000) == Portion("b", 4)
    appetite.fed(4, EMPTY, 2_000, 2_900, 200)
    assert (appetite.is_hungry, appetite.ask_us) == (False, 1_100)
    assert appetite.portion(4, 2_900) == Portion("a", 2)
