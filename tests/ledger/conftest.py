"""Fixtures of the ledger's tests."""

from __future__ import annotations

import pytest

from tests.ledger.places import Kind, Place, place_of


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables that a user has."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "any")


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    """A place without a ledger. Google's dialect is tested only where it differs."""
    kind: Kind = request.param
    return place_of(request, kind)
