"""Split the time of one stream between upstream, gateway, tap and client. Pure.

The columns of `streams` split the whole stream between upstream, client and tap. A hop takes the gateway's part from the
upstream's: the time from the last byte of the request to the gateway's first attempt, and the added tail. Failed attempts count
as upstream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def whole_stream(row: Row, attempts: Sequence[Row]) -> dict[str, int]:
    """Cause → ns from t0 to the end of the stream. Empty if it is unknown.

    `row` is a row of `streams`. `attempts` are the rows of `hops` with it as the outer stream; without them there is no gateway.
    """
    upstream_ns, client_ns, tap_ns = (
        row[name] for name in ("waited_upstream_ns", "waited_client_ns", "tap_delay_ns")
    )
    if upstream_ns is None or client_ns is None or tap_ns is None:
        return {}
    return _with_gateway(upstream_ns, gateway_ns(row, attempts)) | {"tap": tap_ns, "client": client_ns}


def first_token(row: Row, attempts: Sequence[Row]) -> dict[str, int]:
    """Cause → ns from t0 to the first token. Empty without a matched attempt that has output."""
    added = next((a["added_ttft_ns"] for a in attempts if a["added_ttft_ns"] is not None), None)
    if added is None or row["ttft_ns"] is None:
        return {}
    return _with_gateway(row["ttft_ns"], added - sum(a["lost_ns"] or 0 for a in attempts))


def gateway_ns(row: Row, attempts: Sequence[Row]) -> int | None:
    """The gateway's part of a stream, or None without a hop."""
    if not attempts:
        return None
    before_ns = min(a["gateway_before_ns"] or 0 for a in attempts) - (row["request_sent_ns"] or 0)
    tail_ns = sum(a["added_tail_ns"] or 0 for a in attempts)
    return max(before_ns, 0) + tail_ns


def _with_gateway(total_ns: int, gateway_part_ns: int | None) -> dict[str, int]:
    if gateway_part_ns is None:
        return {"upstream": total_ns}
    part_ns = min(max(gateway_part_ns, 0), total_ns)
    return {"upstream": total_ns - part_ns, "gateway": part_ns}
