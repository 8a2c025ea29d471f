"""Readers who sign in with an OpenID Connect provider, instead of giving a token.

- A TOML file says which (`--dashboard-oidc FILE`): Streamlit's own `[auth]` table, and `[streamgauge] admit = […]`, the
  addresses ("ann@example.com") and domains ("@example.com") that may come in. Without `admit` the provider decides alone.
- An address counts only when the provider does not say that it is unverified.
- Nothing of the data is asked for before a reader is admitted: the pages do not run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

WANTED = ("redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url")
LEAST_SECRET = 16
"""Characters of a secret that signs cookies."""


def admits(user: Mapping[str, Any], admit: Sequence[str]) -> bool:
    """Whether a signed-in reader is one of those who may come in."""
    if not admit:
        return True
    email = str(user.get("email") or "").lower()
    if "@" not in email or user.get("email_verified") is False:
        return False
    wanted = {str(entry).lower() for entry in admit}
    return email in wanted or "@" + email.rpartition("@")[2] in wanted


def check(path: Path) -> None:
    """Raises OSError with one line when readers could not sign in by this file."""
    try:
        said = tomllib.loads(path.read_text())
    except OSError as error:
        raise OSError(f"{path} cannot be read: {error.strerror} (--dashboard-oidc)") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OSError(f"{path} is no TOML: {error} (--dashboard-oidc)") from None
    auth = said.get("auth")
    auth = auth if isinstance(auth, dict) else {}
    missing = [name for name in WANTED if not isinstance(auth.get(name), str) or not auth[name]]
    if missing:
        raise OSError(f"{path} lacks {', '.join(missing)} in [auth] (--dashboard-oidc)")
    if len(auth["cookie_secret"]) < LEAST_SECRET:
        raise OSError(f"cookie_secret in {path} is shorter than {LEAST_SECRET} characters (--dashboard-oidc)")
    own = said.get("streamgauge", {})
    admit = own.get("admit", []) if isinstance(own, dict) else None
    if not isinstance(admit, list) or not all(isinstance(a, str) and "@" in a for a in admit):
        raise OSError(
            f"admit in [streamgauge] of {path} is no list of addresses or @domains (--dashboard-oidc)"
        )
    if find_spec("authlib") is None:
        raise OSError(
            "--dashboard-oidc needs the package Authlib beside Streamgauge: install streamgauge[oidc]"
        )


def gate() -> None:
    """Return for a reader who is signed in and admitted; else the question is the whole page. Call it before the pages."""
    import streamlit as st

    admit = list(st.secrets.get("streamgauge", {}).get("admit", []))
    if not st.user.get("is_logged_in"):
        st.title("Streamgauge", anchor=False)
        st.markdown("This dashboard wants to know who you are.")
        st.button("Sign in", icon=":material/login:", type="primary", on_click=st.login)
        st.stop()
    who = str(st.user.get("email") or st.user.get("name") or "you")
    if not admits(st.user, admit):
        st.title("Streamgauge", anchor=False)
        st.error(
            f"{who} is signed in, but not among those who may see this dashboard.", icon=":material/lock:"
        )
        st.button("Sign out", icon=":material/logout:", on_click=st.logout)
        st.stop()
    with st.sidebar.container(horizontal=True, vertical_alignment="center"):
        st.caption(who)
        st.button("Sign out", type="tertiary", on_click=st.logout)
