"""SortedKeys against a sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from casque.rules.sorted_keys import LOAD, SortedKeys

Key = tuple[int, int]


def filled(keys: list[Key]) -> SortedKeys[Key]:
    sorted_keys: SortedKeys[Key] = SortedKeys()
    for key in keys:
        sorted_keys.add(key)
    return sorted_keys


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=200))
def test_adding_and_discarding_keeps_the_order(steps: list[tuple[bool, int]]) -> None:
    keys: SortedKeys[Key] = SortedKeys()
    model: set[Key] = set()
    for is_add, number in steps:
        key = (number, 0)
        if is_add and key not in model:
            keys.add(key)
            model.add(key)
        elif not is_add:
            assert keys.discard(key) is (key in model)
            model.discard(key)
        assert list(keys) == sorted(model)
        assert len(keys) == len(model)
        if model:
            assert keys.first == min(model)


def test_many_keys_in_any_order_split_into_blocks_and_shrink_again() -> None:
    count = 10 * LOAD
    shuffled = [((place * 7919) % count, 0) for place in range(count)]
    keys = filled(shuffled)
    assert list(keys) == sorted(shuffled)
    assert max(len(block) for block in keys._blocks) <= 2 * LOAD
    for bound in (-1, 0, 1, LOAD, count // 2, count - 1, count, count + 5):
        assert keys.count_below((bound, 0)) == min(max(bound, 0), count)
    for key in shuffled[: count - 1]:
        assert keys.discard(key)
    assert list(keys) == [shuffled[-1]]
    assert len(keys._blocks) == 1
    assert not keys.discard((count + 1, 0))
