"""Which Host and Origin headers are allowed."""

from __future__ import annotations

import socket

import pytest

from streamgauge.ingest.listening import AllowedHosts, parse_allowed_host

HOSTS = AllowedHosts(["gauge.example.com", "*.svc.cluster.local"], listen_host="gauge.internal")


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8501", "localhost.", "127.0.0.1:1", "[::1]:80", "[::1]", "10.1.2.3", "192.0.2.7:4101", "0.0.0.0",
     "gauge.internal:4101", "gauge.example.com", "Gauge.Example.com.:443", "tap.ns.svc.cluster.local:4101",
     f"{socket.gethostname()}:80", "[fe80::1%25eth0]:80", "[fe80::1%eth0]", "app.localhost:80", "ip6-localhost", "ip6-loopback"],
)  # fmt: skip
def test_addresses_own_names_and_configured_names_are_allowed(host: str):
    assert HOSTS.refusal([host], []) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8501", "localhost.evil.example", "127.0.0.1.evil.example", "a.gauge.example.com",
     "example.com", "svc.cluster.local", "evilsvc.cluster.local", "", ":80", "localhost:80:80", "localhost, localhost",
     "evil.example#localhost", "user@localhost", "localhost/evil", "[::1].evil.example", "[evil]", "[evil%25eth0]",
     "[fe80::1%]", "[fe80::1%a/b]", "xlocalhost",
     "١٢٧.0.0.1",
     "a" * 300, "2130706433", "0x7f.1", "127.1"],
)  # fmt: skip
def test_foreign_and_malformed_hosts_are_refused(host: str):
    reason = HOSTS.refusal([host], [])
    assert reason is not None
    assert "--allowed-host" in reason
    assert "\n" not in reason
    assert len(reason) < 700


def test_full_name_of_this_machine_is_allowed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "gauge")
    monkeypatch.setattr(socket, "getfqdn", lambda: "Gauge.corp.example")
    hosts = AllowedHosts()
    assert hosts.refusal(["gauge.corp.example:80"], ["http://gauge.corp.example"]) is None
    assert hosts.refusal(["gauge.evil.example"], []) is not None
    assert hosts.refusal(["other.corp.example"], []) is not None


def test_reason_names_host_and_flag():
    assert HOSTS.refusal(["evil.example:80"], []) == (
        "request refused: the host evil.example is not allowed. Allow it with --allowed-host evil.example."
    )


def test_every_host_of_a_request_is_checked():
    assert HOSTS.refusal(["localhost", "evil.example"], []) is not None
    assert HOSTS.refusal([], []) is None  # HTTP/1.0


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "http://127.0.0.1",
        "http://[::1]:8501",
        "https://gauge.example.com",
        "http://10.1.2.3:8501",
    ],
)
def test_own_origins_are_allowed(origin: str):
    assert HOSTS.refusal(["10.1.2.3:8501"], [origin]) is None


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "://localhost", "localhost", "http://10.1.2.3:9000", "http://10.1.2.4:8501",
     "http://localhost.evil.example", "http://evil.example@localhost", "file://"],
)  # fmt: skip
def test_foreign_origins_are_refused(origin: str):
    assert "--allowed-host" in str(HOSTS.refusal(["10.1.2.3:8501"], [origin]))


def test_configured_address_is_an_allowed_origin():
    hosts = AllowedHosts(["10.9.9.9", "[fd00::1]"])
    assert hosts.refusal(["localhost"], ["https://10.9.9.9"]) is None
    assert hosts.refusal(["localhost"], ["https://[fd00::1]:8443"]) is None


@pytest.mark.parametrize("text", ["", "*", "*.*.com", "http://a", "a:80", "a/b", "a b", "-a", "ä.com"])
def test_only_names_can_be_configured(text: str):
    with pytest.raises(ValueError, match="is not a host name"):
        parse_allowed_host(text)
