"""How often threads take turns in a worker: often, unless plain functions are short."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from casque.system.clock import SECOND_US
from casque.worker.runtime import Switching

SHORT, LONG = SECOND_US // 10, SECOND_US


@pytest.fixture
def own() -> float:
    """Python's own interval."""
    return sys.getswitchinterval()


@pytest.fixture
def switching(own: float) -> Iterator[Switching]:
    switching = Switching()
    switching.look([])
    yield switching
    switching.close()
    assert sys.getswitchinterval() == own, "left as it was"


def is_often(own: float) -> bool:
    return sys.getswitchinterval() < own / 10


def test_turns_are_short_before_anything_is_known(own: float, switching: Switching) -> None:
    assert is_often(own)
    switching.look([SHORT] * 32)
    assert is_often(own), "they have just started, so how long they take is unknown"


def test_short_functions_keep_pythons_own_interval(own: float, switching: Switching) -> None:
    switching.ended()
    assert not is_often(own)
    switching.look([SHORT] * 32)
    assert not is_often(own)
    switching.look([SHORT] * 32)
    assert is_often(own), "none has ended since the last check"


def test_a_long_function_makes_turns_short_whatever_else_ends(
    own: float, switching: Switching
) -> None:
    switching.ended()
    switching.look([SHORT, LONG])
    assert is_often(own)
    switching.ended()
    assert is_often(own)
    switching.look([SHORT])
    assert not is_often(own), "it has ended, as have others"


def test_a_shorter_interval_of_the_user_is_kept(own: float) -> None:
    sys.setswitchinterval(0.000_01)
    try:
        switching = Switching()
        switching.look([])
        assert sys.getswitchinterval() == pytest.approx(0.000_01)
        switching.close()
        assert sys.getswitchinterval() == pytest.approx(0.000_01)
    finally:
        sys.setswitchinterval(own)


def test_workers_of_one_process_restore_the_interval_in_any_order(own: float) -> None:
    for order in ((0, 1), (1, 0)):
        workers = Switching(), Switching()
        for worker in workers:
            worker.look([LONG])
        workers[order[0]].close()
        assert is_often(own), "the other still needs it"
        workers[order[0]].close()
        workers[order[1]].look([])
        workers[order[1]].close()
        assert sys.getswitchinterval() == own


def test_one_worker_with_short_functions_does_not_decide_for_another(own: float) -> None:
    short, long = Switching(), Switching()
    long.look([LONG])
    short.look([])
    short.ended()
    assert is_often(own)
    long.close()
    long.ended()  # a function that outlives its worker
    assert not is_often(own)
    short.close()
    assert sys.getswitchinterval() == own
