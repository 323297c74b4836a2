"""The bill: what a queue in a bucket costs has not grown, and its page says the same."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from casque.buckets.meter import Requests
from casque.buckets.prices import PRICES
from casque.testing.simulation.bill import LOADS, Load, OverloadError, measure

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "what-a-bucket-costs.md"
FIGURES = msgspec.json.decode(
    (ROOT / "benchmarks" / "bill.json").read_bytes(), type=dict[str, Requests]
)
AGAIN = "If that is what you want: python benchmarks/bill.py --write"
SHORT = Load(20, seconds=10)


@pytest.mark.parametrize("name", LOADS)
def test_the_bill_is_within_a_fifth_of_its_committed_figure(name: str) -> None:
    now, before = measure(LOADS[name]).per_unit(), FIGURES[name]
    for prices in PRICES.values():
        ratio = prices.cost(now) / prices.cost(before)
        assert 0.8 < ratio < 1.2, f"{name} costs {ratio:.2f}x on {prices.name}: {now}. {AGAIN}"


def test_the_same_load_sends_the_same_requests() -> None:
    first, second = measure(SHORT), measure(SHORT)
    assert (first.jobs, str(first.requests)) == (second.jobs, str(second.requests))
    assert str(measure(SHORT, seed=1).requests) != str(first.requests)


def test_more_workers_are_all_on_the_bill() -> None:
    one, three = measure(Load(0, seconds=60)), measure(Load(0, seconds=60, workers=3))
    assert three.requests.total > 2 * one.requests.total


def test_a_load_that_the_workers_cannot_carry_is_no_bill() -> None:
    with pytest.raises(OverloadError, match="jobs are waiting at the end"):
        measure(Load(20, seconds=10, concurrency=1))


def test_the_table_on_the_page_is_that_of_the_committed_figures() -> None:
    command: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "bill.py"))
    assert f"<!-- bill -->\n{command['table'](FIGURES)}<!-- /bill -->" in PAGE.read_text()


def test_the_dollars_on_the_page_are_counts_times_prices() -> None:
    rows = re.findall(r"^\| (a .*?) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(FIGURES)
    for (what, cells), figures in zip(rows, FIGURES.values(), strict=True):
        dollars = [float(cell.strip(" $")) for cell in cells.split("|")[4:]]
        s3, google, azure = dollars
        puts_and_lists = 0.005 * (figures.put + figures.list) / 1_000
        gets = 0.0004 * figures.get / 1_000
        found = 0.0004 * (figures.get - figures.missing) / 1_000
        assert s3 == pytest.approx(puts_and_lists + gets, rel=0.01, abs=0.005), what
        assert google == pytest.approx(puts_and_lists + found, rel=0.01, abs=0.005), what
        deletes = 0.0004 * figures.delete / 1_000
        assert azure == pytest.approx(puts_and_lists + gets + deletes, rel=0.01, abs=0.005), what


def test_the_prices_on_the_page_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| (S3|Google|Azure) .*?((?:\| [\d.]+ ){6})\|$", PAGE.read_text(), re.MULTILINE
    )
    shown = {name: [float(cell) for cell in cells.split("|")[1:]] for name, cells in rows}
    assert shown == {
        one.name: [one.put, one.list, one.get, one.missing, one.delete, one.gb_month]
        for one in PRICES.values()
    }
