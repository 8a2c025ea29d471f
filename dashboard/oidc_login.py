"""Sign readers in with an OpenID Connect provider, instead of a token.

- `--dashboard-oidc FILE` names a TOML file with Streamlit's `[auth]` table and `[streamgauge] admit = […]`: the addresses
  ("ann@example.com") and domains ("@example.com") that may see the dashboard. Without `admit`, the provider alone decides.
- An address that the provider reports as unverified is not admitted.
- The pages run, and read data, only after a reader is admitted.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from streamgauge.analytics.extras import missing_package
from streamgauge.ingest.listening import parse_allowed_host

REQUIRED = ("redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url")
MIN_SECRET_CHARS = 16


def is_admitted(user: Mapping[str, Any], admit: Sequence[str]) -> bool:
    """Whether a signed-in user may see the dashboard."""
    if not admit:
        return True
    email = str(user.get("email") or "").lower()
    if "@" not in email or user.get("email_verified") is False:
        return False
    admitted = {str(entry).lower() for entry in admit}
    return email in admitted or "@" + email.rpartition("@")[2] in admitted


def check_file(path: Path) -> str:
    """The dashboard's public host, from `redirect_uri`. Raises OSError with a one-line message if the file is not usable."""
    try:
        config = tomllib.loads(path.read_text())
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror}. Check --dashboard-oidc.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OSError(f"cannot read {path}: not valid TOML: {error}. Check --dashboard-oidc.") from None
    auth = config.get("auth")
    auth = auth if isinstance(auth, dict) else {}
    missing = [name for name in REQUIRED if not isinstance(auth.get(name), str) or not auth[name]]
    if missing:
        raise OSError(f"invalid {path}: [auth] lacks {', '.join(missing)}. Add them (--dashboard-oidc).")
    if len(auth["cookie_secret"]) < MIN_SECRET_CHARS:
        raise OSError(
            f"invalid {path}: cookie_secret is too short. Use at least {MIN_SECRET_CHARS} characters (--dashboard-oidc)."
        )
    table = config.get("streamgauge", {})
    admit = table.get("admit", []) if isinstance(table, dict) else None
    if not isinstance(admit, list) or not all(isinstance(a, str) and "@" in a for a in admit):
        raise OSError(
            f"invalid {path}: admit in [streamgauge] must be a list of addresses and @domains (--dashboard-oidc)."
        )
    try:
        public_host = parse_allowed_host(urlsplit(auth["redirect_uri"]).hostname or "")
    except ValueError:
        raise OSError(
            f"invalid {path}: redirect_uri in [auth] is not a URL of the dashboard (--dashboard-oidc)."
        ) from None
    if find_spec("authlib") is None:
        raise OSError(f"cannot use --dashboard-oidc: {missing_package('authlib')}")
    return public_host


def require_login() -> None:
    """Return for a signed-in, admitted reader. Otherwise show the sign-in page and stop the script."""
    import streamlit as st

    admit = list(st.secrets.get("streamgauge", {}).get("admit", []))
    if not st.user.get("is_logged_in"):
        st.title("Streamgauge", anchor=False)
        st.markdown("Sign in to see this dashboard.")
        st.button("Sign in", icon=":material/login:", type="primary", on_click=st.login)
        st.stop()
    user_name = str(st.user.get("email") or st.user.get("name") or "your account")
    if not is_admitted(st.user, admit):
        st.title("Streamgauge", anchor=False)
        st.error(f"{user_name} is not allowed to see this dashboard.", icon=":material/lock:")
        st.button("Sign out", icon=":material/logout:", on_click=st.logout)
        st.stop()
    with st.sidebar.container(horizontal=True, vertical_alignment="center"):
        st.caption(user_name)
        st.button("Sign out", type="tertiary", on_click=st.logout)
