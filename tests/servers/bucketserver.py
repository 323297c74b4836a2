"""Our own bucket server, in a separate process, with faults that tests switch on.

Run as `python -m tests.servers.bucketserver [--port N] [--folder D]`. It prints
its port, and ends when its standard input does. With a folder, its objects
survive its end.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.servers.dialects import Answer, Asked, Dialect, condition_of, dialect_of, parse
from tests.servers.objects import NoSuchBucketError, Objects
from tests.servers.switches import Switches

CONTROL = "/-/"


class Server(ThreadingHTTPServer):
    """The objects, the switches, and the counts of requests."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, folder: Path | None) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.objects = Objects(folder)
        self.switches = Switches()
        self.counts: Counter[str] = Counter()
        self._counting = threading.Lock()

    def count(self, verb: str) -> None:
        with self._counting:
            self.counts[verb] += 1


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body in one packet, or the second waits for an acknowledgement

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = parse(self.command, self.path, self.headers, body)
        answer = self._control(asked) if asked.path.startswith(CONTROL) else self._object(asked)
        if answer is None:
            self.close_connection = True
        else:
            self._send(answer)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - http.server's names

    def handle_expect_100(self) -> bool:
        may = super().handle_expect_100()
        self.wfile.flush()  # the client sends no body before this
        return may

    def _object(self, asked: Asked) -> Answer | None:
        """Return the answer to a request for an object, with the faults; None: hang up."""
        server, dialect = self.server, dialect_of(asked)
        wanted = dialect.wanted(asked)
        server.count(wanted.verb)
        hit = server.switches.strike(wanted.verb, wanted.key)
        if "delay" in hit:
            time.sleep(hit["delay"].seconds)
        if "drop" in hit:
            return None
        if "pace" in hit and server.objects.was_just_written(wanted.bucket, wanted.key):
            return dialect.error(429)
        failing = hit.get("status")
        if failing is not None and not failing.carried_out:
            return dialect.error(failing.status, failing.code)
        blind = hit.get("ignore_conditions")
        is_blind = blind is not None and blind.only in (None, condition_of(asked))
        late = hit.get("check_then_write")
        if late is not None and server.objects.get(wanted.bucket, wanted.key) is None:
            time.sleep(late.seconds)
            is_blind = True
        answer = self._carried_out(dialect, asked, blind=is_blind)
        if "lose" in hit:
            return None
        if failing is not None:
            return dialect.error(failing.status, failing.code)
        if "hide_missing" in hit and answer.status == 404 and wanted.verb == "get":
            return dialect.error(403)
        return answer

    def _carried_out(self, dialect: Dialect, asked: Asked, *, blind: bool) -> Answer:
        refusal = dialect.refusal(asked)
        if refusal is not None:
            return refusal
        try:
            return dialect.answer(self.server.objects, asked, dialect.wanted(asked), blind=blind)
        except NoSuchBucketError:
            return dialect.error(404, "NoSuchBucket")

    def _control(self, asked: Asked) -> Answer:
        server, objects = self.server, self.server.objects
        told: dict[str, Any] = json.loads(asked.body) if asked.body else {}
        answer: Any = None
        match asked.path.removeprefix(CONTROL):
            case "switch":
                server.switches.add(told)
            case "clear":
                server.switches.clear()
            case "hits":
                answer = server.switches.hits()
            case "counts":
                answer = dict(server.counts)
            case "clock":
                objects.clock_shift += told["seconds"]
            case "make":
                objects.make(told["bucket"])
            case "objects":
                with objects.lock:
                    answer = {
                        key: base64.b64encode(stored.body).decode()
                        for key, stored in sorted(objects.bucket(told["bucket"]).items())
                        if key.startswith(told["prefix"])
                    }
            case "put":
                body = base64.b64decode(told["body"])
                objects.put(told["bucket"], told["key"], body, etag=None, generation=None)
            case "delete":
                objects.delete(told["bucket"], told["key"])
            case unknown:
                return Answer(404, unknown.encode())
        return Answer(200, json.dumps(answer).encode())

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Log nothing."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    server = Server(options.port, options.folder)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # ends when the parent is done or dead
    os._exit(0)


if __name__ == "__main__":
    main()
