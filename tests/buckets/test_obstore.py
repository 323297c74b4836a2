"""The bucket on obstore: forks, the end of a process, addresses, time limits."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from casque import InvalidError, StorageError
from casque.buckets import obstore
from casque.buckets.obstore import ObstoreBucket, azure_bucket, gcs_bucket, s3_bucket
from casque.buckets.port import ABSENT, Bucket
from tests.servers.client import BucketServer
from tests.servers.fixtures import MakeBucket, unique_prefix
from tests.servers.openers import BUCKET, s3_of

ROOT = Path(__file__).parents[2]

COMMON = """
import asyncio, os, sys
from casque.buckets.port import ABSENT
from casque.errors import StorageError
from tests.servers.openers import s3_of

bucket = s3_of(sys.argv[1], sys.argv[2])

def use(bucket, key):
    return asyncio.run(bucket.put(key, b"1", expect=ABSENT))

def in_child(do):
    if (child := os.fork()) == 0:
        try:
            do()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
"""


def run(code: str, server: BucketServer, prefix: str = "") -> str:
    quiet = ["-W", "ignore::DeprecationWarning"]  # about a fork in a process with threads
    done = subprocess.run(
        [sys.executable, *quiet, "-c", COMMON + code, server.url, prefix or unique_prefix()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


def test_the_child_of_a_process_that_used_a_bucket_is_refused_at_once(
    bucket_server: BucketServer,
) -> None:
    # Even with its own bucket: obstore has one set of threads per process.
    said = run(
        """
use(bucket, "a")

def child():
    for one in (bucket, s3_of(sys.argv[1], "another")):
        for call in (one.get("a"), one.put("b", b"1", expect=ABSENT), one.list(), one.delete("a")):
            try:
                asyncio.run(call)
            except StorageError as error:
                assert not error.outcome_unknown
                print(error, flush=True)

in_child(child)
use(bucket, "c")
print("the parent goes on")
""",
        bucket_server,
    )
    *refusals, last = said.splitlines()
    assert len(refusals) == 8
    assert all('multiprocessing\'s "spawn"' in refusal for refusal in refusals)
    assert last == "the parent goes on"


def test_a_bucket_that_was_not_used_before_a_fork_works_in_the_children(
    bucket_server: BucketServer,
) -> None:
    run(
        """
in_child(lambda: use(bucket, "a"))
in_child(lambda: use(bucket, "b"))
use(bucket, "c")
""",
        bucket_server,
        prefix := unique_prefix(),
    )
    stored = bucket_server.objects(BUCKET, prefix)
    assert list(stored) == [f"{prefix}/{k}" for k in "abc"]


def test_a_program_that_ends_right_after_its_last_request_ends_well(
    bucket_server: BucketServer,
) -> None:
    # With obstore's coroutines, some of these would abort as the interpreter ends.
    for _ in range(5):
        run('use(bucket, "a")', bucket_server)


def test_a_request_may_be_made_while_the_interpreter_ends(bucket_server: BucketServer) -> None:
    said = run(
        """
import atexit
async def late():
    await bucket.put("late", b"1", expect=ABSENT)
    print((await bucket.get("late")).body, await bucket.get("missing"))
use(bucket, "a")
atexit.register(lambda: asyncio.run(late()))
""",
        bucket_server,
    )
    assert said == "b'1' None\n"


def test_a_program_that_gave_up_on_a_request_ends_without_its_answer() -> None:
    program = """
async def give_up():
    async with asyncio.timeout(0.1):
        await bucket.get("a")
try:
    asyncio.run(give_up())
except TimeoutError:
    print("given up", flush=True)
"""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-c", COMMON + program, url, "q"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"given up\n"
            assert child.wait(obstore.REQUEST_SECONDS / 2) == 0, "it waits for the request"


def test_a_request_that_is_answered_while_the_interpreter_ends_does_no_harm(
    bucket_server: BucketServer,
) -> None:
    bucket_server.delay(0.1, ["get"])
    for _ in range(2):
        run(
            """
garbage = [[number] for number in range(300_000)]  # to end takes a while
async def leave():
    asked = [asyncio.ensure_future(bucket.get("a")) for _ in range(30)]
    await asyncio.wait(asked, timeout=0.08)
asyncio.run(leave())
""",
            bucket_server,
        )


def test_a_request_that_takes_too_long_is_given_up(
    s3: MakeBucket, bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstore, "_GIVE_UP_SECONDS", 0.05)
    bucket_server.delay(0.5, ["get"], times=1)

    async def go(bucket: ObstoreBucket) -> None:
        with pytest.raises(StorageError, match=r"no answer within 0\.05 s") as caught:
            await bucket.get("a")
        assert caught.value.outcome_unknown
        await bucket.close()

    asyncio.run(go(s3()))


def test_many_requests_are_under_way_at_once(s3: MakeBucket, bucket_server: BucketServer) -> None:
    seen: list[int] = []

    async def go(bucket: Bucket) -> None:
        bucket_server.delay(0.2)

        async def put(number: int) -> None:
            await bucket.put(f"a/{number}", b"1", expect=ABSENT)
            seen.append(len(asyncio.all_tasks()))

        await asyncio.gather(*(put(number) for number in range(8)))
        await bucket.close()

    asyncio.run(go(s3()))
    assert bucket_server.hits() >= 8
    assert seen[0] > 1  # when the first was done, the others were not


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: s3_bucket(""), "write s3://name/prefix"),
        (lambda: s3_bucket("a/b"), "write s3://name/prefix"),
        (lambda: s3_bucket("b", "a//b"), "not empty and not dots"),
        (lambda: s3_bucket("b", "a/../b"), "not empty and not dots"),
        (lambda: s3_bucket("b", "a\nb"), "not empty and not dots"),
        (lambda: s3_bucket("b", endpoint="127.0.0.1:9000"), "the endpoint must be like"),
        (lambda: s3_bucket("b", endpoint="ftp://127.0.0.1"), "the endpoint must be like"),
        (lambda: s3_bucket("b", endpoint="http://[::1"), "the endpoint is not a URL"),
        (
            lambda: s3_bucket("b", endpoint="http://u:secret@127.0.0.1"),
            "must not contain a user and password",
        ),
        (lambda: azure_bucket("b", account_name="a", account_key="@@"), "Invalid Access Key"),
    ],
)
def test_an_invalid_address_is_refused_before_anything_is_sent(make: Any, says: str) -> None:
    with pytest.raises(InvalidError, match=says) as caught:
        make()
    assert "secret" not in str(caught.value)


def test_a_key_file_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/nobody/has/this.json")
    with pytest.raises(InvalidError, match=r"/nobody/has/this\.json"):
        gcs_bucket("b")


def test_a_machine_without_credentials_is_told_where_they_come_from(
    bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nobody")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nobody")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")  # no role, and no cloud

    async def go() -> None:
        bucket = s3_bucket(BUCKET, endpoint=bucket_server.url)
        with pytest.raises(StorageError, match="No credentials were found") as caught:
            await bucket.put("a", b"1", expect=ABSENT)
        assert not caught.value.outcome_unknown
        await bucket.close()

    asyncio.run(go())


def test_missing_options_come_from_the_environment(
    bucket_server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket_server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testtest")
    prefix = unique_prefix()

    async def go() -> None:
        bucket = s3_bucket(BUCKET, f"/{prefix}/")
        assert bucket.name == f"s3://{BUCKET}/{prefix}"
        await bucket.put("a", b"1", expect=ABSENT)
        await bucket.close()

    asyncio.run(go())
    assert bucket_server.objects(BUCKET, prefix)[f"{prefix}/a"] == b"1"


def test_prefixes_are_kept_apart(bucket_server: BucketServer) -> None:
    outer = unique_prefix()

    async def go() -> None:
        buckets = [
            s3_of(bucket_server.url, prefix) for prefix in (outer, f"{outer}/x", f"{outer}x")
        ]
        for number, bucket in enumerate(buckets):
            await bucket.put("log/1", b"%d" % number, expect=ABSENT)
        for number, bucket in enumerate(buckets):
            found = await bucket.get("log/1")
            assert found is not None
            assert found.body == b"%d" % number
            assert [one.key for one in await bucket.list("log/")] == ["log/1"]
            await bucket.close()

    asyncio.run(go())


def test_a_server_that_was_down_is_used_again_without_a_restart(tmp_path: Path) -> None:
    server = BucketServer(tmp_path)
    server.make_bucket(BUCKET)

    async def go() -> None:
        bucket = s3_of(server.url, "q")
        version = await bucket.put("a", b"1", expect=ABSENT)
        server.kill()
        with pytest.raises(StorageError) as caught:
            await bucket.get("a")
        assert caught.value.outcome_unknown
        server.restart()
        found = await bucket.get("a")
        assert found is not None
        assert found[:2] == (b"1", version)
        await bucket.close()

    asyncio.run(go())
    server.stop()


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_error_of_the_metadata_service_is_no_answer_of_the_storage(
    monkeypatch: pytest.MonkeyPatch, bucket_server: BucketServer, status: int
) -> None:
    # In particular, it does not mean that the object does not exist.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", bucket_server.url)
    bucket_server.fail(status, match="api/token", code="NoSuchKey")
    bucket = s3_bucket(BUCKET, "q", endpoint=bucket_server.url, region="us-east-1")
    for call in (lambda: bucket.get("a"), bucket.list, lambda: bucket.delete("a")):
        with pytest.raises(
            StorageError, match=f"status {status}.*No credentials were found"
        ) as told:
            asyncio.run(call())
        assert not told.value.outcome_unknown
    asyncio.run(bucket.close())
