"""The bill: what a queue in a bucket costs, at several loads, counted on virtual time.

Producers and workers run on simulated time over a bucket that takes about 50 ms to answer. The
ledger's meter counts their requests, and the list prices of `casque.admin.PRICES` turn the counts
into dollars. A count is the same on every machine, so this measures no time.

Without arguments it compares each load with the committed figures, in bill.json. `--write` replaces
them, and the tables of the page docs/how-to/what-a-bucket-costs.md. `--rate 50 --workers 3` counts
a load of your own.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import msgspec

from casque.admin import PRICES, Requests
from casque.testing.simulation.bill import LOADS, Load, OverloadError, measure

FIGURES = Path(__file__).with_name("bill.json")
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "what-a-bucket-costs.md"
GROWTH_LIMIT = 1.2
UNITS = {"idle": "a worker that waits for 30 days"}
_MARKED = re.compile(r"(<!-- bill -->\n).*?(<!-- /bill -->)", re.DOTALL)


def committed() -> dict[str, Requests]:
    """Return the committed figures: requests per million jobs or per idle month, by load."""
    return msgspec.json.decode(FIGURES.read_bytes(), type=dict[str, Requests])


def table(figures: dict[str, Requests]) -> str:
    """Return the table of the page."""
    names = " | ".join(prices.name for prices in PRICES.values())
    rows = [
        f"| Load | PUT | GET | LIST | DELETE | {names} |",
        "|---" * (5 + len(PRICES)) + "|",
    ]
    for name, one in figures.items():
        what = UNITS.get(name, f"a million jobs at {name}")
        counts = " | ".join(_rounded(n) for n in (one.put, one.get, one.list, one.delete))
        dollars = " | ".join(_dollars(prices.cost(one)) for prices in PRICES.values())
        rows.append(f"| {what} | {counts} | {dollars} |")
    return "\n".join(rows) + "\n"


def _rounded(count: int) -> str:
    """Return a count with two significant digits."""
    return f"{round(count, min(2 - len(str(count)), 0)):,}"


def _dollars(cost: float) -> str:
    return f"${cost:.2f}" if cost >= 0.1 else f"${cost:.3f}"


def write(figures: dict[str, Requests]) -> None:
    """Commit these figures: to the file, and to the table of the page."""
    found = {name: msgspec.structs.asdict(one) for name, one in figures.items()}
    FIGURES.write_text(json.dumps(found, indent=2) + "\n")
    page, count = _MARKED.subn(lambda marks: marks[1] + table(figures) + marks[2], PAGE.read_text())
    assert count == 1, f"{PAGE} has no place for the table"
    PAGE.write_text(page)


def compare(figures: dict[str, Requests]) -> bool:
    """Print each load beside its committed figure. True if none has grown by a fifth."""
    is_kept = True
    for name, before in committed().items():
        ratios = [one.cost(figures[name]) / one.cost(before) for one in PRICES.values()]
        kept = max(ratios) < GROWTH_LIMIT
        is_kept &= kept
        shown = ", ".join(f"{ratio:.2f}x" for ratio in ratios)
        print(f"{name}: {shown} of the committed figures: {'kept' if kept else 'MISSED'}")
    return is_kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="commit the figures")
    parser.add_argument("--rate", type=float, help="jobs a second of a load of your own; 0: idle")
    parser.add_argument("--seconds", type=int, default=60, help="how long to count that load")
    parser.add_argument("--producers", type=int, default=1, help="its processes that add jobs")
    parser.add_argument("--workers", type=int, default=1, help="its worker processes")
    parser.add_argument("--concurrency", type=int, default=32, help="jobs at once, of each worker")
    given = parser.parse_args()
    own = given.rate is not None
    loads = LOADS
    if own:
        load = Load(given.rate, given.seconds, given.producers, given.workers, given.concurrency)
        loads = {"idle" if not given.rate else f"{given.rate:g} jobs/s": load}
    try:
        figures = {name: measure(load).per_unit() for name, load in loads.items()}
    except OverloadError as error:
        print(error)
        return 1
    print(table(figures))
    if given.write and not own:
        write(figures)
        return 0
    return 0 if own or compare(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
