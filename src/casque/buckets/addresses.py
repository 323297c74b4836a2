"""Addresses: checks the parts of a bucket's address, without the package that opens it."""

from __future__ import annotations

from urllib.parse import urlsplit

from casque.errors import InvalidError


def checked_path(path: str) -> str:
    """Return the path without slashes around it. Raises InvalidError if it cannot name objects."""
    path = path.strip("/")
    parts = path.split("/") if path else []
    if any(part in ("", ".", "..") or not part.isprintable() for part in parts):
        raise InvalidError(f"{path!r}: each part of a path must be a name, not empty and not dots.")
    return path


def checked_prefix(scheme: str, bucket: str, prefix: str) -> str:
    """Return the prefix without slashes around it. Raises InvalidError if either is no name."""
    if not bucket or "/" in bucket:
        raise InvalidError(f"{scheme}://{bucket} names no bucket: write {scheme}://name/prefix.")
    return checked_path(prefix)


def checked_endpoint(endpoint: str | None) -> str | None:
    """Return the endpoint without a slash at its end. Raises InvalidError if it is no URL."""
    if endpoint is None:
        return None
    try:
        parts = urlsplit(endpoint)
    except ValueError as error:
        raise InvalidError(f"the endpoint is not a URL: {error}.", cause=error) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidError("the endpoint must be like https://host or http://127.0.0.1:9000.")
    if parts.username or parts.password:
        raise InvalidError(
            "an endpoint must not contain a user and password; use the environment instead."
        )
    return endpoint.rstrip("/")
