"""Written streams: placeholders, groups, included texts, and what a file takes from another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamgauge.simulator import written_streams
from streamgauge.simulator.written_streams import Template, WrittenStream


@pytest.mark.parametrize(
    ("text", "values", "written"),
    [
        ('{"n":$n,"s":"a-<n>"}', {"n": 3}, '{"n":3,"s":"a-3"}'),
        ('{"s":$s}', {"s": 'a "quoted" 🌊'}, '{"s":"a \\"quoted\\" 🌊"}'),
        ('{"raw":$raw}', {"raw": b"[1]"}, '{"raw":[1]}'),
        ('{"a":1(?more ,"more":$more?)}', {"more": 2}, '{"a":1,"more":2}'),
        ('{"a":1(?more ,"more":$more?)}', {"more": 0}, '{"a":1}'),
        ('{"a":(?known $known?)(!known null!)}', {"known": None}, '{"a":null}'),
    ],
)
def test_template_is_filled(text: str, values: dict[str, Any], written: str) -> None:
    assert Template(text).write(values.__getitem__).decode() == written


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "_common.sse").write_text(
        ": id <token>\n: finish stop stop\n: refusal 4 bad\n: refusal 5 broken\n\n: http-error\n"
        '{"status":$http_status,"type":$error_type,"code":$error_code}\n'
    )
    monkeypatch.setattr(written_streams, "_FOLDER", tmp_path)
    return tmp_path


def texts(stream: WrittenStream, block: str) -> list[str]:
    return [one.template.write(lambda name: name).decode() for one in stream.blocks.get(block, ())]


def test_file_takes_blocks_of_another_unless_it_has_some_of_the_name(folder: Path) -> None:
    (folder / "base.sse").write_text(
        ': api base\n: header a: 1\n\n: let-end\n,"end":1}\n\n: text\ndata: {"t":$text@end\n\n: finish\ndata: {"f":1\n @end\n\n'
        ": keepalive\n: still here\n"
    )
    (folder / "own.sse").write_text(": like base\n\n: let-end\n}\n\n: keepalive\n")
    base, own = WrittenStream("base"), WrittenStream("own")
    assert texts(base, "text") == ['data: {"t":"text","end":1}\n\n']
    assert texts(base, "finish") == ['data: {"f":1,"end":1}\n\n']
    assert base.blocks["keepalive"][0].is_comment
    assert texts(own, "text") == ['data: {"t":"text"}\n\n']
    assert not own.blocks["keepalive"]
    assert (own.api, own.headers) == ("base", [("a", "1")])


def test_lines_of_a_block_outside_of_sse_end_as_the_vendor_ends_them(folder: Path) -> None:
    (folder / "own.sse").write_text(
        ': api own\n: crlf\n\n: error X unframed\n{\n  "a": 1\n}\n\n: text\ndata: 1\n'
    )
    stream = WrittenStream("own")
    assert texts(stream, "error") == ['{\r\n  "a": 1\r\n}\r\n']
    assert not stream.blocks["error"][0].is_event
    assert texts(stream, "text") == ["data: 1\r\n\r\n"]
    assert stream.blocks["text"][0].is_output


def test_error_type_is_that_of_the_status_or_of_its_first_digit(folder: Path) -> None:
    (folder / "own.sse").write_text(
        ": api own\n: refusal 429 slow too_fast\n: refusal 4 bad\n: refusal 5 -\n"
    )
    stream = WrittenStream("own")
    assert stream.http_error(429, "") == (b'{"status":429,"type":"slow","code":"too_fast"}', "slow")
    assert stream.http_error(418, "") == (b'{"status":418,"type":"bad","code":null}', "bad")
    assert stream.http_error(503, "") == (b'{"status":503,"type":null,"code":null}', None)
