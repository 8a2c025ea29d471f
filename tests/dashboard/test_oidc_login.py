"""Signing in: who is admitted, what a file must say, that nothing is shown before, and the whole way with a real provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboard import launch, oidc_login
from dashboard.launch import DashboardOptions
from tests.dashboard.app_test import open_page, page_text

FILE = """
[auth]
redirect_uri = "http://127.0.0.1:1/oauth2callback"
cookie_secret = "0123456789abcdef0123456789abcdef"
client_id = "streamgauge"
client_secret = "secret"
server_metadata_url = "http://127.0.0.1:1/.well-known/openid-configuration"
[streamgauge]
admit = ["ann@example.com", "@example.org"]
"""


@pytest.mark.parametrize(
    ("user", "admitted"),
    [
        ({"email": "ann@example.com"}, True),
        ({"email": "ANN@Example.com", "email_verified": True}, True),
        ({"email": "bob@example.org"}, True),
        ({"email": "bob@example.com"}, False),
        ({"email": "ann@example.com", "email_verified": False}, False),
        ({"email": "ann@example.com.evil.test"}, False),
        ({"email": "@example.org@evil.test"}, False),
        ({"email": "evilexample.org"}, False),
        ({"name": "ann@example.com"}, False),
        ({}, False),
    ],
)
def test_only_who_is_named_is_admitted(user: dict[str, object], admitted: bool) -> None:
    assert oidc_login.admits(user, ["Ann@example.com", "@example.org"]) is admitted


def test_without_a_list_the_provider_decides() -> None:
    assert oidc_login.admits({}, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[auth", "is no TOML"),
        ("", "lacks redirect_uri, cookie_secret, client_id, client_secret, server_metadata_url"),
        (FILE.replace('client_secret = "secret"', ""), "lacks client_secret in"),
        (FILE.replace("0123456789abcdef0123456789abcdef", "short"), "cookie_secret"),
        (FILE.replace('["ann@example.com", "@example.org"]', '["example.org"]'), "admit"),
        (FILE.replace('["ann@example.com", "@example.org"]', '"@example.org"'), "admit"),
    ],
)
def test_a_file_that_lets_nobody_in_is_one_clear_line(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "oidc.toml"
    file.write_text(text)
    with pytest.raises(OSError, match=words) as refused:
        launch.run(DashboardOptions(data=tmp_path, port=0, oidc=file))
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nowhere\.toml cannot be read"):
        launch.run(DashboardOptions(data=tmp_path, port=0, oidc=tmp_path / "nowhere.toml"))


def test_who_signs_in_needs_no_token_unless_one_is_set(tmp_path: Path) -> None:
    options = {"data": tmp_path, "host": "0.0.0.0", "oidc": tmp_path / "oidc.toml"}
    assert launch._token(DashboardOptions(**options)) is None  # type: ignore[arg-type]
    assert launch._token(DashboardOptions(**options, token="both")) == "both"  # type: ignore[arg-type]


def test_nothing_is_shown_to_who_has_not_signed_in(
    streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMGAUGE_DASHBOARD_OIDC", "oidc.toml")
    app = open_page(streams_data, monkeypatch, secrets={"auth": {}}, range="24h")
    assert not app.exception
    assert [b.label for b in app.button] == ["Sign in"]
    assert not app.metric
    assert not app.sidebar.selectbox


@pytest.mark.parametrize(("email", "admitted"), [("ann@example.com", True), ("eve@example.com", False)])
def test_who_has_signed_in_sees_the_pages_if_admitted(
    email: str, admitted: bool, streams_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMGAUGE_DASHBOARD_OIDC", "oidc.toml")
    app = open_page(
        streams_data,
        monkeypatch,
        user={"is_logged_in": True, "email": email},
        secrets={"streamgauge": {"admit": ["ann@example.com"]}},
        range="24h",
    )
    assert not app.exception
    assert bool(app.metric) is admitted
    assert ("not among those" in page_text(app)) is not admitted
    assert "Sign out" in [b.label for b in app.button]
