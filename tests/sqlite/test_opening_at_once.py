"""Many processes that open a file which is not there yet."""

from __future__ import annotations

import threading
from pathlib import Path

from casque import Queue

ROUNDS, HANDLES = 40, 6


def test_a_file_that_is_just_being_made_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    wrong: list[Exception] = []

    def look(path: Path, together: threading.Barrier) -> None:
        together.wait()
        try:
            with Queue(path) as q:
                q.enqueue("e")
        except Exception as error:  # noqa: BLE001 - told by the test
            wrong.append(error)

    for number in range(ROUNDS):
        together = threading.Barrier(HANDLES)
        path = tmp_path / f"{number}.db"
        threads = [threading.Thread(target=look, args=(path, together)) for _ in range(HANDLES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with Queue(path) as q:
            assert q.stats().total == HANDLES
    assert wrong == []
