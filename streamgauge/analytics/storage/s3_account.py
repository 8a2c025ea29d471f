"""The S3 account of this process, from the sources that AWS tools use.

Rules
1. The environment takes precedence over files: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`; else the
   profile `AWS_PROFILE` (`default`) in `AWS_SHARED_CREDENTIALS_FILE` (`~/.aws/credentials`).
2. `AWS_REGION` or `AWS_DEFAULT_REGION`, and `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`, likewise; else `region` and
   `endpoint_url` of that profile in `AWS_CONFIG_FILE` (`~/.aws/config`).
3. Keys are read when the store is attached. Roles of a machine or cluster and expiring keys are not supported.
4. An unreadable or invalid file counts as absent. No message contains keys.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Account:
    """Credentials and endpoint. `endpoint` None: AWS."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None
    endpoint: str | None = None


def account(environment: Mapping[str, str]) -> Account | None:
    """The account, None without one."""
    home = Path(environment.get("HOME") or "~").expanduser()
    profile = environment.get("AWS_PROFILE") or "default"
    kept = _section(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws/credentials", profile)
    config = _section(
        environment.get("AWS_CONFIG_FILE") or home / ".aws/config",
        profile if profile == "default" else f"profile {profile}",
    )
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        kept = {name.lower(): value for name, value in environment.items()}
    key_id, secret = kept.get("aws_access_key_id"), kept.get("aws_secret_access_key")
    if not key_id or not secret:
        return None
    named = environment.get
    return Account(
        key_id,
        secret,
        kept.get("aws_session_token") or None,
        named("AWS_REGION") or named("AWS_DEFAULT_REGION") or config.get("region"),
        named("AWS_ENDPOINT_URL_S3") or named("AWS_ENDPOINT_URL") or config.get("endpoint_url"),
    )


def _section(path: str | Path, name: str) -> Mapping[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(Path(path).read_text())
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    return parser[name] if parser.has_section(name) else {}
