"""Hide passwords in DSNs."""

from __future__ import annotations

import re


def without_password(text: str) -> str:
    """A DSN, or a text with one, with `…` instead of the password."""
    text = re.sub(r"(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", r"\1…", text)
    return re.sub(r"(://[^:/@\s]*:)[^\s/]*@", r"\1…@", text)
