"""TLS contexts of the tap, for https upstreams and for clients.

Upstream certificates are verified against the system's CAs, or only against the configured ones. ALPN offers HTTP/1.1 alone.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from ingest.tap.options import TapOptions


def upstream_context(options: TapOptions) -> ssl.SSLContext:
    """The context for https upstreams. Raises ValueError with one line."""
    ca = options.upstream_ca
    try:
        context = ssl.create_default_context(cafile=str(ca) if ca is not None else None)
    except (OSError, ssl.SSLError) as e:
        raise ValueError(f"{ca} is not a PEM file of CA certificates: {e}") from None
    _refuse_lone_key("upstream", options.upstream_cert, options.upstream_key)
    if options.upstream_cert is not None:
        try:
            context.load_cert_chain(options.upstream_cert, options.upstream_key)
        except (OSError, ssl.SSLError) as e:
            raise ValueError(
                f"{options.upstream_cert} has no usable client certificate and key: {e}"
            ) from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def client_context(options: TapOptions) -> ssl.SSLContext | None:
    """The context for clients, None for plain HTTP. Raises ValueError with one line."""
    _refuse_lone_key("tls", options.tls_cert, options.tls_key)
    if options.tls_cert is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as e:
        raise ValueError(f"{options.tls_cert} has no usable certificate and key: {e}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _refuse_lone_key(flag: str, cert: Path | None, key: Path | None) -> None:
    if key is not None and cert is None:
        raise ValueError(
            f"--{flag}-key {key} has no certificate. Pass its certificate with --{flag}-cert FILE."
        )
