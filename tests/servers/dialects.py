"""Dialects: the requests of each kind of client, and the answers to them.

S3's as obstore and aioboto3 use it, Google's XML as obstore uses it, and the part
of Google's JSON that google-cloud-storage uses for whole objects. The path and the
authorization of a request show its dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.message import Message
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.servers.objects import Objects, Stored, UnmetError
from tests.servers.switches import Condition, Verb

ACCESS_KEY = "test"
"""The only accepted access key id; secrets and signatures are not checked."""
REFUSED_TOKEN = "refused"
"""The only bearer token that is refused."""
PAGE = 1_000

_CODES = {
    400: "InvalidRequest",
    401: "AuthenticationRequired",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "ConditionalRequestConflict",
    412: "PreconditionFailed",
    429: "SlowDown",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}


class Asked(NamedTuple):
    """A request, parsed as far as all dialects agree."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Message
    body: bytes


class Answer(NamedTuple):
    """A response."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Wanted(NamedTuple):
    """The operation and the object of a request."""

    verb: Verb
    bucket: str
    key: str


def parse(method: str, target: str, headers: Message, body: bytes) -> Asked:
    parts = urlsplit(target)
    query = {k: v[-1] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
    return Asked(method, parts.path, query, headers, body)


class Xml:
    """S3's dialect; and Google's XML, which differs in its conditions and its versions."""

    def __init__(self, *, google: bool) -> None:
        self.google = google

    def wanted(self, asked: Asked) -> Wanted:
        bucket, _, key = asked.path.lstrip("/").partition("/")
        key = unquote(key)
        if not key and asked.method == "GET":
            return Wanted("list", unquote(bucket), asked.query.get("prefix", ""))
        verbs: dict[str, Verb] = {"GET": "get", "HEAD": "get", "PUT": "put", "DELETE": "delete"}
        return Wanted(verbs[asked.method], unquote(bucket), key)

    def refusal(self, asked: Asked) -> Answer | None:
        told = asked.headers.get("Authorization", "")
        if self.google:
            refused = told == f"Bearer {REFUSED_TOKEN}"
            return self.error(401, "AuthenticationRequired") if refused else None
        key = re.search(r"Credential=([^/]*)/", told)
        if key is not None and key[1] != ACCESS_KEY:
            return self.error(403, "InvalidAccessKeyId")
        return None

    def answer(self, objects: Objects, asked: Asked, wanted: Wanted, *, blind: bool) -> Answer:
        if asked.method == "PUT" and not wanted.key:
            objects.make(wanted.bucket)
            return Answer(200)
        match wanted.verb:
            case "list":
                return self._list(objects, asked, wanted.bucket)
            case "put":
                return self._put(objects, asked, wanted, blind=blind)
            case "delete":
                found = objects.delete(wanted.bucket, wanted.key)
                return Answer(204) if found or not self.google else self.error(404)
            case "get":
                stored = objects.get(wanted.bucket, wanted.key)
                if stored is None:
                    return self.error(404)
                return Answer(200, stored.body, self._headers(stored))

    def _put(self, objects: Objects, asked: Asked, wanted: Wanted, *, blind: bool) -> Answer:
        etag, generation = self._condition(asked.headers)
        if blind:
            etag = generation = None
        if etag and objects.get(wanted.bucket, wanted.key) is None:
            return self.error(404)  # S3's answer to If-Match on a missing object
        try:
            stored = objects.put(
                wanted.bucket, wanted.key, asked.body, etag=etag, generation=generation
            )
        except UnmetError:
            return self.error(412)
        return Answer(200, b"", self._headers(stored))

    def _condition(self, headers: Message) -> tuple[str | None, int | None]:
        if self.google:
            told = headers.get("x-goog-if-generation-match")
            return None, None if told is None else int(told)
        if headers.get("If-None-Match") == "*":
            return "", None
        return headers.get("If-Match"), None

    def _headers(self, stored: Stored) -> dict[str, str]:
        headers = {
            "ETag": stored.etag,
            "Last-Modified": formatdate(stored.modified, usegmt=True),
        }
        if self.google:
            headers["x-goog-generation"] = str(stored.generation)
        return headers

    def _list(self, objects: Objects, asked: Asked, bucket: str) -> Answer:
        query = asked.query
        after = unquote(query.get("continuation-token", "")) or query.get("start-after", "")
        limit = min(int(query.get("max-keys", PAGE)), PAGE)
        with objects.lock:
            keys, more = objects.list(bucket, query.get("prefix", ""), after, limit)
            rows = "".join(self._row(key, objects.bucket(bucket)[key]) for key in keys)
        token = f"<NextContinuationToken>{quote(keys[-1])}</NextContinuationToken>" if more else ""
        return Answer(
            200,
            f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult><Name>{escape(bucket)}</Name>"
            f"<KeyCount>{len(keys)}</KeyCount><MaxKeys>{limit}</MaxKeys><IsTruncated>"
            f"{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>".encode(),
            {"Content-Type": "application/xml"},
        )

    def _row(self, key: str, stored: Stored) -> str:
        modified = datetime.fromtimestamp(int(stored.modified), UTC)
        generation = f"<Generation>{stored.generation}</Generation>" if self.google else ""
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>{modified:%Y-%m-%dT%H:%M:%S}.000Z"
            f"</LastModified><ETag>{escape(stored.etag)}</ETag><Size>{len(stored.body)}</Size>"
            f"{generation}<StorageClass>STANDARD</StorageClass></Contents>"
        )

    def error(self, status: int, code: str | None = None) -> Answer:
        if code == "":  # like an ingress without such a route
            return Answer(status)
        told = code or _CODES.get(status, "Error")
        body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{told}</Code></Error>"
        return Answer(status, body.encode(), {"Content-Type": "application/xml"})


class Json:
    """The part of Google's JSON interface that reads and writes whole objects."""

    _PLACE = re.compile(r"/(?:upload/|download/)?storage/v1/b/([^/]+)/o(?:/(.+))?")

    def wanted(self, asked: Asked) -> Wanted:
        place = self._PLACE.fullmatch(asked.path)
        assert place is not None, asked.path
        if asked.method == "POST":
            name = asked.query.get("name") or _upload(asked)[0]
            return Wanted("put", unquote(place[1]), name)
        verb: Verb = "delete" if asked.method == "DELETE" else "get"
        return Wanted(verb, unquote(place[1]), unquote(place[2] or ""))

    def refusal(self, asked: Asked) -> Answer | None:
        refused = asked.headers.get("Authorization") == f"Bearer {REFUSED_TOKEN}"
        return self.error(401) if refused else None

    def answer(self, objects: Objects, asked: Asked, wanted: Wanted, *, blind: bool) -> Answer:
        told = asked.query.get("ifGenerationMatch")
        generation = None if told is None or blind else int(told)
        if wanted.verb == "put":
            try:
                stored = objects.put(
                    wanted.bucket, wanted.key, _upload(asked)[1], etag=None, generation=generation
                )
            except UnmetError:
                return self.error(412)
            return self._metadata(wanted, stored)
        stored_or_none = objects.get(wanted.bucket, wanted.key)
        if stored_or_none is None:
            return self.error(404)
        if generation is not None and generation != stored_or_none.generation:
            return self.error(412)
        if wanted.verb == "delete":
            objects.delete(wanted.bucket, wanted.key)
            return Answer(204)
        if asked.query.get("alt") == "media":
            headers = {"x-goog-generation": str(stored_or_none.generation)}
            return Answer(200, stored_or_none.body, headers)
        return self._metadata(wanted, stored_or_none)

    def _metadata(self, wanted: Wanted, stored: Stored) -> Answer:
        told = {
            "kind": "storage#object",
            "bucket": wanted.bucket,
            "name": wanted.key,
            "generation": str(stored.generation),
            "metageneration": "1",
            "size": str(len(stored.body)),
            "etag": stored.etag,
        }
        return Answer(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def error(self, status: int, code: str | None = None) -> Answer:
        words = {"NoSuchBucket": "The specified bucket does not exist."}
        message = words.get(code or "") or code or _CODES.get(status, "Error")
        told = {"error": {"code": status, "message": message}}
        return Answer(status, json.dumps(told).encode(), {"Content-Type": "application/json"})


Dialect = Xml | Json
_S3 = Xml(google=False)
_GOOGLE_XML = Xml(google=True)
_GOOGLE_JSON = Json()


def dialect_of(asked: Asked) -> Dialect:
    if asked.path.startswith(("/storage/v1/", "/upload/storage/v1/", "/download/storage/v1/")):
        return _GOOGLE_JSON
    return _GOOGLE_XML if asked.headers.get("Authorization", "").startswith("Bearer ") else _S3


def condition_of(asked: Asked) -> Condition:
    """Return the kind of condition that a write has."""
    told = asked.headers.get("x-goog-if-generation-match") or asked.query.get("ifGenerationMatch")
    creates = told == "0" if told else "If-None-Match" in asked.headers
    return "create" if creates else "update"


def _upload(asked: Asked) -> tuple[str, bytes]:
    """Return the name and the content of an upload, multipart or plain."""
    if asked.query.get("uploadType") != "multipart":
        return asked.query["name"], asked.body
    boundary = f"--{asked.headers.get_param('boundary')}".encode()
    _, metadata, media, _ = asked.body.split(boundary)
    name: str = json.loads(metadata.partition(b"\r\n\r\n")[2])["name"]
    return name, media.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n")
