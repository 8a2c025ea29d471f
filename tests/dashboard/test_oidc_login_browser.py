"""Sign-in and sign-out in a real browser with a real provider."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.dashboard.browser import CHROMIUM, TIMEOUT_MS, reader
from tests.dashboard.oidc_provider import provider
from tests.dashboard.running_dashboard import READY_WITHIN_S, ROOT
from tests.ports import free_port

pytest.importorskip("authlib", reason="needs Authlib: install streamgauge[oidc]")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
ADMITTED, REFUSED = "ann@example.com", "eve@example.net"


def signs_in_and_out(url: str, email: str, *, admitted: bool) -> None:
    with reader(url) as seen:
        seen.page.goto(f"{url}/streams?range=24h")
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


def test_readers_sign_in_and_out(streams_data: Path, tmp_path: Path) -> None:
    """One who is admitted and then one who is not, each in a new browser."""
    port = free_port()
    announced = streams_data / "run" / "dashboard.json"
    with provider(ADMITTED) as (issuer, oidc):
        file = tmp_path / "oidc.toml"
        file.write_text(
            f'[auth]\nredirect_uri = "http://127.0.0.1:{port}/oauth2callback"\ncookie_secret = "{"0123456789abcdef" * 2}"\n'
            f'client_id = "streamgauge"\nclient_secret = "secret"\n'
            f'server_metadata_url = "{issuer}/.well-known/openid-configuration"\n'
            '[streamgauge]\nadmit = ["@example.com"]\n'
        )
        command = [sys.executable, "-m", "streamgauge", "dashboard", "--data", str(streams_data)]
        command += ["--dashboard-listen", f"127.0.0.1:{port}", "--dashboard-oidc", str(file)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            until = time.monotonic() + READY_WITHIN_S
            while not announced.exists():
                assert process.poll() is None, "the dashboard ended instead of starting"
                assert time.monotonic() < until, "the dashboard did not become ready"
                time.sleep(0.05)
            url = json.loads(announced.read_text())["url"]
            assert "token" not in url
            signs_in_and_out(url, ADMITTED, admitted=True)
            oidc.email = REFUSED
            signs_in_and_out(url, REFUSED, admitted=False)
            assert oidc.signed_in == 2
        finally:
            process.terminate()
            process.wait(30)
