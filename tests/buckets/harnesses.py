"""Harnesses: buckets on servers, as the suite needs them."""

from __future__ import annotations

from casque.buckets.port import Bucket
from casque.testing.racers import Limit, Opener
from casque.testing.rig import Tier


class ServedHarness:
    """A separate prefix on a server that any process can reach."""

    tier: Tier = "small"

    def __init__(self, opener: Opener, *limits: Limit) -> None:
        self.limits = frozenset(limits)
        self.opener: Opener | None = opener

    def open(self) -> Bucket:
        assert self.opener is not None
        return self.opener()
