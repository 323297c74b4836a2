"""Ledger addresses that are wrong, or need a missing package, are refused before anything else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casque import App, InvalidError, Queue
from tests.ledger.places import FolderPlace, filled
from tests.ledger.refusals import message

WRONG: dict[str, str] = {
    "ftp://host/q": "no store for scheme 'ftp'. Use .*file:///folder, s3://bucket/prefix",
    "azure://container/q": "no store for scheme 'azure'. Use .*az://container/prefix",
    "s3:bucket/q": "neither a URL nor a path. Use",
    "s3://": "write s3://name/prefix",
    "s3:///q": "write s3://name/prefix",
    "s3://bucket/q?prefix=x": "takes no option prefix; .*endpoint, region and poll",
    "s3://bucket/q?endpoint=": "option endpoint is empty",
    "s3://bucket/q?endpoint=localhost:9000": "the endpoint must be like https://host",
    "gs://bucket/q?region=x": "takes no option region; .*endpoint and poll",
    "s3://bucket/a/./q": "'a/./q': each part of a path must be a name",
    "s3://bucket/a//q": "'a//q': each part of a path must be a name",
    "s3://bucket/q#1": "write # as %23",
    "s3://key:secret@bucket/q": "Credentials come from the environment",
    "s3://bucket/q?endpoint=http://u:secret@127.0.0.1:1": "must not contain a user and password",
    "file:///q?sync=no": "file:// takes no option sync; its option is poll",
    "file:///q?poll=": "option poll is empty",
    "file:///q?poll=often": "poll: 'often' is not a duration: write 90 or 90s",
    "file:///q?poll=49ms": "poll: '49ms' is too short: at least 50ms",
    "s3://bucket/q?poll=0": "poll: '0' is too short: at least 50ms",
    "gs://bucket/q?poll=61": "poll: '61' is too long: at most 1m",
    "az://container/q?poll=-1": "poll: '-1' is not a duration",
    "memory://?poll=1": "memory:// takes no options",
    "json:///queue.json?poll=1": "json:// takes no options",
    "sqlite:///jobs.db?poll=1": "takes no option poll; its option is `durability`",
    "file://q": r"file:///absolute/folder \(three slashes\)",
    "file:///": r"file:///absolute/folder \(three slashes\)",
}


@pytest.mark.parametrize("kind", [Queue, App])
@pytest.mark.parametrize("url", WRONG)
def test_an_address_that_is_wrong_says_how_to_write_it(
    url: str, kind: Callable[[str], object]
) -> None:
    with pytest.raises(InvalidError) as caught:
        kind(url)
    assert re.search(WRONG[url], message(caught.value))


WITHOUT_OBSTORE = """
import json, sys
sys.modules["obstore"] = None  # as if it were not installed
from casque import CasqueError, Queue
told = []
for url in sys.argv[2:]:
    try:
        Queue(url)
    except CasqueError as error:
        told.append([type(error).__name__, str(error)])
with Queue(sys.argv[1]) as q:
    q.enqueue("e")
    told.append(q.stats().total)
print(json.dumps(told))
"""


def run(code: str, *arguments: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told: list[Any] = json.loads(done.stdout)
    return told


def test_a_bucket_without_its_package_says_what_to_install_and_a_folder_needs_none(
    tmp_path: Path,
) -> None:
    extras = {"s3": "s3", "gs": "gcs", "az": "azure"}
    *told, total = run(WITHOUT_OBSTORE, f"file://{tmp_path}/q", *(f"{one}://b/q" for one in extras))
    for (kind, text), (scheme, extra) in zip(told, extras.items(), strict=True):
        assert kind == "InvalidError"
        assert text.startswith(f"{scheme}://b/q: ")
        assert f"pip install 'casque[{extra}]'" in text
    assert total == 1


# Root may write everywhere, so the child becomes the user nobody first.
AS_NOBODY = """
import json, os, sys
from casque import CasqueError, Queue
warm, *urls = sys.argv[1:]

def answers(url):
    told = []
    with Queue(url) as q:
        for call in (lambda: q.enqueue("e"), lambda: q.dequeue(), lambda: q.stats()):
            try:
                call()
                told.append(None)
            except CasqueError as error:
                told.append([type(error).__name__, str(error), error.outcome_unknown])
    return told

answers(warm)  # so that everything is imported: nobody may not be allowed to read Python
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps([answers(url) for url in urls]), flush=True)
os._exit(0)  # nothing of root's is left to be tidied up by nobody
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter; only its owner may enter tmp_path."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_folder_without_write_permission_can_be_read_and_is_left_alone(
    folder: Path, tmp_path: Path
) -> None:
    here, new, hidden = (FolderPlace(folder / name) for name in ("here", "new", "hidden"))
    for place in (here, hidden):
        filled(place).close()
        for path in place.path.rglob("*"):
            path.chmod(0o555 if path.is_dir() else 0o444)
    here.path.chmod(0o555)
    hidden.path.chmod(0)
    folder.chmod(0o555)
    before = here.objects()
    for place, told in zip(
        (here, new, hidden),
        run(AS_NOBODY, f"file://{tmp_path}/warm", here.url, new.url, hidden.url),
        strict=True,
    ):
        if place is not hidden:
            assert told.pop() is None  # a reader needs no write permission
        for answer in told:
            assert answer is not None
            kind, text, unknown = answer
            assert (kind, unknown) == ("StorageError", False)
            assert str(place.path) in text
            assert (
                "Permission denied. Nothing was changed. Give this user read and write permission"
                in text
            )
    folder.chmod(0o755)
    hidden.path.chmod(0o755 if os.geteuid() else 0o700)
    assert here.objects() == before
    assert sorted(path.name for path in folder.iterdir()) == ["here", "hidden"]
    with Queue(here.url) as q:
        assert q.stats().total == 4
