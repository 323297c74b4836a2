"""The pictures show what the commands print today."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.following import ROOT
from tests.docs.pages import DOCS

PICTURES = DOCS / "images"
TAKE = PICTURES / "take.py"
SECONDS = 300
"""How long it may take on a busy machine; on an idle one it takes some ten."""

_TEXT = re.compile(r'<text class="[\w-]+-r\d+"[^>]*>(.*?)</text>', re.DOTALL)
_JOB_OF_THE_DEMO = re.compile(r"\b(?:resize_photo|fetch_price|charge_card)-\d+")
_END_OF_AN_ID = re.compile("…[0-9a-f]{8}")
_WORD = re.compile(r"[A-Za-z_][\w-]*")


def words(picture: Path) -> set[str]:
    """The words of a picture, without those that differ from run to run."""
    text = html.unescape(" ".join(_TEXT.findall(picture.read_text())))
    text = _END_OF_AN_ID.sub("an_id", _JOB_OF_THE_DEMO.sub("a_job", text))
    return set(_WORD.findall(text))


@pytest.mark.timeout(SECONDS + 20)
def test_the_pictures_are_not_stale(tmp_path: Path) -> None:
    taken = subprocess.run(
        [sys.executable, str(TAKE), str(tmp_path)],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert taken.returncode == 0, taken.stderr
    names = {path.name for path in PICTURES.glob("*.svg")}
    assert names == {path.name for path in tmp_path.glob("*.svg")}
    for name in names:
        now = words(tmp_path / name)
        assert len(now) > 10
        assert words(PICTURES / name) == now, f"{name} is stale: run {TAKE.relative_to(ROOT)}"


def test_every_picture_is_on_a_page() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    text = "".join(page.read_text() for page in pages)
    for picture in PICTURES.glob("*.svg"):
        assert f"images/{picture.name})" in text, picture.name
