"""Ids made of content: the same work is stored once."""

from __future__ import annotations

import math
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from casque import App, InvalidError, NewJob, Queue, content_id


def test_an_id_stays_the_same_in_every_version() -> None:
    # Jobs with these ids may be stored: another id for the same content would run them twice.
    assert content_id("default", "make backup", [], None) == "6d79ad4ac06dd91c6d2a34acbc0fd062"
    link = content_id("/notes/a.md", "https://dead.example", 42)
    assert link == "460c10539fafed4a3b5d3b30e4ec5417"


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (({"a": 1, "b": 2},), ({"b": 2, "a": 1},)),
        (({3, 1, 2},), ({1, 2, 3},)),
        ((Path("/notes/a.md"),), ("/notes/a.md",)),
        ((("a", "b"),), (["a", "b"],)),
    ],
)
def test_equal_content_gives_equal_ids(one: tuple[Any, ...], same: tuple[Any, ...]) -> None:
    assert content_id(*one) == content_id(*same)


def test_different_content_gives_different_ids() -> None:
    contents: list[tuple[object, ...]] = [
        ("a", "b"),
        ("ab",),
        ("a:b",),
        (["a", "b"],),
        ("b", "a"),
        (1,),
        ("1",),
        (None,),
        ("",),
        (b"a",),
        ("a",),
        (datetime(2026, 1, 1, tzinfo=UTC),),
    ]
    assert len({content_id(*parts) for parts in contents}) == len(contents)


def test_another_process_gets_the_same_id() -> None:
    program = "from casque import content_id; print(content_id('x', {'b': {2, 1}, 'a': None}))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == content_id("x", {"a": None, "b": {1, 2}})


@pytest.mark.parametrize("parts", [(), (object(),), ("\ud800",), (lambda: 1,)])
def test_content_that_has_no_fixed_form_is_refused(parts: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidError, match="an id"):
        content_id(*parts)


def test_a_job_with_a_content_id_is_stored_once() -> None:
    with Queue("memory://") as q:
        job = NewJob("link_broken", b"a.md:42", queue="links")
        [first] = q.enqueue_many([job.with_content_id()])
        [again] = q.enqueue_many([job.with_content_id()])
        [other] = q.enqueue_many([NewJob("link_broken", b"a.md:43").with_content_id()])
        assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
        assert again.id == first.id != other.id


def test_the_same_payload_for_another_queue_or_entrypoint_is_another_job() -> None:
    jobs = [NewJob("a", b"x"), NewJob("b", b"x"), NewJob("a", b"x", queue="q"), NewJob("a", b"y")]
    assert len({job.with_content_id().id for job in jobs}) == 4


def test_parts_take_the_place_of_the_payload() -> None:
    noon, night = NewJob("scan", b"at noon"), NewJob("scan", b"at night")
    assert noon.with_content_id("a.md").id == night.with_content_id("a.md").id
    assert noon.with_content_id("a.md").id != noon.with_content_id("b.md").id
    assert noon.with_content_id("a.md").payload == b"at noon"


def test_a_job_that_has_an_id_keeps_it() -> None:
    with pytest.raises(InvalidError, match="has the id 'mine' already"):
        NewJob("scan", id="mine").with_content_id()


def test_a_task_takes_a_content_id() -> None:
    app = App("memory://")

    @app.task
    def check(path: str, line: int) -> None: ...

    assert check.job("a.md", 1).with_content_id().id == check.job("a.md", 1).with_content_id().id
    first = check.using(id=content_id("check", "a.md", 1)).enqueue("a.md", 1)
    again = check.using(id=content_id("check", "a.md", 1)).enqueue("a.md", 1)
    assert first.id == again.id
    assert app.queue.stats().pending == 1
    app.close()


@pytest.mark.parametrize(
    "part", [math.nan, math.inf, [{"a": (-math.inf,)}], pytest.param(10**5000, id="huge")]
)
def test_a_number_without_a_form_in_json_is_refused(part: object) -> None:
    with pytest.raises(InvalidError, match="an id cannot be made of this"):
        content_id("x", part)
