"""The call checker finds every kind of broken promise."""

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


def enqueue(outcome: str, *payloads: str) -> Call:
    return Call("enqueue", outcome, jobs=payloads)


def ack(outcome: str, payload: str, token: int, *more: str) -> Call:
    return Call("ack", outcome, more, payload, token)


def test_a_possible_history_passes() -> None:
    assert check(GOOD, "ab", []) >= Counter({"jobs": 2, "enqueued": 2})
    # The unknown ack was not stored: the job is claimed again.
    assert check([*GOOD, claim("b", 3), ack("ok", "b", 3)], "ab", [])["ack ok"] == 2
    # The unknown enqueue was stored.
    assert check([*GOOD, claim("c", 3), ack("ok", "c", 3)], "abc", [])["jobs"] == 3


@pytest.mark.parametrize(
    ("more", "added", "left", "message"),
    [
        ([enqueue("ok", "d")], "", "", "lost"),
        ([], "b", "", "stored twice"),
        ([], "", "a", "left over"),
        ([claim("x", 3)], "x", "", "nobody enqueued"),
        ([claim("b", 1)], "", "", "a token was issued twice"),
        ([], "c", "", "gone without a claim"),
        ([claim("a", 3)], "", "", "acked without the lease"),
        ([ack("ok", "a", 1)], "", "", "acked twice"),
        ([enqueue("refused", "d"), claim("d", 3)], "d", "", "stored, but refused"),
        ([enqueue("unknown", "d", "e"), claim("d", 3)], "d", "", "stored in part"),
        ([enqueue("ok", "d"), claim("d", 3)], "d", "", "gone without an ack"),
        # The next job of the ack of b is stored, so the ack was stored.
        (
            [ack("unknown", "b", 2, "d"), claim("d", 3), claim("b", 4), ack("ok", "d", 3)],
            "d",
            "",
            "acked without the lease",
        ),
    ],
)
def test_an_impossible_history_is_found(
    more: list[Call], added: str, left: str, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        check([*GOOD, *more], "ab" + added, left)
