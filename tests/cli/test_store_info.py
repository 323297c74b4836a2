"""`queuectl store info`, on each kind of store."""

from __future__ import annotations

import pytest

from casque.buckets.prices import PRICES
from tests.cli.control import Control
from tests.notes import without_notes

KINDS = {"jobs.db": "sqlite", "queue.json": "document", "ledger/": "ledger"}


def fill(control: Control) -> str:
    control.done("enqueue", '{"id": "a", "command": "true"}')
    return next(kind for name, kind in KINDS.items() if control.store.endswith(name))


def test_it_shows_what_the_store_is(anywhere: Control) -> None:
    kind = fill(anywhere)
    shown = anywhere.done("store", "info")
    found = anywhere("store", "info", "--json").json
    assert anywhere.store.rstrip("/") in shown
    assert found["kind"] == kind
    assert found["exists"]
    for expected in (kind, found["identity"], "1: 1 pending"):
        assert expected in shown
    assert (found["pending"], found["total"], found["format"]) == (1, 1, 1)
    assert found["bytes"] > 0
    assert not found["is_partial"]


def test_only_a_ledger_has_a_bill(anywhere: Control) -> None:
    kind = fill(anywhere)
    shown = anywhere.done("store", "info")
    found = anywhere("store", "info", "--json").json
    assert ("Requests of this command" in shown) == (kind == "ledger")
    if kind != "ledger":
        assert (found["requests"], found["dollars"]) == (None, None)
        return
    sent = found["requests"]
    assert sent["get"] > sent["missing"] >= 0
    assert (sent["put"], sent["delete"]) == (0, 0)
    assert found["dollars"]["s3"] == pytest.approx(
        (0.005 * sent["list"] + 0.0004 * sent["get"]) / 1_000
    )
    assert found["dollars"].keys() == PRICES.keys()


def test_a_store_that_does_not_exist_is_not_created(anywhere: Control) -> None:
    result = anywhere("store", "info")
    assert result.code == 3
    assert "does not exist yet" in result.out
    assert "Nothing was created" in result.err
    found = anywhere("store", "info", "--json")
    assert (found.code, found.json["exists"], found.json["kind"]) == (3, False, None)


def test_a_store_in_memory_is_refused(control: Control) -> None:
    control.store = "memory://"
    result = control("store", "info")
    assert result.code == 2
    assert "a store in memory ends with this command" in without_notes(result.err)
