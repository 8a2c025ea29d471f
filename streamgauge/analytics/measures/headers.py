"""Values taken from recorded header fields: the fields stored in the tables, the request id, the client's program, the server
instance. No I/O, no clock.

`streamgauge.ingest.header_fields` decides which names are recorded and which part of a value is kept. Ids have columns of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from streamgauge.ingest.header_fields import REQUEST_IDS, SERVER_INSTANCES, is_stored, recorded_value
from streamgauge.ingest.identifiers import identifier, is_name
from streamgauge.ingest.identifiers import name as name_of

MAX_FIELDS = 40
_encode = msgspec.json.Encoder().encode
Headers = Sequence[tuple[str, str]]


def stored_headers(headers: Headers) -> str | None:
    """The stored fields of a request or response as a JSON object, None if there are none."""
    kept: dict[str, str] = {}
    for name, value in headers:
        if len(kept) == MAX_FIELDS:
            break
        if value and is_stored(name):
            kept.setdefault(name, recorded_value(name, value))
    return _encode(kept).decode() if kept else None


def request_id_of(request_headers: Headers, response_headers: Headers) -> str | None:
    """The client's `x-request-id`, else the server's request id under any known name."""
    found = next((value for name, value in request_headers if name == "x-request-id" and value), None)
    return identifier(found) if found is not None else _first_id(response_headers, REQUEST_IDS)


_APP = re.compile(r"([^\s/();,]+(?:/[A-Za-z][^\s/();,]*)?)(?:[/ ]v?(\d[^\s/();,]*))?")
"""`claude-cli/2.1.90 (external, cli)`, `OpenAI/Python 2.8.0`, `curl/8.5.0`."""


def client_app_of(headers: Headers) -> str | None:
    """`name/version` of the program that sent the request. SDKs may have the version in a field of their own."""
    sent = dict(reversed(headers))
    found = _APP.match(sent.get("user-agent", ""))
    app, version = found.groups() if found else (None, None)
    originator = sent.get("originator")
    if originator and is_name(originator):  # Codex and programs that embed it
        app = originator
    version = version or sent.get("x-stainless-package-version")
    return name_of(f"{app}/{version}" if app and version else app)


def server_instance_of(response_headers: Headers) -> str | None:
    """The server process that answered."""
    return _first_id(response_headers, SERVER_INSTANCES)


def _first_id(headers: Headers, names: Sequence[str]) -> str | None:
    """The value of the first of `names` that has one. The first value of a repeated field counts."""
    if not headers:
        return None
    # Reversed, because the last assignment wins in a dict, and the first value of a repeated field counts.
    sent = {name: value for name, value in reversed(headers) if value}
    return identifier(next((sent[name] for name in names if name in sent), None))
