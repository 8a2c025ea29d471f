"""Sign-in and sign-out in a real browser with a real provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboard.browser import MARKS, TIMEOUT_MS, Reader, reader
from tests.dashboard.oidc_provider import provider
from tests.dashboard.running_dashboard import running
from tests.ports import free_port

pytest.importorskip("authlib", reason="needs Authlib: install streamgauge[oidc]")
pytestmark = MARKS
ADMITTED, REFUSED = "ann@example.com", "eve@example.net"


def signs_in_and_out(seen: Reader, email: str, *, admitted: bool) -> None:
    seen.page.get_by_text("Sign in to see this dashboard").wait_for(timeout=TIMEOUT_MS)
    assert seen.page.locator("[data-testid=stDataFrame], [data-testid=stMetric]").count() == 0
    seen.page.get_by_role("button", name="Sign in").click()
    seen.page.get_by_text(email).first.wait_for(timeout=TIMEOUT_MS)
    if admitted:
        seen.page.get_by_role("table", name="Streams", exact=True).wait_for(timeout=TIMEOUT_MS)
    else:
        seen.page.get_by_text("is not allowed to see").wait_for(timeout=TIMEOUT_MS)
        assert seen.page.locator("[data-testid=stMetric]").count() == 0
    seen.page.get_by_role("button", name="Sign out").click()
    seen.page.get_by_text("Sign in to see this dashboard").wait_for(timeout=TIMEOUT_MS)


def test_readers_sign_in_and_out(one_stream: Path, tmp_path: Path) -> None:
    """One who is admitted and then one who is not, in the same browser."""
    port = free_port()
    file = tmp_path / "oidc.toml"
    with provider(ADMITTED) as (issuer, oidc):
        file.write_text(
            f'[auth]\nredirect_uri = "http://127.0.0.1:{port}/oauth2callback"\ncookie_secret = "{"0123456789abcdef" * 2}"\n'
            f'client_id = "streamgauge"\nclient_secret = "secret"\n'
            f'server_metadata_url = "{issuer}/.well-known/openid-configuration"\n'
            '[streamgauge]\nadmit = ["@example.com"]\n'
        )
        with (
            running(one_stream, "--dashboard-oidc", str(file), listen=f"127.0.0.1:{port}") as dashboard,
            reader(dashboard.url) as seen,
        ):
            assert "token" not in dashboard.url
            seen.page.goto(f"{dashboard.url}/streams?range=24h")
            signs_in_and_out(seen, ADMITTED, admitted=True)
            oidc.email = REFUSED
            seen.page.goto(f"{dashboard.url}/streams?range=24h")
            signs_in_and_out(seen, REFUSED, admitted=False)
            assert oidc.signed_in == 2
