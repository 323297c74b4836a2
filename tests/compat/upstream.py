"""Runs jqueue's own tests, and the code of its README, on casque.compat.jqueue.

    python -m tests.compat.upstream ~/src/jqueue [PAGE.md …]

Copies the tests of a clone of jqueue into a temporary folder, where `import jqueue` means
`casque.compat.jqueue`. Succeeds if exactly those tests fail that
docs/how-to/move-from-jqueue.md lists, and every Python block of the pages runs.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.compat.examples import run_page

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "how-to" / "move-from-jqueue.md"


def listed() -> set[str]:
    """The tests that the page lists as not passing."""
    return set(re.findall(r"^\| `(test_\w+)`", PAGE.read_text(), re.MULTILINE))


def figures() -> tuple[int, int]:
    """How many tests the page says that there are, and that pass."""
    [(total, passing)] = re.findall(r"Of the (\d+) tests .*?, (\d+) pass", PAGE.read_text())
    return int(total), int(passing)


def failing(tests: Path) -> tuple[set[str], str]:
    """The tests that fail, and the last line of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(tests, Path(folder) / "upstream")
        shutil.copy(HERE / "upstream_conftest.py", Path(folder) / "conftest.py")
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    print(run.stdout)
    failed = re.findall(r"^(?:FAILED|ERROR) \S+?::(\w+)", run.stdout, re.MULTILINE)
    return set(failed), run.stdout.strip().splitlines()[-1]


def blocks_run(page: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        before = Path.cwd()
        os.chdir(folder)  # a block may create files
        try:
            outcomes = asyncio.run(run_page(page.read_text()))
        finally:
            os.chdir(before)
    for one in outcomes:
        print(f"{page.name}:{one.line}: {one.what} {one.error}".rstrip())
    good = [one for one in outcomes if not one.error]
    print(f"{page.name}: {len(good)} of {len(outcomes)} Python blocks")
    return len(good) == len(outcomes)


def main(clone: str, *pages: str) -> int | str:
    if not (Path(clone) / "tests").is_dir():
        return f"{clone} has no folder `tests`: clone jqueue, and pass the path of the clone."
    # Of Google's client: with an emulator it asks for no credentials.
    os.environ.setdefault("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    failed, summary = failing(Path(clone) / "tests")
    print(f"listed as not passing: {sorted(listed())}\nfailed: {sorted(failed)}\n{summary}")
    names = pages or (str(Path(clone) / "README.md"),)
    ran = [blocks_run(Path(page).resolve()) for page in names]
    total, passing = figures()
    is_true = failed == listed() and f"{total - passing} failed, {passing} passed" in summary
    return 0 if is_true and all(ran) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
