"""The files of `aws configure` are used, and the environment takes precedence."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from casque import InvalidError
from casque.buckets.aws_profile import profile_options
from casque.buckets.obstore import s3_bucket
from casque.buckets.port import ABSENT
from tests.servers.client import BucketServer
from tests.servers.fixtures import unique_prefix
from tests.servers.openers import BUCKET


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = test\naws_secret_access_key = s%(cret\n"
        "[other]\naws_access_key_id = o\naws_secret_access_key = p\naws_session_token = t\n"
    )
    (tmp_path / "config").write_text(
        "[default]\nregion = eu-central-1\n[profile other]\nregion = eu-west-1\n"
        "[profile sso]\nsso_session = x\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def test_the_default_profile_is_used(bucket_server: BucketServer) -> None:
    assert profile_options() == {
        "region": "eu-central-1",
        "access_key_id": "test",
        "secret_access_key": "s%(cret",
    }

    async def go() -> None:
        bucket = s3_bucket(BUCKET, unique_prefix(), endpoint=bucket_server.url)
        await bucket.put("a", b"1", expect=ABSENT)
        await bucket.close()

    asyncio.run(go())


def test_the_profile_that_is_named_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert profile_options() == {
        "region": "eu-west-1",
        "access_key_id": "o",
        "secret_access_key": "p",
        "session_token": "t",
    }


def test_the_environment_takes_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mine")
    assert profile_options() == {"region": "eu-central-1"}
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert profile_options() == {}


@pytest.mark.parametrize("name", ["sso", "nobody"])
def test_a_named_profile_without_keys_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", name)
    with pytest.raises(InvalidError, match=f"'{name}' has no keys"):
        s3_bucket(BUCKET)


def test_files_that_are_missing_or_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("not a config")
    with pytest.raises(InvalidError, match="cannot be read"):
        profile_options()
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "missing"))
    assert profile_options() == {}
