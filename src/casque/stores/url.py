"""open_store: opens the store at an address, or returns a store unchanged.

An address is parsed first: that finds every mistake in it, and opens and imports nothing. Only
this module lists every store. It imports each one when it opens it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, TypeGuard, cast
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from casque.adapters.storage.port import ObjectStoragePort
from casque.buckets.port import Bucket
from casque.errors import InvalidError
from casque.stores.port import Store
from casque.system.clock import MINUTE_US, SECOND_US, Clock
from casque.system.durations import duration_us, told
from casque.system.local_disk import resolved_folder, resolved_path

Durability = Literal["full", "normal"]

StoreAddress = str | os.PathLike[str] | Store | Bucket | ObjectStoragePort
"""The address of a store: a URL, a path, a bucket, a two-method storage, or a store."""

_Opener = Callable[[Clock | None], Store]
"""Opens the store at an address that was parsed."""

_FORMS = (
    "memory:// (this process only), sqlite:///relative.db, sqlite:////absolute/jobs.db, "
    "json:///relative.json, json:////absolute/path.json, file:///folder, s3://bucket/prefix, "
    "gs://bucket/prefix, az://container/prefix, a path that ends in .db, .sqlite, .sqlite3 or "
    ".json, or the path of a folder"
)
SHORTEST_POLL_US, LONGEST_POLL_US = SECOND_US // 20, MINUTE_US
"""The range of a ledger's option `poll`."""

_FILE_SCHEMES = ("json", "sqlite")
_BUCKETS = {"s3": "s3", "gs": "gcs", "az": "azure"}
"""The schemes of cloud buckets, and the extra to install for each."""
_SCHEME = re.compile(r"(az|file|gs|json|memory|postgres|postgresql|s3|sqlite):(?!//)", re.ASCII)
_SQLITE_SUFFIXES = (".db", ".sqlite", ".sqlite3")


def open_store(address: StoreAddress, *, clock: Clock | None = None) -> Store:
    """The store at `address`. Nothing is read or written before its first use.

    `clock` replaces time, randomness and ids, for tests. If `address` is a Store, it keeps its
    own clock.
    """
    return _parsed(address)(clock)


def check_address(address: StoreAddress) -> None:
    """Raise InvalidError if no store can have this address. Opens nothing, loads no client."""
    _parsed(address)


def _parsed(address: StoreAddress) -> _Opener:
    if isinstance(address, type):
        raise InvalidError(
            f"{address.__name__} is a class; pass an instance: {address.__name__}(…)."
        )
    if is_store(address):
        return lambda _: address
    if isinstance(address, str):
        return _parsed_url(address) if "://" in address else _parsed_path(address)
    if isinstance(address, os.PathLike):
        return _parsed_path(os.fspath(address))
    if _has(address, "get", "put", "list", "delete"):
        return _parsed_bucket(address)
    if _has(address, "read", "write"):
        return partial(_open_storage, cast("ObjectStoragePort", address))
    raise InvalidError(
        f"{type(address).__name__} is not a store: pass a URL ({_FORMS}), a path, an object with "
        "`async read()` and `async write(content, if_match)`, or one with all methods of `Bucket`."
    )


def anchored(address: StoreAddress) -> StoreAddress:
    """Return the address with an absolute path, which is the same from every working folder."""
    if isinstance(address, str) and "://" in address:
        scheme, _, rest = address.partition(":///")
        if scheme not in _FILE_SCHEMES or rest.startswith(("/", "~", "?", ":")) or not rest:
            return address
        return f"{scheme}:///{quote(str(Path.cwd()))}/{rest}"
    if isinstance(address, str | os.PathLike):
        path = os.fspath(address)
        if path and not path.startswith("~") and not _SCHEME.match(path):
            # The trailing slash marks a folder, so keep it.
            return f"{Path(path).absolute()}/" if path.endswith("/") else Path(path).absolute()
    return address


def shared_address_of(address: StoreAddress, store: Store) -> str | None:
    """The address at which another process finds the store that was opened at `address`.

    None if it cannot: the store is in memory, or the caller passed an object.
    """
    if store.instant or not isinstance(address, str | os.PathLike):
        return None
    anchor = anchored(address)
    return anchor if isinstance(anchor, str) else os.fspath(cast("Path", anchor))


def is_store(address: object) -> TypeGuard[Store]:
    """True if this is a store. Checks for methods, so a wrapper of a store is one too."""
    return _has(address, "commit", "listen")


def _has(address: object, *methods: str) -> bool:
    return all(callable(getattr(address, name, None)) for name in methods)


def _parsed_url(url: str) -> _Opener:
    if not url.isprintable():
        raise InvalidError(
            f"{without_password(url)!r} contains a character that is not allowed in a URL; escape "
            "it, for example as %0A, or pass a path."
        )
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidError(f"{without_password(url)}: {error}. Use {_FORMS}.") from error
    if "#" in url:
        raise InvalidError(f"{without_password(url)}: write # as %23, or pass a path.")
    if parts.query and parts.scheme not in ("sqlite", "file", *_BUCKETS):
        raise InvalidError(f"{without_password(url)}: {parts.scheme}:// takes no options.")
    if parts.scheme in _BUCKETS:
        return _parsed_cloud(url, parts)
    if parts.scheme in ("file", *_FILE_SCHEMES):
        return _parsed_local(url, parts)
    if parts.scheme != "memory":
        raise InvalidError(
            f"{without_password(url)}: no store for scheme {parts.scheme!r}. Use {_FORMS}."
        )
    if parts.netloc or parts.path.strip("/"):
        raise InvalidError(
            f"{without_password(url)}: memory:// takes no path: each use of this address makes a "
            "separate store."
        )
    return _open_memory


def _parsed_local(url: str, parts: SplitResult) -> _Opener:
    """The store in a file or a folder on this machine."""
    scheme = parts.scheme
    if parts.netloc or len(parts.path) < 2:  # noqa: PLR2004 - a slash and a name
        suffix = "json" if scheme == "json" else "db"
        forms = (
            "file:///absolute/folder (three slashes), or pass a path"
            if scheme == "file"
            else f"{scheme}:///relative.{suffix} (three slashes) or "
            f"{scheme}:////absolute/path.{suffix} (four)"
        )
        raise InvalidError(f"{without_password(url)}: write {forms}.")
    path = unquote(parts.path)
    if scheme == "file":
        options = _options(url, parts, ("poll",))
        return partial(_open_folder, resolved_folder(path), _poll_us(url, options))
    if scheme == "json":
        return partial(_open_document, resolved_path(path[1:], "a queue file"))
    return _parsed_sqlite(path[1:], _durability(url, parts.query))


def _parsed_path(path: str) -> _Opener:
    if _SCHEME.match(path):
        raise InvalidError(f"{path!r} is neither a URL nor a path. Use {_FORMS}.")
    if Path(path).suffix == ".json":
        return partial(_open_document, resolved_path(path, "a queue file"))
    if Path(path).suffix in _SQLITE_SUFFIXES:
        return _parsed_sqlite(path, "full")
    if path.endswith("/") or _is_folder(path):
        return partial(_open_folder, resolved_folder(path), None)
    raise InvalidError(f"{path!r} does not say what kind of store it is. Use {_FORMS}.")


def _parsed_sqlite(path: str, durability: Durability) -> _Opener:
    if path == ":memory:":
        raise InvalidError("sqlite :memory: is not supported; use memory://.")
    # Resolved, so that a change of folder, or a link, still leads to the same file.
    return partial(_open_sqlite, resolved_path(path, "a queue file"), durability)


def _is_folder(path: str) -> bool:
    try:
        return path != "" and Path(path).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):
        return False


def _parsed_bucket(bucket: object) -> _Opener:
    """The store in a bucket that the caller created."""
    # Check its attributes too: otherwise a missing one fails much later, in other code.
    if not isinstance(bucket, Bucket):
        missing = [name for name in ("name", "blocking", "close") if not hasattr(bucket, name)]
        raise InvalidError(
            f"{type(bucket).__name__} is not a complete bucket: it lacks {' and '.join(missing)}. "
            "See `casque.Bucket`."
        )
    return partial(_open_bucket, bucket, None)


def _parsed_cloud(url: str, parts: SplitResult) -> _Opener:
    from casque.buckets.addresses import checked_endpoint, checked_prefix

    scheme, name = parts.scheme, without_password(url)
    if "@" in parts.netloc or ":" in parts.netloc or not parts.netloc:
        raise InvalidError(
            f"{name}: write {scheme}://name/prefix. Credentials come from the environment; set "
            "another server with ?endpoint=…."
        )
    places = ("endpoint", "region") if scheme == "s3" else ("endpoint",)
    options = _options(url, parts, (*places, "poll"))
    prefix = checked_prefix(scheme, parts.netloc, unquote(parts.path))
    checked_endpoint(options.get("endpoint"))
    return partial(_open_cloud, url, prefix, options, _poll_us(url, options))


def _options(url: str, parts: SplitResult, known: Sequence[str]) -> dict[str, str]:
    """Return the options of a ledger's URL."""
    name, given = without_password(url), parse_qs(parts.query, keep_blank_values=True)
    options = {key: values[-1] for key, values in given.items()}
    if unknown := [key for key in options if key not in known]:
        *others, last = known
        listed = f"options are {', '.join(others)} and {last}" if others else f"option is {last}"
        raise InvalidError(
            f"{name}: {parts.scheme}:// takes no option {', '.join(unknown)}; its {listed}."
        )
    if empty := [key for key, value in options.items() if not value]:
        raise InvalidError(f"{name}: option {', '.join(empty)} is empty: set it or remove it.")
    return options


def _poll_us(url: str, options: dict[str, str]) -> int | None:
    """Take the option `poll` out of the options; None if it is not there."""
    text = options.pop("poll", None)
    if text is None:
        return None
    what = f"{without_password(url)}: poll"
    poll_us = duration_us(text, what, at_least_us=SHORTEST_POLL_US)
    if poll_us > LONGEST_POLL_US:
        raise InvalidError(f"{what}: {text!r} is too long: at most {told(LONGEST_POLL_US)}.")
    return poll_us


def _durability(url: str, query: str) -> Durability:
    options = parse_qs(query, keep_blank_values=True)
    wanted = options.pop("durability", ["full"])[-1]
    if options:
        raise InvalidError(
            f"{url}: sqlite:// takes no option {', '.join(options)}; its option is `durability`."
        )
    if wanted == "full":
        return "full"  # synced at every commit: survives power loss
    if wanted == "normal":
        return "normal"  # survives the death of any process, not power loss
    raise InvalidError(
        f"{url}: durability must be full (survives power loss) or normal (survives the death of a "
        f"process), not {wanted!r}."
    )


def without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    scheme, _, user = head.partition("://")
    return f"{scheme}://{user.partition(':')[0]}:…@{tail}" if at and ":" in user else url


# -- opening -----------------------------------------------------------------------


def _open_memory(clock: Clock | None) -> Store:
    from casque.stores.memory import MemoryStore

    return MemoryStore(clock)


def _open_sqlite(path: Path, durability: Durability, clock: Clock | None) -> Store:
    from casque.stores.sqlite.store import SqliteStore

    return SqliteStore(path, durability=durability, clock=clock)


def _open_document(path: Path, clock: Clock | None) -> Store:
    from casque.adapters.storage.filesystem import LocalFileSystemStorage

    return _open_storage(LocalFileSystemStorage(path), clock)


def _open_storage(storage: ObjectStoragePort, clock: Clock | None) -> Store:
    from casque.stores.document.store import DocumentStore

    return DocumentStore(storage, clock)


def _open_folder(path: Path, poll_us: int | None, clock: Clock | None) -> Store:
    from casque.buckets.folder import FolderBucket

    return _open_bucket(FolderBucket(path, clock), poll_us, clock)


def _open_bucket(bucket: Bucket, poll_us: int | None, clock: Clock | None) -> Store:
    from casque.stores.ledger.store import LedgerStore

    return LedgerStore(bucket, clock, poll_us=poll_us)


def _open_cloud(
    url: str, prefix: str, options: dict[str, str], poll_us: int | None, clock: Clock | None
) -> Store:
    scheme, bucket = urlsplit(url)[:2]
    try:
        from casque.buckets.obstore import azure_bucket, gcs_bucket, s3_bucket
    except ImportError as error:
        raise InvalidError(
            f"{url}: {scheme}:// needs a package that is not installed: pip install "
            f"'casque[{_BUCKETS[scheme]}]'.",
            cause=error,
        ) from error
    makers: dict[str, Callable[..., Bucket]]
    makers = {"s3": s3_bucket, "gs": gcs_bucket, "az": azure_bucket}
    return _open_bucket(makers[scheme](bucket, prefix, **options), poll_us, clock)
