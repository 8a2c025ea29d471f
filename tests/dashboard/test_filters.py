"""Texts of the time range, and views that readers save."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from streamgauge.dashboard import filters, page_settings
from tests.dashboard.app_test import metric_value, open_page, page_text
from tests.tables import tables


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("30m", timedelta(minutes=30)), ("3h", timedelta(hours=3)), (" 45 s ", timedelta(seconds=45)), ("2w", timedelta(days=14)),
        ("custom", None), ("3", None), ("0h", None), ("1s", None), ("9999999d", None), ("-3h", None),
    ],
)  # fmt: skip
def test_any_duration_is_a_range(text: str, length: timedelta | None) -> None:
    assert filters.length_of(text) == length


def test_range_of_the_address_is_any_duration(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = tables(streams_data).query("SELECT count(*) AS n FROM streams")["n"][0]
    app = open_page(streams_data, monkeypatch, range="40h", refresh="off")
    assert (metric_value(app, "Requests"), app.exception) == (str(requests), [])
    app = open_page(streams_data, monkeypatch, range="soon", refresh="off")
    assert "soon is not a duration" in page_text(app)
    assert not app.exception


def test_saved_views_are_kept_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(page_settings.ENV_DATA, str(tmp_path))
    monkeypatch.setenv(page_settings.ENV_SAVED_VIEWS, '{"errors": "errors?range=1h"}')
    page_settings.change_view(" slow ", "latency?range=6h")
    assert page_settings.saved_views() == [("errors", "errors?range=1h"), ("slow", "latency?range=6h")]
    for name, address in (("", "x"), ("a" * 61, "x"), ("a\nb", "x"), ("long", "x" * 8001)):
        with pytest.raises(ValueError, match=r"\d"):
            page_settings.change_view(name, address)
    for number in range(49):
        page_settings.change_view(str(number), "x")
    with pytest.raises(ValueError, match="at most 50 views"):
        page_settings.change_view("one more", "x")
    page_settings.change_view("slow", None)
    assert "slow" not in page_settings.own_views()
    (tmp_path / page_settings.VIEWS_FILE).write_text("{")
    assert page_settings.own_views() == {}
