"""The tap's 502 and 504 responses: why an upstream did not answer, and what to do."""

from __future__ import annotations

import socket
import ssl

from streamgauge.ingest.http1.upstreams import Upstream
from streamgauge.ingest.records import Cause
from streamgauge.ingest.tap.http.error_responses import ErrorResponse, upstream_error

# Values of X509_V_ERR_* in OpenSSL's x509_vfy.h.
_NOT_YET_VALID, _EXPIRED = 9, 10
# No issuer, self-signed, self-signed in the chain, …, unverified leaf.
_UNKNOWN_CA = frozenset({2, 18, 19, 20, 21})
_OTHER_NAME = frozenset({62, 63, 64})  # host name, e-mail address, IP address
_NOT_TLS = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "UNKNOWN_PROTOCOL",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
    }
)
_USE_HTTP = "If it serves plain HTTP, use http:// in --upstream."
_CLIENT_CERTIFICATE = "If it requires a client certificate, pass --upstream-cert FILE."


def connect_failed(upstream: Upstream, error: BaseException) -> ErrorResponse:
    """The connection failed with `error`, an OSError of the event loop."""
    return upstream_error(502, upstream.name, "connect_error", _connect_problem(upstream, error))


def connect_timed_out(upstream: Upstream, limit_s: float | None) -> ErrorResponse:
    limit = "in time" if limit_s is None else f"within {limit_s:g} s"
    problem = (
        f"cannot be reached: {upstream.address} did not accept the connection {limit}. "
        "Check --upstream and the network."
    )
    return upstream_error(504, upstream.name, "connect_timeout", problem)


def closed_too_early(upstream: Upstream, *, fresh: bool) -> ErrorResponse:
    """It closed a connection before it responded. `fresh`: the connection has served no request, and no byte arrived."""
    hint = ""
    if fresh and upstream.scheme == "http":
        hint = " If it serves https, use https:// in --upstream."
    elif fresh:  # with TLS 1.3 a server checks the client's certificate after our handshake
        hint = f" {_CLIENT_CERTIFICATE}"
    problem = f"closed the connection before it responded.{hint}"
    return upstream_error(502, upstream.name, "upstream_reset", problem)


def malformed(upstream: Upstream, error: Exception) -> ErrorResponse:
    return upstream_error(502, upstream.name, "bad_upstream", f"sent an invalid HTTP response: {error}.")


def silent(upstream: Upstream, cause: Cause) -> ErrorResponse:
    return upstream_error(504, upstream.name, cause, "did not respond in time")


def disconnected(upstream: Upstream) -> ErrorResponse:
    return upstream_error(502, upstream.name, "tap_stopped", "was disconnected: the tap is stopping")


def _connect_problem(upstream: Upstream, error: BaseException) -> str:
    """The end of a sentence that begins with "upstream NAME"."""
    address = upstream.address
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_problem(upstream, error)
    if isinstance(error, ssl.SSLError):
        return _tls_problem(address, error.reason or "")
    if isinstance(error, socket.gaierror):
        return (
            f"cannot be reached: the host name {upstream.host} cannot be resolved ({error.strerror}). "
            "Check the name in --upstream and the DNS of the tap's machine."
        )
    if isinstance(error, ConnectionRefusedError):
        return f"cannot be reached: nothing listens on {address}. Start the upstream, or correct --upstream."
    if upstream.scheme == "https" and isinstance(error, ConnectionError):
        return f"closed the connection to {address} during the TLS handshake. {_USE_HTTP}"
    why = (isinstance(error, OSError) and error.strerror) or type(error).__name__
    return f"cannot be reached: the connection to {address} failed ({why}). Check --upstream and the network."


def _certificate_problem(upstream: Upstream, error: ssl.SSLCertVerificationError) -> str:
    code, why = error.verify_code, error.verify_message.rstrip(".")
    if code in _OTHER_NAME:
        return (
            f"has a certificate for another name than {upstream.host} ({why}). "
            "Use a name of the certificate in --upstream, or install a certificate for this name."
        )
    if code == _EXPIRED:
        return f"has an expired certificate at {upstream.address} ({why}). Renew it, and check the clock of the tap's machine."
    if code == _NOT_YET_VALID:
        return f"has a certificate that is not valid yet at {upstream.address} ({why}). Check the clocks of both machines."
    if code in _UNKNOWN_CA:
        return (
            f"has a certificate that is not trusted at {upstream.address} ({why}). "
            "Pass the CA that signed it to the tap with --upstream-ca FILE."
        )
    return f"has a certificate that is not valid at {upstream.address} ({why}). Correct the certificate."


def _tls_problem(address: str, reason: str) -> str:
    if reason in _NOT_TLS:
        return f"does not answer with TLS at {address} ({reason}). {_USE_HTTP}"
    if "ALERT" in reason:
        return f"refused the TLS handshake at {address} ({reason}). {_CLIENT_CERTIFICATE}"
    return (
        f"failed the TLS handshake at {address} ({reason or 'no reason given'}). Check its TLS configuration."
    )
