"""The form of a webhook's URL, which is a secret."""

from __future__ import annotations

from urllib.parse import urlsplit


def check_url(url: str) -> None:
    """Raise ValueError, without the URL, unless it is one of http or https with a host."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("the value is not an http or https URL")
