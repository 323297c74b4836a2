"""`jobs`: which lists can be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from casque import InvalidError, Queue


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"status": "lost"}, "no status 'lost'; choose one of queued, in_progress, completed"),
        ({"status": "Dead"}, "no status 'Dead'"),
        ({"status": 5}, "no status 5"),
        ({"limit": 0}, "`limit`"),
        ({"queue": ""}, "`queue`"),
        ({"entrypoint": ["a", "b"]}, "`entrypoint` must be text"),
        ({"after": -1}, "`after` must be the last job"),
        ({"after": "id"}, "`after`"),
        ({"after": True}, "`after`"),
        ({"after": 2**63}, "`after`"),
    ],
)
def test_a_wrong_list_of_jobs_is_refused(options: dict[str, Any], says: str) -> None:
    with Queue("memory://") as q, pytest.raises(InvalidError) as raised:
        q.jobs(**options)
    assert says in str(raised.value)


def test_a_closed_queue_lists_nothing() -> None:
    q = Queue("memory://")
    q.close()
    with pytest.raises(InvalidError, match="closed"):
        q.jobs()
