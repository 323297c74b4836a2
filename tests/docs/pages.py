"""The paths of the pages, and access to their sections."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.following import ROOT

DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "casque"
GUARANTEES = DOCS / "guarantees.md"
QUEUE_REFERENCE = DOCS / "reference" / "queue.md"


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def section(path: Path, heading: str) -> str:
    """The text below a heading, up to the next heading of any level."""
    found = re.search(
        rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", path.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found, f"{named(path)} has no heading {heading!r}"
    return found[1]
