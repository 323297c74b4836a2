"""Replies: turns the replies of storage servers into errors.

S3, Google Cloud Storage and Azure use different error codes, and obstore, aioboto3 and
google-cloud-storage report them differently. This module turns each into a `Reply`, and a `Reply`
into an error that names the object and the remedy.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Literal, NamedTuple

from casque.errors import CASConflictError, CasqueError, StorageError
from casque.system.clock import SECOND_US

Verb = Literal["read", "write", "list", "delete"]


class Service(NamedTuple):
    """The words that one kind of object storage uses, for messages."""

    scheme: str
    holder: str
    """What the service calls the container of objects: a bucket, a container."""
    permissions: dict[Verb, str]
    credentials: str
    """How to set its credentials."""


S3 = Service(
    "s3",
    "bucket",
    {
        "read": "s3:GetObject",
        "write": "s3:PutObject",
        "list": "s3:ListBucket",
        "delete": "s3:DeleteObject",
    },
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, run `aws configure`, or give the host a role",
)
GCS = Service(
    "gs",
    "bucket",
    {
        "read": "storage.objects.get",
        "write": "storage.objects.create and storage.objects.delete",
        "list": "storage.objects.list",
        "delete": "storage.objects.delete",
    },
    "set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`",
)
AZURE = Service(
    "az",
    "container",
    {
        "read": "…/blobs/read (role Storage Blob Data Contributor)",
        "write": "…/blobs/write (role Storage Blob Data Contributor)",
        "list": "…/blobs/read (role Storage Blob Data Contributor)",
        "delete": "…/blobs/delete (role Storage Blob Data Contributor)",
    },
    "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or give the machine an identity",
)


class Reply(NamedTuple):
    """The HTTP status and the server's error code; or status None, and the reason in `text`."""

    status: int | None
    code: str
    text: str

    def __str__(self) -> str:
        if self.status is None:
            return self.text
        return " ".join(word for word in (str(self.status), self.code, self.text) if word)


class ObjectRequest(NamedTuple):
    """The operation and the object of a request, for messages."""

    service: Service
    bucket: str
    """The bucket's URL."""
    verb: Verb
    key: str


_NO_HOLDER = {
    "NoSuchBucket",
    "ContainerNotFound",
    "ContainerBeingDeleted",
    "AccountNotFound",
    "ResourceNotFound",
}
_NO_OBJECT = {"NoSuchKey", "BlobNotFound", "NotFound"}
_EXISTS = {"BlobAlreadyExists"}
_MET = {"ConditionalRequestConflict", "OperationAborted"}
"""S3 gave up on this request because another ran at the same time."""
_BAD_CREDENTIALS = {
    "AuthenticationFailed",
    "AuthenticationRequired",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidAuthenticationInfo",
    "InvalidToken",
    "NoAuthenticationInformation",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_LATER = {"RequestTimeout", "SlowDown", "ServerBusy", "OperationTimedOut", "InternalError"}
# The sources that a client asks when no credentials are configured.
_CREDENTIAL_SOURCES = (
    "/latest/api/token",
    "/latest/meta-data",
    "computeMetadata",
    "/metadata/identity",
    "/oauth2/",
    "credential",
)

BUSY_PAUSE_US = SECOND_US
"""How long to wait after a server replies that it is busy: obstore does not pass Retry-After on."""

_STATUS = re.compile(r"status code: (\d{3})")
# obstore sends a delete on Azure as a batch of one, whose answer has no code.
_OF_BATCH = re.compile(r"Bulk delete request failed for key [^:]*: (.*?)\.? \(code: (\d{3})\)")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]+)")
# Google's message is the same for every refusal; its details give the reason.
_DETAILS = re.compile(r"<Details>([^<\n]+)")
_LONGEST_TEXT = 200
_HELD = re.compile(r"(?i)retention|immutab|object ?lock|(active|legal|temporary|based) ?hold")
# A status that does not come from the storage: a 404 from these sources says nothing of an object.
_CREDENTIALS_REFUSED = re.compile(
    r"performing [A-Z]+ (https?://[^/ ]+)"
    r"/(?:latest/api/token|latest/meta-data/|computeMetadata/|metadata/identity/)\S* .*?"
    r"status code: (4(?!08|29)\d\d)"
)
_ASKED = re.compile(r"performing [A-Z]+ (https?://[^/ ]+)")


def reply_in(message: str) -> Reply:
    """Parse the reply from the text of an obstore error, which has no other fields."""
    told = message.partition("\n\nDebug source:")[0]
    source = _CREDENTIALS_REFUSED.search(told)
    if source is not None:
        return Reply(None, "", f"no credentials from {source[1]} (status {source[2]})")
    of_batch = _OF_BATCH.search(told)
    if of_batch is not None:
        return _of_batch(of_batch[1], int(of_batch[2]))
    status, code = _STATUS.search(told), _CODE.search(told)
    if status is None:
        if "redirect without LOCATION" in told:
            return Reply(301, "PermanentRedirect", "")
        asked = _ASKED.search(told)
        if asked is None or _is_of_credentials(told):
            return Reply(None, "", told)
        return Reply(None, "", f"no answer from {asked[1]} ({told.rpartition(' - ')[2]})")
    if code is not None:
        text = _DETAILS.search(told) or _MESSAGE.search(told)
        words = unescape(text[1])[:_LONGEST_TEXT].rstrip(".") if text else ""
        return Reply(int(status[1]), code[1], words)
    body = told[status.end() :].partition(": ")[2].strip()
    return Reply(int(status[1]), "unintelligible" if body else "", " ".join(body.split())[:80])


def _of_batch(text: str, status: int) -> Reply:
    if status == 404:  # noqa: PLR2004
        # Only the text distinguishes the two.
        return Reply(
            404, "ContainerNotFound" if "container does not" in text else "BlobNotFound", ""
        )
    return Reply(status, "", text)


def says_absent(reply: Reply) -> bool:
    """True if the reply to a read or a delete means that the object does not exist.

    A 404 counts only with the storage's own error code. A proxy, a wrong endpoint or an ingress
    without a route also replies with a 404, which does not mean that the queue is empty.
    """
    return reply.status == 404 and reply.code in _NO_OBJECT  # noqa: PLR2004


def says_conflict(reply: Reply) -> bool:
    """True if the reply to a conditional write means that the object was not as expected."""
    # On S3, If-Match on a missing object gives a 404. A 409 of S3 means that it gave up on a race,
    # and says nothing about the object. A 409 of Azure means that the object exists.
    return reply.status == 412 or says_absent(reply) or reply.code in _EXISTS  # noqa: PLR2004


def error_for(request: ObjectRequest, reply: Reply, cause: BaseException) -> CasqueError:
    """Return the error to raise for a reply that is not a success."""
    if request.verb == "write" and says_conflict(reply):
        return CASConflictError(f"{request.bucket}: {request.key} is not as expected.", cause=cause)
    what = f"{request.bucket}: cannot {request.verb} {request.key or 'its objects'}: {reply}"
    if _is_refusal(request.verb, reply):
        return StorageError(
            f"{what}. {_remedy(request, reply)}", cause=cause, outcome_unknown=False
        )
    done = {"write": "written", "delete": "deleted"}.get(request.verb)
    doubt = f"It may still have been {done}." if done else "Try again."
    error = StorageError(f"{what}. {doubt}", cause=cause, outcome_unknown=True)
    if reply.status in (429, 503):
        error.retry_after_us = BUSY_PAUSE_US
    return error


def _is_refusal(verb: Verb, reply: Reply) -> bool:
    """True if the server or this machine refused; otherwise the outcome is unknown."""
    if reply.status is None:
        return _is_of_credentials(reply.text)
    if reply.code in _NO_HOLDER or reply.status == 501:  # noqa: PLR2004
        return True
    if verb == "delete" and reply.status == 409:  # noqa: PLR2004
        return reply.code not in _MET
    if reply.status in (408, 409, 429) or reply.code in _LATER:
        return False
    return reply.status < 500  # noqa: PLR2004


def _remedy(request: ObjectRequest, reply: Reply) -> str:
    service = request.service
    if reply.status is None:
        return f"No credentials were found: {service.credentials}."
    if reply.code in _NO_HOLDER:
        return f"There is no such {service.holder}: create it first, or fix its name."
    if reply.code in _BAD_CREDENTIALS or reply.status == 401:  # noqa: PLR2004
        return f"The credentials are not accepted: {service.credentials}."
    match reply.status:
        case 403 if reply.code == "RequestTimeTooSkewed":
            return "This machine's clock is wrong: set it."
        case 403 | 409 if reply.status == 409 or _HELD.search(f"{reply.code} {reply.text}"):  # noqa: PLR2004
            return (
                "The object is locked by a retention or immutability policy, a hold or a lease. "
                f"A queue must be able to delete its objects: use a {service.holder} without these."
            )
        case 403:
            return _permission(request)
        case 404:
            return "Check the endpoint: this is not the 404 of an object storage."
        case 301 | 302 | 307 | 308:
            return f"The {service.holder} is elsewhere: set its region or its endpoint."
        case 501 if request.verb == "write":
            return "This server does not support conditional writes, which a queue needs."
        case _:
            return "Nothing was changed."


def _permission(request: ObjectRequest) -> str:
    needed = request.service.permissions[request.verb]
    if request.verb == "read" and request.service is not AZURE:
        listing = request.service.permissions["list"]
        return (
            f"Allow {needed}, and {listing} on the bucket itself: without {listing}, the server "
            "gives this answer for a missing object too."
        )
    return f"Allow {needed}."


def _is_of_credentials(text: str) -> bool:
    return any(source in text for source in _CREDENTIAL_SOURCES)
