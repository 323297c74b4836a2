"""Each package that casque installs is used, and has its reason on a page."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.docs.following import ROOT
from tests.docs.pages import DOCS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SHIPPED = ["dependencies", *(name for name in EXTRAS if name not in {"all", "bench", "dev"})]


def packages(of: str) -> set[str]:
    given = PROJECT[of] if of == "dependencies" else EXTRAS[of]
    return {re.split(r"[\[<>=;! ]", one)[0] for one in given}


def imported() -> set[str]:
    """The packages that the library imports, at the top of a module or later."""
    text = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    return set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("extra", SHIPPED)
def test_every_package_that_users_install_is_imported(extra: str) -> None:
    assert packages(extra) - imported() == set()


@pytest.mark.parametrize("extra", ["dependencies", *EXTRAS])
def test_every_package_has_its_reason(extra: str) -> None:
    page = (DOCS / "design" / "dependencies.md").read_text()
    ours = {"casque"}
    assert {name for name in packages(extra) - ours if f"**{name}**" not in page} == set()
