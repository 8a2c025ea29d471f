"""A recorded stream that ends early: its outcome is the cause of the end, wherever it is cut."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec
import pytest

from streamgauge.analytics.decoding.decoded_body import body_of
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.measures.outcome import Transport, Verdict, judge
from streamgauge.ingest.records import Cause
from tests.analytics.corpus import SKIP_REASON, Recording, recordings

RECORDINGS = [r for r in recordings() if (r.found["http_status"] or 200) < 400]
pytestmark = pytest.mark.skipif(not RECORDINGS, reason=SKIP_REASON)

CAUSES: dict[Cause, str] = {
    "complete": "truncated",
    "upstream_reset": "upstream_reset",
    "client_left": "client_abort",
}
_EVENT_END = re.compile(rb"\r?\n\r?\n|\}\r?\n(?=\{)|\}(?=,\r?\n?\{\"cand)|\}(?=\s*,\s*\{\s*\"candidates)")
FEW_CUTS = 12


def cuts(body: bytes) -> list[int]:
    """The end of each event, and 0."""
    ends = [found.end() for found in _EVENT_END.finditer(body)]
    return [0, *(end for end in ends if end < len(body))]


def exchange_of(recording: Recording) -> ExchangeInfo:
    found = recording.found
    url = urlsplit(found["url"] or "")
    return ExchangeInfo(
        path="/" + re.sub("[<>]", "", url.path).lstrip("/") + (f"?{url.query}" if url.query else ""),
        host=url.hostname or "",
        status=found["http_status"] or 200,
        content_type=found["content_type"] or "",
        stream_requested=True,
    )


def verdicts(exchange: ExchangeInfo, body: bytes) -> Iterator[tuple[str, Verdict, StreamDecoder]]:
    """(outcome of an unfinished stream, verdict, decoder) for each cause of the end."""
    decoder = StreamDecoder(exchange)
    if body:
        decoder.feed([(1, body)])
    decoder.finish()
    for cause, outcome in CAUSES.items():
        left_ns = 2 if cause == "client_left" else None
        transport = Transport(
            cause=cause, status=exchange.status, headers_ns=0, end_ns=2, client_left_ns=left_ns
        )
        yield outcome, judge(transport, body_of(decoder)), decoder


def check(recording: Recording, ends: list[int]) -> None:
    body, exchange = recording.body.read_bytes(), exchange_of(recording)
    has_error = bool(recording.found["error"]) or recording.found["finish_reason"] in ("ERROR", "error")
    for end in ends:
        for unfinished, verdict, decoder in verdicts(exchange, body[:end]):
            where = f"{recording} cut at {end}: {verdict.outcome} {verdict.error_type}"
            if verdict.outcome == "inband_error":
                assert has_error, where
                assert b"rror" in body[:end].lower() or b"ERROR" in body[:end], where
            elif verdict.outcome == "ok":
                assert decoder.terminal_ns is not None, where
            else:
                assert decoder.terminal_ns is None or decoder.output_after_finish, where
                assert verdict.outcome == unfinished, where


@pytest.mark.parametrize("recording", RECORDINGS, ids=str)
def test_cut_stream_has_the_outcome_of_its_end(recording: Recording) -> None:
    """The first events, the last ones, and some between."""
    ends = cuts(recording.body.read_bytes())
    step = max(1, len(ends) // FEW_CUTS)
    check(recording, sorted({*ends[:FEW_CUTS], *ends[::step], *ends[-FEW_CUTS:]}))


@pytest.mark.slow
@pytest.mark.parametrize("recording", RECORDINGS, ids=str)
def test_stream_cut_after_each_event_has_the_outcome_of_its_end(recording: Recording) -> None:
    check(recording, cuts(recording.body.read_bytes()))


def test_blank_stream_without_a_request_for_one_stays_ok() -> None:
    exchange = msgspec.structs.replace(exchange_of(RECORDINGS[0]), stream_requested=False, content_type="")
    assert next(verdicts(exchange, b""))[1].outcome == "ok"
