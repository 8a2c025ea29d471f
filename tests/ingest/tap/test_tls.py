"""TLS on both sides: verification by default, private CAs, client certificates, and what a failed handshake advises."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.running_tap import (
    Client,
    RunningTap,
    Script,
    assert_complete,
    chunk,
    respond_with,
    running_tap,
)
from tests.ingest.tap.test_tunnel import Server, Socket, close, end, end_client, websocket

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"x" * 100_000) + b"0\r\n\r\n"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA and a certificate for localhost, also used as the client's, created by openssl."""
    folder = tmp_path_factory.mktemp("pki")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=Test CA",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    openssl("req", *ec, "-keyout", "key.pem", "-out", "csr.pem", "-subj", "/CN=localhost")
    (folder / "ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "csr.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "ext", "-out", "cert.pem")  # fmt: skip
    (folder / "other-ext").write_text("subjectAltName=DNS:other.example\n")
    for name, extensions, days in (("expired", "ext", "-1"), ("other", "other-ext", "2")):
        openssl("x509", "-req", "-in", "csr.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", days,
                "-extfile", extensions, "-out", f"{name}.pem")  # fmt: skip
    return folder


def server_context(
    pki: Path, *, client_certificate: bool = False, certificate: str = "cert.pem"
) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pki / certificate, pki / "key.pem")
    if client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(pki / "ca.pem")
    return context


async def test_upstream_with_a_private_ca_is_verified(pki: Path):
    async with running_tap(respond_with(OK, OK), tls=server_context(pki), upstream_ca=pki / "ca.pem") as tap:
        client = await tap.client()
        for _ in range(2):
            await client.send(GET)
            head, body = await client.response()
            assert head + body == OK
        assert len(tap.upstream_connections) == 1
        for records in await tap.records(2):
            assert_complete(records)


@pytest.mark.parametrize(
    ("certificate", "ca", "url", "message"),
    [
        ("cert.pem", None, "https://localhost:{port}",
         r"has a certificate that is not trusted at localhost:\d+ \(unable to get local issuer certificate\)\. .* --upstream-ca"),
        ("other.pem", "ca.pem", "https://localhost:{port}",
         r"has a certificate for another name than localhost \(Hostname mismatch, .*\)\. Use a name of the certificate in "
         r"--upstream,"),
        ("other.pem", "ca.pem", "https://127.0.0.1:{port}", r"for another name than 127\.0\.0\.1 \(IP address mismatch, .*\)"),
        ("expired.pem", "ca.pem", "https://localhost:{port}",
         r"has an expired certificate at localhost:\d+ \(certificate has expired\)\. Renew it,"),
    ],
)  # fmt: skip
async def test_each_problem_of_a_certificate_has_its_own_advice(
    pki: Path, certificate: str, ca: str | None, url: str, message: str
):
    context = server_context(pki, certificate=certificate)
    trusted = {"upstream_ca": pki / ca} if ca is not None else {}
    async with running_tap(respond_with(OK), tls=context, upstreams=[f"up={url}"], **trusted) as tap:
        status, text = await error_of(tap)
        assert status == 502
        assert re.search(r"^upstream 'up' " + message if message.startswith("has") else message, text), text
        assert ("--upstream-ca" in text) == (ca is None)
        [records] = await tap.records()
        assert (records[-1].cause, records[-1].detail) == ("connect_error", "SSLCertVerificationError")


async def error_of(tap: RunningTap) -> tuple[int, str]:
    """Status and message of the tap's response to a request."""
    head, body = await tap.request(GET)
    return int(head.split(b" ", 2)[1]), json.loads(body)["error"]["message"]


async def _close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.transport.abort()


async def _answer_400(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await reader.read()


@pytest.mark.parametrize("script", [_close, _answer_400])
async def test_https_to_a_port_without_tls_hints_at_http(script: Script):
    async with running_tap(script, upstreams=["https://localhost:{port}"]) as tap:
        status, text = await error_of(tap)
        assert status == 502
        assert f"localhost:{tap.upstream_port}" in text
        assert text.endswith("If it serves plain HTTP, use http:// in --upstream.")


async def _send_alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"\x15\x03\x01\0\x02\x02\x46")  # and keeps the connection open
    await reader.read()


async def test_http_to_a_tls_port_hints_at_https(pki: Path):
    async with running_tap(
        respond_with(OK), tls=server_context(pki), upstreams=["http://localhost:{port}"]
    ) as tap:
        status, text = await error_of(tap)
        assert status == 502
        assert text.endswith("se https:// in --upstream.")


async def test_tls_alert_instead_of_a_response_is_reported_at_once():
    async with running_tap(_send_alert) as tap:
        status, text = await error_of(tap)
        assert (status, text.partition(": ")[2]) == (502, "it answers with TLS. Use https:// in --upstream.")


async def test_missing_client_certificate_hints_at_the_flag(pki: Path):
    context = server_context(pki, client_certificate=True)
    async with running_tap(respond_with(OK), tls=context, upstream_ca=pki / "ca.pem") as tap:
        status, text = await error_of(tap)
        assert status == 502
        assert "pass --upstream-cert FILE" in text


async def test_client_certificate_is_sent_to_the_upstream(pki: Path):
    context = server_context(pki, client_certificate=True)
    own = {"upstream_cert": pki / "cert.pem", "upstream_key": pki / "key.pem"}
    async with running_tap(respond_with(OK), tls=context, upstream_ca=pki / "ca.pem", **own) as tap:
        head, body = await tap.request(GET)
        assert head + body == OK


async def test_clients_connect_over_tls_with_http_1_1(pki: Path):
    async with running_tap(respond_with(OK, OK), tls_cert=pki / "cert.pem", tls_key=pki / "key.pem") as tap:
        context = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        context.set_alpn_protocols(["h2", "http/1.1"])
        host, port = tap.worker.address
        client = Client(*await asyncio.open_connection(host, port, ssl=context))
        tap.clients.append(client)
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        for _ in range(2):
            await client.send(GET)
            head, body = await client.response()
            assert head + body == OK
        for records in await tap.records(2):
            assert_complete(records)
            assert records[-1].client_drain_ns is not None


@pytest.mark.parametrize("tls_side", ["upstream", "client", "both"])
@pytest.mark.parametrize(
    ("server_ends", "client_ends", "cause"),
    [(close, None, "complete"), (end, None, "upstream_reset"), (None, end, "client_left")],
)
async def test_end_of_one_side_ends_a_websocket_over_tls(
    pki: Path,
    caplog: pytest.LogCaptureFixture,
    server_ends: Callable[[Server], None] | None,
    client_ends: Callable[[Socket], None] | None,
    cause: str,
    tls_side: str,
):
    options: dict[str, Any] = {}
    if tls_side != "client":
        options |= {"server_tls": server_context(pki), "upstream_ca": pki / "ca.pem"}
    if tls_side != "upstream":
        own = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        options |= {"client_tls": own, "tls_cert": pki / "cert.pem", "tls_key": pki / "key.pem"}
    async with websocket(server_ends, **options) as (tap, client):
        await end_client(client, client_ends)
        [records] = await tap.records()
        assert records[-1].cause == cause
    assert "eof_received" not in caplog.text
