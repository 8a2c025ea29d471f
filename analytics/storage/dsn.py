"""What may be shown of the address of a lake's catalog. No DuckDB is needed for it: a tap's image, which has none, shows
settings too.
"""

from __future__ import annotations

import re


def without_password(text: str) -> str:
    """A DSN, or what is said of one, with … where a password stands."""
    text = re.sub(r"(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", r"\1…", text)
    return re.sub(r"(://[^:/@\s]*:)[^\s/]*@", r"\1…@", text)
