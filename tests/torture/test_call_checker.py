"""The call checker finds each way in which a queue can break its promises."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.torture.call_checker import Call, check

GOOD = [
    Call("enqueue", "ok", jobs=("a", "b")),
    Call("dequeue", "ok", claims=(("a", 1), ("b", 2))),
    Call("ack", "ok", job="a", token=1),
    Call("ack", "unknown", job="b", token=2),
    Call("enqueue", "unknown", jobs=("c",)),
]


def claim(payload: str, token: int) -> Call:
    return Call("dequeue", "ok", claims=((payload, token),))


def enqueue(told: str, *payloads: str) -> Call:
    return Call("enqueue", told, jobs=payloads)


def ack(told: str, payload: str, token: int, *more: str) -> Call:
    return Call("ack", told, more, payload, token)


def test_a_possible_history_passes() -> None:
    assert check(GOOD, "ab", []) >= Counter({"jobs": 2, "enqueued": 2})
    # The unknown ack was not stored: the job is handed out again.
    assert check([*GOOD, claim("b", 3), ack("ok", "b", 3)], "ab", [])["ack ok"] == 2
    # The unknown enqueue was stored.
    assert check([*GOOD, claim("c", 3), ack("ok", "c", 3)], "abc", [])["jobs"] == 3


@pytest.mark.parametrize(
    ("more", "added", "left", "told"),
    [
        ([enqueue("ok", "d")], "", "", "lost"),
        ([], "b", "", "stored twice"),
        ([], "", "a", "left over"),
        ([claim("x", 3)], "x", "", "nobody enqueued"),
        ([claim("b", 1)], "", "", "a token was handed out twice"),
        ([], "c", "", "gone without a claim"),
        ([claim("a", 3)], "", "", "acked without the lease"),
        ([ack("ok", "a", 1)], "", "", "acked twice"),
        ([enqueue("refused", "d"), claim("d", 3)], "d", "", "stored, though refused"),
        ([enqueue("unknown", "d", "e"), claim("d", 3)], "d", "", "stored in part"),
        ([enqueue("ok", "d"), claim("d", 3)], "d", "", "gone without an ack"),
        # The job that came with the ack of b is there, so the ack was stored.
        (
            [ack("unknown", "b", 2, "d"), claim("d", 3), claim("b", 4), ack("ok", "d", 3)],
            "d",
            "",
            "acked without the lease",
        ),
    ],
)
def test_an_impossible_history_is_found(more: list[Call], added: str, left: str, told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check([*GOOD, *more], "ab" + added, left)
