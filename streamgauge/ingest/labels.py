"""Labels of requests, such as the team in a header: their settings, and their values. Pure.

The tap records the labels of headers and paths as fields `RECORDED` + name, with a client's session. `ship` and analytics read those
of bodies before the text is removed. Values are keyed hashes unless a label is declared plain, and plain values are identifiers
(`streamgauge.ingest.identifiers`). No other form of a value is recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from streamgauge.ingest.identifiers import identifier
from streamgauge.ingest.keyed_ids import MAX_VALUE_BYTES, keyed_hash, parse_session_header
from streamgauge.ingest.records import Conversation, Opened

RECORDED = "x-streamgauge-label-"
"""Start of the name of a recorded field. A client's own field of such a name is not recorded."""
MAX_LABELS = 8
HEADER, PATH, BODY, CLIENT_APP = "header", "path", "body", "client_app"
RESERVED = frozenset(
    (
        "app", "client", "dialect", "everything", "gateway", "model", "operation", "path", "provider", "server", "session",
        "streamed", "tap",
    )
)  # fmt: skip
"""Names of other dimensions."""
_LABEL = re.compile(
    r"([a-z][a-z0-9_]{0,30})=(header:[^\s:=]{1,64}|path:[1-9]|body:(?!__)[A-Za-z_]\w{0,63}(?:\.[\w-]{1,64}){0,4}|client_app)((?::plain|:prometheus)*)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, order=True)
class Label:
    """A label and where its value is."""

    name: str
    source: str
    """`header:NAME`, `path:N` (the part with this number, from 1), `body:MEMBER.MEMBER` or `client_app`."""
    plain: bool = False
    """Its values are recorded as they are, if they are identifiers. That of `client_app` always is."""
    prometheus: bool = False
    """It has metrics of its own."""

    @property
    def kind(self) -> str:
        return self.source.partition(":")[0]

    @property
    def key(self) -> str:
        """The part of the source after its kind."""
        return self.source.partition(":")[2]

    def __str__(self) -> str:
        """As the flag `--label` accepts it."""
        options = (":plain" if self.plain else "") + (":prometheus" if self.prometheus else "")
        return f"{self.name}={self.source}{options}"

    def recorded(self, value: object, key: bytes) -> str | None:
        """What is recorded of a value. None for one that is no text, or too long."""
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        text = value.strip() if isinstance(value, str) else ""
        if not 0 < len(text) <= MAX_VALUE_BYTES:
            return None
        if self.plain:
            return identifier(text)
        return keyed_hash(text.encode("utf-8", "surrogatepass"), key, kind=b"label")


def parse_label(text: str) -> Label:
    """The label of a flag: `NAME=SOURCE[:plain][:prometheus]`. Raises ValueError."""
    found = _LABEL.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f"{text[:80]!r} is not a label such as team=header:x-team:plain, user=body:metadata.user_id, tenant=path:1 or "
            "app=client_app"
        )
    name, source, options = found.groups()
    if name in RESERVED:
        raise ValueError(f"the name {name!r} has another meaning. Choose another name")
    if source.startswith("header:"):
        source = f"header:{parse_session_header(source[len('header:') :])[0]}"
    return Label(name, source, ":plain" in options, ":prometheus" in options)


class HeadLabels:
    """Takes the labels of a request's head."""

    def __init__(self, labels: Sequence[Label], key: bytes) -> None:
        self._key = key
        self._by_header: dict[bytes, list[Label]] = {}
        for label in labels:
            if label.kind == HEADER:
                self._by_header.setdefault(label.key.encode(), []).append(label)
        self._by_part = [(int(label.key), label) for label in labels if label.kind == PATH]

    def __bool__(self) -> bool:
        return bool(self._by_header or self._by_part)

    def recorded(self, fields: Iterable[Any], target: str) -> list[tuple[str, str]]:
        """The fields to record. `fields`: each with its `name` in lower case and its `value`. The first of a name counts."""
        found: dict[Label, object] = {}
        for field in fields:
            for label in self._by_header.get(field.name, ()):
                found.setdefault(label, field.value.decode("utf-8", "replace"))
        if self._by_part:
            parts = target.partition("?")[0].split("/")
            found |= {label: unquote(parts[n]) for n, label in self._by_part if n < len(parts)}
        recorded = [
            (RECORDED + label.name, label.recorded(value, self._key)) for label, value in found.items()
        ]
        return [(name, value) for name, value in recorded if value is not None]


def labels_of(
    labels: Sequence[Label], opened: Opened | None, conversation: Conversation | None, client_app: str | None
) -> dict[str, str] | None:
    """The labels of a stream by name, None without any."""
    if not labels:
        return None
    sent = dict(opened.headers) if opened is not None else {}
    in_body = conversation.labels if conversation is not None else None
    found = {}
    for label in labels:
        if label.kind == CLIENT_APP:
            value = client_app
        elif label.kind == BODY:
            value = (in_body or {}).get(label.name)
        else:
            value = sent.get(RECORDED + label.name)
        if value and (kept := identifier(value)):  # other programs may write to the log
            found[label.name] = kept
    return found or None
