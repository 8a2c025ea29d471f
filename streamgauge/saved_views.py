"""The setting `saved_views`: named addresses of the dashboard, as a table of the configuration file, JSON or flags."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from streamgauge.values import text_pairs

EXAMPLE = "rate limits=streams?status=429&range=24h"
MAX_VIEWS = 50
MAX_NAME_CHARS = 64
MAX_ADDRESS_CHARS = 2000
NOT_SAVED = frozenset({"token"})
"""URL parameters that a view leaves out."""
_PAGE = re.compile(r"[a-z]*")


class SavedView(NamedTuple):
    """A named page with its time range and filters."""

    name: str
    address: str
    """Relative to the dashboard: `PAGE?PARAMETERS`."""

    def __str__(self) -> str:
        """As the flag `--saved-views` accepts it."""
        return f"{self.name}={self.address}"


def parse_saved_views(value: object) -> tuple[SavedView, ...]:
    """A table of addresses by name, JSON text of it, or texts such as `EXAMPLE`. Raises ValueError."""
    pairs = text_pairs(value, what=f"a table of addresses by name, such as {EXAMPLE}")
    views = tuple(SavedView(_name(name), _address(name, address)) for name, address in pairs)
    names = [view.name for view in views]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{twice!r} is given twice. Choose another name")
    if len(views) > MAX_VIEWS:
        raise ValueError(f"there are {len(views)} views, above the limit of {MAX_VIEWS}")
    return views


def _name(name: Any) -> str:
    name = name.strip() if isinstance(name, str) else ""
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable() or "=" in name:
        raise ValueError(
            f"the name {name[:80]!r} is not text of 1 to {MAX_NAME_CHARS} characters without equals signs"
        )
    return str(name)


def _address(name: Any, address: Any) -> str:
    """The page and the parameters of an address, which may be copied from a browser. Its host and its token are left out."""
    parts = urlsplit(address.strip()) if isinstance(address, str) else None
    page = parts.path.rpartition("/")[2] if parts else ""
    if (
        parts is None
        or parts.scheme not in ("", "http", "https")
        or not (page or parts.query)
        or not _PAGE.fullmatch(page)
        or len(str(address)) > MAX_ADDRESS_CHARS
    ):
        raise ValueError(
            f"the address of {name!r} is not a page of the dashboard with parameters, such as in {EXAMPLE}"
        )
    kept = [(key, v) for key, v in parse_qsl(parts.query, keep_blank_values=True) if key not in NOT_SAVED]
    return f"{page}?{urlencode(kept)}" if kept else page
