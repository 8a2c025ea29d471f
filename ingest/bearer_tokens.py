"""Rules for the tokens that clients of a listening port send."""

from __future__ import annotations

from streamgauge.ingest.addresses import is_loopback, split_address

MIN_TOKEN_CHARS = 16


def check_token(flag: str, token: str | None) -> None:
    """Raise ValueError for a token that is too short. `flag` names the setting."""
    if token is not None and len(token) < MIN_TOKEN_CHARS:
        raise ValueError(
            f"cannot use the token: it must have at least {MIN_TOKEN_CHARS} characters. Pass a longer one with {flag}"
        )


def check_listener(flag: str, address: str, token_flag: str, token: str | None) -> None:
    """As `check_token`. Also raise ValueError if other machines could connect to HOST:PORT without a token."""
    check_token(token_flag, token)
    if token is None and not is_loopback(split_address(address)[0]):
        raise ValueError(f"{flag} {address} is not a loopback address. Set {token_flag}")
