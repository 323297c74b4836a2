"""Backoff, and the exceptions by which a task decides about its own job."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from casque import Backoff, CasqueError, Discard, InvalidError, Retry, Snooze
from casque.checks import ERROR_BYTES

SECOND = timedelta(seconds=1)


def test_a_wait_grows_by_the_factor_up_to_the_cap() -> None:
    backoff = Backoff(base=SECOND, factor=3, cap=20 * SECOND, jitter=0)
    assert [backoff.delay_us(n, 0.9) for n in range(1, 6)] == [
        1_000_000,
        3_000_000,
        9_000_000,
        20_000_000,
        20_000_000,
    ]


def test_the_jitter_part_of_a_wait_is_random() -> None:
    backoff = Backoff(base=8 * SECOND, jitter=0.25)
    assert backoff.delay_us(1, 0) == 6_000_000
    assert backoff.delay_us(1, 0.5) == 7_000_000
    assert backoff.delay_us(1, 0.999_999) == pytest.approx(8_000_000, abs=10)


def test_the_defaults_are_two_seconds_doubled_up_to_an_hour_half_of_it_random() -> None:
    backoff = Backoff()
    assert [backoff.delay_us(n, 0) for n in (1, 2, 3)] == [1_000_000, 2_000_000, 4_000_000]
    assert backoff.delay_us(40, 0) == 1800_000_000


@pytest.mark.parametrize(("base", "wait"), [(SECOND, 3_600_000_000), (timedelta(), 0)])
def test_a_wait_too_long_for_a_float_is_the_cap(base: timedelta, wait: int) -> None:
    assert Backoff(base=base, jitter=0).delay_us(2**31, 0) == wait


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"base": 2}, "write timedelta(seconds=2)"),
        ({"cap": -SECOND}, "`cap` must not be negative"),
        ({"factor": 0.5}, "`factor` must be a finite number of at least 1"),
        ({"factor": float("nan")}, "`factor`"),
        ({"factor": float("inf")}, "`factor`"),
        ({"factor": "2"}, "`factor`"),
        ({"jitter": 1.5}, "`jitter` must be a number from 0 to 1"),
        ({"jitter": True}, "`jitter`"),
    ],
)
def test_an_invalid_backoff_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidError) as raised:
        Backoff(**options)
    assert says in str(raised.value)


def test_exceptions_for_tasks_carry_their_values_and_are_not_casque_errors() -> None:
    answers = [Retry(), Retry(SECOND, "busy"), Snooze(SECOND), Discard("gone"), Discard()]
    assert not any(isinstance(one, CasqueError) for one in answers)
    assert [str(one) for one in answers] == ["", "busy", "again in 0:00:01", "gone", ""]
    assert Retry().delay is None
    assert Retry(delay=SECOND, reason="busy").delay == SECOND
    assert Discard("gone").reason == "gone"


@pytest.mark.parametrize("answer", [Retry(SECOND, "busy"), Snooze(SECOND), Discard("gone")])
def test_exceptions_for_tasks_survive_pickling(answer: Exception) -> None:
    again = pickle.loads(pickle.dumps(answer))
    assert type(again) is type(answer)
    assert vars(again) == vars(answer)


def test_a_reason_is_a_text_that_can_be_stored() -> None:
    for answer in (Discard("caf\udce9"), Retry(reason="caf\udce9")):
        assert answer.reason == str(answer) == "caf?"
    assert len(Discard("x" * 3_000_000).reason) == ERROR_BYTES


@pytest.mark.parametrize(
    ("kind", "wrong"), [(Retry, (5,)), (Snooze, (-SECOND,)), (Discard, (5,)), (Retry, (None, 5))]
)
def test_exceptions_for_tasks_check_their_arguments(kind: Any, wrong: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidError):
        kind(*wrong)


def test_delay_is_the_wait_after_an_attempt() -> None:
    backoff = Backoff(base=SECOND, factor=3, cap=20 * SECOND, jitter=0)
    assert [backoff.delay(n) for n in (1, 2, 3, 4)] == [SECOND, 3 * SECOND, 9 * SECOND, 20 * SECOND]


def test_delay_draws_its_random_part_each_time() -> None:
    waits = {Backoff(base=8 * SECOND, jitter=0.5).delay(1) for _ in range(50)}
    assert len(waits) > 1
    assert all(4 * SECOND <= wait <= 8 * SECOND for wait in waits)


@pytest.mark.parametrize("attempt", [0, -1, 1.5, "1", None, True])
def test_delay_refuses_what_is_no_attempt(attempt: Any) -> None:
    with pytest.raises(InvalidError, match="attempt"):
        Backoff().delay(attempt)
