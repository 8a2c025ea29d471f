"""Admission of signed-in readers, validation of the OIDC file, and no page before sign-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgauge.dashboard import access, launch
from tests.dashboard.app_test import open_page, page_text
from tests.options import dashboard_options

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
def test_only_listed_addresses_are_admitted(user: dict[str, object], admitted: bool) -> None:
    assert access.is_admitted(user, ["Ann@example.com", "@example.org"]) is admitted


def test_without_admit_list_all_users_are_admitted() -> None:
    assert access.is_admitted({}, [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[auth", "not valid TOML"),
        ("a = " + "[" * 3000, "not valid TOML"),
        ("", "lacks redirect_uri, cookie_secret, client_id, client_secret, server_metadata_url"),
        (FILE.replace('client_secret = "secret"', ""), "lacks client_secret"),
        (FILE.replace("0123456789abcdef0123456789abcdef", "short"), "cookie_secret"),
        (FILE.replace('["ann@example.com", "@example.org"]', '["example.org"]'), "admit"),
        (FILE.replace('["ann@example.com", "@example.org"]', '"@example.org"'), "admit"),
        (FILE.replace("http://127.0.0.1:1/", "/"), "redirect_uri in .* is not a URL"),
        (FILE.replace("http://127.0.0.1:1/", "http://[/"), "redirect_uri in .* is not a URL"),
    ],
)
def test_invalid_file_is_a_one_line_error(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "oidc.toml"
    file.write_text(text)
    with pytest.raises(OSError, match=words) as refused:
        launch.run(dashboard_options(data=tmp_path, oidc=file))
    assert "\n" not in str(refused.value)


def test_host_of_the_redirect_uri_is_allowed_as_are_configured_hosts(tmp_path: Path) -> None:
    file = tmp_path / "oidc.toml"
    file.write_text(FILE.replace("http://127.0.0.1:1/", "https://login.example.com/"))
    hosts = launch.check(dashboard_options(data=tmp_path, allowed_hosts=("gauge.example.com",), oidc=file))
    for name in ("gauge.example.com", "login.example.com"):
        assert hosts.refusal([name], [f"https://{name}"]) is None
    assert hosts.refusal(["other.example.com"], []) is not None


def test_missing_file_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot read .*nowhere\.toml"):
        launch.run(dashboard_options(data=tmp_path, oidc=tmp_path / "nowhere.toml"))


def test_login_needs_no_token_unless_one_is_set(tmp_path: Path) -> None:
    options = {"data": tmp_path, "listen": "0.0.0.0:0", "oidc": tmp_path / "oidc.toml"}
    assert launch._token(dashboard_options(**options)) is None  # type: ignore[arg-type]
    assert launch._token(dashboard_options(**options, token="both")) == "both"  # type: ignore[arg-type]


def test_only_sign_in_button_before_sign_in(streams_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMGAUGE_DASHBOARD_OIDC", "oidc.toml")
    app = open_page(streams_data, monkeypatch, secrets={"auth": {}}, range="24h")
    assert not app.exception
    assert [b.label for b in app.button] == ["Sign in"]
    assert not app.metric
    assert not app.sidebar.selectbox


@pytest.mark.parametrize(("email", "admitted"), [("ann@example.com", True), ("eve@example.com", False)])
def test_admitted_reader_sees_the_pages(
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
    assert ("is not allowed to see" in page_text(app)) is not admitted
    assert "Sign out" in [b.label for b in app.button]
