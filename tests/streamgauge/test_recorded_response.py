"""`streamgauge.read`: files, bytes and timed reads. `test_read_command` covers the decoding of files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import streamgauge as sg
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.python_api.recorded_response import exchange_of_file
from tests.analytics.log_entries import chunk, ending

BODY = chunk("Hel") + chunk("lo") + ending(tokens=2)


def test_a_file_its_path_as_text_and_its_bytes_are_equal(tmp_path: Path) -> None:
    file = tmp_path / "x.sse"
    file.write_bytes(BODY)
    found = sg.read(file)
    assert (found.text, found.outcome, found.output_tokens, found.file) == ("Hello", "ok", 2, str(file))
    assert sg.read(str(file)) == found
    from_bytes = sg.read(BODY)
    assert (from_bytes.text, from_bytes.events, from_bytes.file) == (found.text, found.events, None)


def test_a_file_has_events_without_times_and_no_measures(tmp_path: Path) -> None:
    found = sg.read(BODY)
    assert [(e.kind, e.at_ns, e.chars) for e in found.events[:2]] == [("text", None, 3), ("text", None, 2)]
    assert found.measures is None


def test_timed_reads_may_be_compressed_and_split_anywhere() -> None:
    packed = gzip.compress(BODY)
    found = sg.read(((i, packed[i : i + 7]) for i in range(0, len(packed), 7)), status=200)
    assert (found.text, found.outcome) == ("Hello", "ok")
    assert found.measures is not None
    assert found.measures.ttft_ns is not None


def test_an_error_status_is_an_http_error() -> None:
    found = sg.read(b'{"error": {"type": "slow_down"}}', status=429, path="/v1/chat/completions")
    assert (found.outcome, found.error_type) == ("http_error", "slow_down")


def test_an_empty_source_is_noted() -> None:
    for empty in (b"", []):
        found = sg.read(empty)
        assert (found.notes, found.outcome) == (["the file is empty"], "truncated")


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(sg.UnreadableResponse, match=r"No such file.*Pass the file of a recorded response"):
        sg.read(tmp_path / "missing.sse")


def test_beginning_of_a_recording_shows_whether_it_is_a_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`open` records a long stream, which analytics decodes, so it is not decoded before."""
    fed: list[int] = []
    feed = StreamDecoder.feed

    def counted(decoder: StreamDecoder, reads: list[tuple[int, bytes]]) -> None:
        fed.append(sum(len(data) for _, data in reads))
        feed(decoder, reads)

    monkeypatch.setattr(StreamDecoder, "feed", counted)
    file = tmp_path / "one"
    file.touch()
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
    long_json = json.dumps({"object": "chat.completion", "choices": [], "padding": "x" * 100_000}).encode()
    stream, whole = (exchange_of_file(file, content) for content in (event * 5000, long_json))
    assert stream is not None
    assert stream.reads == [(0, event * 5000)]
    assert fed[0] < 100_000
    assert whole is not None
    assert fed[1] == len(long_json)
    assert exchange_of_file(file, b"a text\n" * 5000) is None
