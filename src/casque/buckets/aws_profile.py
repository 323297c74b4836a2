"""AWS profiles: the keys and the region that `aws configure` wrote, which obstore does not read."""

from __future__ import annotations

import configparser
import os
from pathlib import Path

from casque.errors import InvalidError

# If any of these is set, obstore finds credentials by itself.
_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_KEYS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}


def profile_options() -> dict[str, str]:
    """Return the profile's keys and region, where set, as options for obstore.

    AWS_PROFILE names the profile; the default is `default`. Environment variables take precedence
    over the profile. Raises InvalidError if AWS_PROFILE names a profile without keys: only AWS's
    own tools support profiles that fetch their keys.
    """
    named = os.environ.get("AWS_PROFILE")
    profile = named or "default"
    config = _section("AWS_CONFIG_FILE", "config", f"profile {profile}" if named else profile)
    found: dict[str, str] = {}
    if "region" in config and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys():
        found["region"] = config["region"]
    if any(source in os.environ for source in _SOURCES):
        return found
    stored = {**config, **_section("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile)}
    found |= {option: stored[key] for option, key in _KEYS.items() if key in stored}
    if named and "access_key_id" not in found:
        raise InvalidError(
            f"the AWS profile {named!r} has no keys. Run `eval $(aws configure "
            "export-credentials --format env)` first, or unset AWS_PROFILE."
        )
    return found


def _section(variable: str, file: str, name: str) -> dict[str, str]:
    path = Path(os.environ.get(variable) or f"~/.aws/{file}").expanduser()
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(path)
    except configparser.Error as error:
        raise InvalidError(f"{path} cannot be read: {error}", cause=error) from error
    return dict(parser[name]) if parser.has_section(name) else {}
