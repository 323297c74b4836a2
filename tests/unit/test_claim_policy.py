"""ClaimPolicy: when a worker asks for jobs, and for how many."""

from __future__ import annotations

from casque.job import Job
from casque.rules.decide import Leased
from casque.worker.claim_policy import ClaimPolicy, NextClaim

JOB = Job(id="x", entrypoint="e", payload=b"")
EMPTY = Leased([], None)


def test_it_asks_for_as_many_jobs_as_it_has_room_for_until_none_come() -> None:
    policy = ClaimPolicy(None)
    assert policy.next_claim(0, 0) is None
    assert policy.next_claim(5, 0) == NextClaim(None, 5)
    policy.answered(5, Leased([JOB] * 5, None), 0, 0, None)
    assert policy.next_claim(3, 0) == NextClaim(None, 3)
    policy.answered(3, EMPTY, 0, 0, None)
    assert not policy.may_find_jobs
    assert policy.next_claim(3, 10**9) is None


def test_an_empty_answer_says_when_to_ask_again() -> None:
    policy = ClaimPolicy(None)
    policy.next_claim(5, 100)
    policy.answered(5, Leased([], 50), 100, 100, 1_000)
    assert policy.ask_us == 150
    assert policy.next_claim(5, 149) is None
    assert policy.next_claim(5, 150) is not None
    policy.answered(5, Leased([], 5_000), 150, 150, 1_000)
    assert policy.ask_us == 1_150, "the store may miss changes for that long"
    policy.next_claim(5, 1_150)
    policy.answered(5, EMPTY, 1_150, 1_150, None)
    assert policy.ask_us is None


def test_after_a_partly_filled_answer_it_asks_again_soon() -> None:
    policy = ClaimPolicy(None)
    policy.next_claim(5, 0)
    policy.answered(5, Leased([JOB], None), 0, 0, None)
    assert not policy.may_find_jobs
    assert policy.ask_us == 50_000


def test_a_ring_while_it_asks_is_not_lost() -> None:
    policy = ClaimPolicy(None)
    policy.next_claim(5, 0)
    policy.ring()
    policy.answered(5, EMPTY, 0, 0, None)
    assert policy.may_find_jobs
    policy.next_claim(5, 0)
    policy.answered(5, EMPTY, 0, 0, None)
    assert not policy.may_find_jobs


def test_several_queues_take_turns_and_the_soonest_time_counts() -> None:
    policy = ClaimPolicy(("a", "b", "c"))
    assert policy.next_claim(6, 0) == NextClaim("a", 2)
    policy.answered(2, Leased([], 70), 0, 0, None)
    assert policy.next_claim(6, 0) == NextClaim("b", 3)
    policy.answered(3, Leased([], 40), 0, 0, None)
    assert policy.next_claim(1, 0) == NextClaim("c", 1)
    policy.answered(1, EMPTY, 0, 0, None)
    assert (policy.may_find_jobs, policy.ask_us) == (False, 40)
    assert policy.next_claim(6, 39) is None
    assert policy.next_claim(6, 40) == NextClaim("a", 2)
    policy.answered(2, Leased([], 900), 40, 40, None)
    assert policy.ask_us == 940, "a new round begins"


def test_a_round_ends_even_on_a_slow_store() -> None:
    policy = ClaimPolicy(("a", "b"))
    assert policy.next_claim(4, 0) == NextClaim("a", 2)
    policy.answered(2, EMPTY, 0, 900, 200)
    assert policy.next_claim(4, 2_000) == NextClaim("b", 4)
    policy.answered(4, EMPTY, 2_000, 2_900, 200)
    assert (policy.may_find_jobs, policy.ask_us) == (False, 1_100)
    assert policy.next_claim(4, 2_900) == NextClaim("a", 2)
