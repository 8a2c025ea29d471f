"""TLS on both sides: verification by default, private CAs, client certificates."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.ingest.running_tap import Client, assert_complete, chunk, respond_with, running_tap

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
    return folder


def server_context(pki: Path, *, client_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pki / "cert.pem", pki / "key.pem")
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


async def test_upstream_with_an_unknown_ca_is_a_502(pki: Path):
    async with running_tap(respond_with(OK), tls=server_context(pki)) as tap:
        head, body = await tap.request(GET)
        assert head.startswith(b"HTTP/1.1 502 ")
        assert b"SSLCertVerificationError" in body
        assert b"unable to get local issuer certificate" in body
        assert b"--upstream-ca" in body
        [records] = await tap.records()
        assert (records[-1].cause, records[-1].detail) == ("connect_error", "SSLCertVerificationError")


async def test_verification_can_be_disabled(pki: Path):
    async with running_tap(respond_with(OK), tls=server_context(pki), upstream_verify=False) as tap:
        head, body = await tap.request(GET)
        assert head + body == OK


async def test_client_certificate_is_sent_to_the_upstream(pki: Path):
    context = server_context(pki, client_certificate=True)
    own = {"upstream_cert": pki / "cert.pem", "upstream_key": pki / "key.pem"}
    async with running_tap(respond_with(OK), tls=context, upstream_ca=pki / "ca.pem", **own) as tap:
        head, body = await tap.request(GET)
        assert head + body == OK


async def test_clients_connect_over_tls(pki: Path):
    async with running_tap(respond_with(OK, OK), tls_cert=pki / "cert.pem", tls_key=pki / "key.pem") as tap:
        context = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        host, port = tap.worker.address
        client = Client(*await asyncio.open_connection(host, port, ssl=context))
        tap.clients.append(client)
        for _ in range(2):
            await client.send(GET)
            head, body = await client.response()
            assert head + body == OK
        for records in await tap.records(2):
            assert_complete(records)
            assert records[-1].client_drain_ns is not None
