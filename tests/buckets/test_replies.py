"""Replies of servers, as obstore quotes them, and the errors that callers get."""

from __future__ import annotations

import pytest

from casque import CasqueError, StorageError
from casque.buckets.replies import (
    AZURE,
    GCS,
    S3,
    ObjectRequest,
    Service,
    Verb,
    error_for,
    reply_in,
    says_absent,
)

ASKED = "Generic error: Error performing DELETE http://host/b/k in 3ms - Server returned non-2xx "
BATCH = "Generic error: Bulk delete request failed for key q/probe/1: "
RETAINED = (
    "<Error><Code>AccessDenied</Code><Message>Access denied.</Message><Details>Object "
    "&#39;b/q/probe/1&#39; is subject to bucket&#39;s retention policy or object retention and "
    "cannot be deleted or overwritten until 2027-01-01T00:00:00</Details></Error>"
)
LOCKED = (
    "<Error><Code>AccessDenied</Code><Message>Access Denied because object protected by object "
    "lock.</Message></Error>"
)
IMMUTABLE = "This operation is not permitted as the blob is immutable due to a policy."
SNAPSHOTS = "This operation is not permitted because the blob has snapshots."


def told(service: Service, verb: Verb, message: str) -> CasqueError:
    reply = reply_in(message)
    return error_for(ObjectRequest(service, "x://b/q", verb, "probe/1"), reply, OSError(message))


def refusal(service: Service, verb: Verb, message: str) -> str:
    error = told(service, verb, message)
    assert isinstance(error, StorageError)
    assert not error.outcome_unknown
    return str(error)


@pytest.mark.parametrize(
    ("service", "message", "says"),
    [
        (GCS, f"{ASKED}status code: 403 Forbidden: {RETAINED}", "Object 'b/q/probe/1' is subject"),
        (GCS, f"{ASKED}status code: 403: <Code>ObjectUnderActiveHold</Code>", "ActiveHold"),
        (S3, f"{ASKED}status code: 403: {LOCKED}", "object lock"),
        (AZURE, f"{BATCH}{IMMUTABLE} (code: 409)", "409 This operation is not permitted as"),
        (AZURE, f"{BATCH}{SNAPSHOTS} (code: 409)", "has snapshots"),
        (AZURE, f"{ASKED}status code: 409: <Code>SnapshotsPresent</Code>", "409 SnapshotsPresent"),
    ],
)
def test_a_refused_delete_says_that_the_object_is_locked(
    service: Service, message: str, says: str
) -> None:
    error = refusal(service, "delete", message)
    assert says in error
    assert "retention or immutability policy" in error
    assert "Allow" not in error


def test_a_plain_403_still_names_the_permission() -> None:
    plain = f"{ASKED}status code: 403 Forbidden: <Code>AccessDenied</Code><Message>No.</Message>"
    assert "Allow storage.objects.delete" in refusal(GCS, "delete", plain)
    batch = f"{BATCH}This request is not authorized to perform this operation. (code: 403)"
    assert "Allow …/blobs/delete" in refusal(AZURE, "delete", batch)


def test_a_delete_that_raced_another_request_has_an_unknown_outcome() -> None:
    for code in ("ConditionalRequestConflict", "OperationAborted"):
        error = told(S3, "delete", f"{ASKED}status code: 409 Conflict: <Code>{code}</Code>")
        assert isinstance(error, StorageError)
        assert error.outcome_unknown


def test_a_missing_object_in_a_batch_is_absent_and_a_missing_container_is_not() -> None:
    assert says_absent(reply_in(f"{BATCH}The specified blob does not exist. (code: 404)"))
    missing = f"{BATCH}The specified container does not exist. (code: 404)"
    assert not says_absent(reply_in(missing))
    assert "no such container" in refusal(AZURE, "delete", missing)


def test_an_empty_404_is_not_absent() -> None:
    empty = (
        "Error performing GET http://host/b/k in 3ms - Server returned non-2xx status code: 404 "
    )
    for message in (f"{empty}Not Found: ", f"{empty}Not Found: \n\nDebug source: …"):
        assert not says_absent(reply_in(message))
        assert "Check the endpoint" in refusal(S3, "read", message)


@pytest.mark.parametrize(("status", "pause_us"), [(429, 1_000_000), (503, 1_000_000), (500, 0)])
def test_a_server_that_is_busy_is_left_alone_for_a_second(status: int, pause_us: int) -> None:
    error = told(S3, "write", f"{ASKED}status code: {status}: <Code>SlowDown</Code>")
    assert isinstance(error, StorageError)
    assert error.retry_after_us == pause_us
