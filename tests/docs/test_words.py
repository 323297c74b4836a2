"""Old-fashioned and indirect wording stays out of the code and of the pages."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.following import ROOT
from tests.docs.pages import named

PHRASES = (
    "told of",
    "heard of",
    "to be learned",
    "is to be had",
    "heeds",
    "heeded",
    "minded",
    "anew",
    "strikes",
    "mends",
    "mended",
    "worked off",
    "whoever",
    "be it",
    "though it be",
)
_GAP = r"[\s#>*]+"  # a phrase may be broken over two lines, also in a comment or a quote
# Not within names in capitals or with underscores, which may be part of a format.
_BANNED = re.compile(
    "|".join(rf"\b(?i:{phrase[0]}){phrase[1:].replace(' ', _GAP)}\b" for phrase in PHRASES)
    + r"|\bWho\b"  # with a capital: it begins a sentence
)
_SUFFIXES = {".md", ".py", ".pyi", ".sh", ".sql", ".txt"}


def parts() -> list[Path]:
    """The folders of src, tests and docs, and the top of the project."""
    packages = sorted(path.parent for path in (ROOT / "src").rglob("__init__.py"))
    tests = sorted(path for path in (ROOT / "tests").rglob("*") if path.is_dir())
    docs = sorted(path for path in (ROOT / "docs").rglob("*") if path.is_dir())
    folders = [*packages, ROOT / "tests", *tests, ROOT / "docs", *docs, ROOT]
    return [path for path in folders if not path.name.startswith(("__", "."))]


def texts(folder: Path) -> Iterator[Path]:
    """The texts that are directly in a folder, without this module, which names the words."""
    for path in sorted(folder.iterdir()):
        if path.suffix in _SUFFIXES and path != Path(__file__):
            yield path


def prose_of(path: Path) -> str:
    """The text of a page; of code its comments and strings, each in its line."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    lines = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if tokenize.tok_name[token.type] in {"COMMENT", "STRING", "FSTRING_MIDDLE"}:
            for offset, line in enumerate(token.string.split("\n")):
                lines[token.start[0] - 1 + offset] += f" {line}"
    return "\n".join(lines)


def found_in(path: Path) -> Iterator[str]:
    text = prose_of(path)
    for found in _BANNED.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield f"{named(path)}:{line}: {found[0]!r}"


@pytest.mark.parametrize("folder", parts(), ids=named)
def test_plain_words_only(folder: Path) -> None:
    assert [hit for path in texts(folder) for hit in found_in(path)] == []


@pytest.mark.parametrize(
    ("text", "is_plain"),
    [
        ("it is told\n# of the job", False),
        ("Whoever has the lock", False),
        ('"""Who holds the job."""', False),
        ("the worker who holds it", True),
        ("a process that heeded it", False),
        ("test_decided_anew, STRIKES", True),
        ("reminded, amends", True),
    ],
)
def test_the_words_are_found_where_they_stand(text: str, is_plain: bool) -> None:
    assert (_BANNED.search(text) is None) == is_plain
