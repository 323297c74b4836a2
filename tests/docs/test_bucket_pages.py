"""The pages on S3, Google and Azure allow what casque needs, and delete nothing that it needs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from casque.buckets import replies
from tests.docs.following import FENCE
from tests.docs.pages import DOCS
from tests.servers.others import MINISTACK, SEAWEEDFS

HOW_TO = DOCS / "how-to"
NAMES = ["use-s3", "use-r2-or-minio", "use-google-cloud-storage", "use-azure"]


def json_on(name: str) -> list[Any]:
    fences = FENCE.finditer((HOW_TO / f"{name}.md").read_text())
    return [json.loads(fence[2]) for fence in fences if fence[1] == "json"]


def test_the_policy_for_s3_allows_exactly_what_casque_needs() -> None:
    policy, _ = json_on("use-s3")
    objects, bucket = policy["Statement"]
    needed = set(replies.S3.permissions.values())
    assert {*objects["Action"], bucket["Action"]} == needed
    assert bucket["Action"] == replies.S3.permissions["list"]
    assert objects["Resource"] == f"{bucket['Resource']}/queues/mail/*"
    assert {"Condition", "Principal"} & (objects.keys() | bucket.keys()) == set()


def test_no_rule_deletes_objects_that_are_current() -> None:
    _, s3 = json_on("use-s3")
    [rule] = s3["Rules"]
    assert rule["Expiration"] == {"ExpiredObjectDeleteMarker": True}
    assert not {name for name in rule if "Transition" in name}
    [google] = json_on("use-google-cloud-storage")
    [rule] = google["rule"]
    assert rule["condition"].keys() == {"daysSinceNoncurrentTime", "matchesPrefix"}
    [azure] = json_on("use-azure")
    [rule] = azure["rules"]
    assert rule["definition"]["actions"].keys() == {"version"}


@pytest.mark.parametrize("name", NAMES)
def test_a_page_tells_how_to_check_the_bucket(name: str) -> None:
    text = (HOW_TO / f"{name}.md").read_text()
    assert re.search(
        r"^\$ queuectl enqueue --command true --store \S+://", text.replace("'", ""), re.MULTILINE
    )
    assert "is tested on" in text


def test_the_servers_on_the_page_are_those_of_the_tests() -> None:
    text = " ".join((HOW_TO / "use-r2-or-minio.md").read_text().split())
    assert f"SeaweedFS {SEAWEEDFS.version}" in text
    assert f"MiniStack {MINISTACK.version}" in text
