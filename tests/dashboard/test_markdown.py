"""Names of streams and of addresses are text on every page, whatever Markdown they contain."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tests.dashboard.app_test import VIEWS, open_page
from tests.dashboard.generated_store import filling, insert

IMAGE = "![x](http://127.0.0.1:9/p)"
STREAM = UUID(int=3)
AS_IMAGE = re.compile(r"(?<!\\)!\[x")
"""Unlike the escaped signs."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("markdown")
    at = datetime.now(UTC) - timedelta(minutes=5)
    with filling(folder) as connection:
        insert(connection, "streams", [
            {"stream_id": UUID(int=n), "started_at": at, "outcome": "http_error" if n % 2 else "ok", "request_model": IMAGE,
             "gateway": IMAGE, "client_id": IMAGE, "client_app": IMAGE, "finish_reason": IMAGE, "error_type": IMAGE,
             "error_message": IMAGE, "ttft_ns": 10**9, "end_ns": 2 * 10**9, "session_id": IMAGE, "trace_id": f"{n:032x}"}
            for n in range(1, 30)
        ])  # fmt: skip
    return folder


@pytest.mark.parametrize("view", VIEWS)
def test_markdown_in_names_and_addresses_is_text(
    data: Path, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    hostile = dict.fromkeys(("model", "gateway", "client", "app", "range", "session", "trace", "by"), IMAGE)
    own = {"stream": {"id": IMAGE}, "sql": {"sql": f"FROM {IMAGE}"}, "sessions": {"session": IMAGE}}.get(
        view, {}
    )
    for query in (
        hostile | {"label": f"team={IMAGE}"} | own,
        {"id": str(STREAM)} if view == "stream" else {},
    ):
        app = open_page(data, monkeypatch, view, **query)
        assert not app.exception
        shown = [
            str(text)
            for kind in (app.markdown, app.caption, app.info, app.warning, app.error, app.success)
            for element in kind
            for text in (element.value, element.proto.help if hasattr(element.proto, "help") else "")
        ]
        assert [text for text in shown if AS_IMAGE.search(text)] == []
