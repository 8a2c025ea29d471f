"""A thousand reports of each documented schema: the parts are the total, or `token_source` says that they are not."""

from __future__ import annotations

import random

import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.records import Frames, Request, ResponseHeaders
from tests.analytics.dialects.usage_reports import SCHEMAS, body_of, wrong
from tests.analytics.stream_records import closed, opened, stream_id

REPORTS = 1_000


@pytest.mark.parametrize("schema", SCHEMAS)
def test_parts_are_the_total_or_the_report_is_inconsistent(schema: str) -> None:
    rng = random.Random(51)
    reports = [SCHEMAS[schema](rng) for _ in range(REPORTS)]
    reports = [wrong(one, rng) if rng.random() < 0.2 else one for one in reports]
    head = ResponseHeaders(200, [("content-type", "application/json")], 5)
    assembler = Assembler()
    for number, report in enumerate(reports):
        path, body = body_of(schema, report.usage)
        stream = stream_id(number)
        assembler.feed("w0", number, [
            opened(stream, path=path), Request(stream, 1, b"{}", False), Frames(stream, 2, [(10, body)], head),
            closed(stream, 3, end_ns=20, response_bytes=len(body)),
        ])  # fmt: skip
    tables = measure(assembler.take_finished())
    rows = {row["stream_id"]: row for row in tables["streams"].to_dicts()}
    for number, report in enumerate(reports):
        row = rows[stream_id(number)]
        assert (row["token_source"] == "usage") == report.is_consistent, (report, row["token_source"])
        assert row["token_source"] in ("usage", "usage_inconsistent")
        assert (row["unexplained_tokens"] is None) == report.is_consistent, report
        if not report.is_consistent:
            continue
        assert (row["input_tokens"], row["output_tokens"]) == (report.input_tokens, report.output_tokens), (
            report.usage
        )
        for name in ("cached_input_tokens", "reasoning_tokens"):
            if (expected := getattr(report, name)) is not None:
                assert row[name] == expected, report.usage
    counted = dict(tables["internal.counter_parts"].iter_rows()) if "internal.counter_parts" in tables else {}
    dialect = rows[stream_id(0)]["dialect"]
    member = next((one.total for one in reports if one.total), None)
    found = sum(not one.is_consistent for one in reports)
    assert counted == ({f"usage_inconsistent.{dialect}.{member}": found} if found else {})
