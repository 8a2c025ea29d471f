"""The tools called by the official SDK's client: answers, bounds, errors and hostile SQL, then both transports."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import httpx
import httpx2
import pytest
import uvicorn
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

from streamgauge.analytics.query.query_errors import READ_ONLY
from streamgauge.analytics.storage.location import locate
from streamgauge.cli import cli
from streamgauge.ingest.listening import AllowedHosts
from streamgauge.ingest.ready_file import read_ready_file
from streamgauge.mcp_server.server import gated, new_server, serve
from streamgauge.mcp_server.tools import MAX_ANSWER_BYTES, MAX_CELL_CHARS, MAX_ROWS, Tools
from tests.analytics.query.test_statement_filter import REFUSED
from tests.dashboard.generated_incident import GATEWAY, MODEL, with_incident
from tests.deadline import DEADLINE_S
from tests.hostile_sql import verdict
from tests.hostile_sql.draw import COLUMNS, catalog
from tests.hostile_sql.generator import statement

SILENT = "analyze (pid 7) does not respond since 02:00"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, datetime]:
    return with_incident(tmp_path_factory.mktemp("mcp"), streams=500, hours=0.4)


@pytest.fixture(scope="module")
def data(incident: tuple[Path, datetime]) -> Path:
    return incident[0]


@pytest.fixture(scope="module")
def tools(data: Path) -> Iterator[Tools]:
    found = Tools(locate("sqlite", data))
    yield found
    found.close()


@pytest.fixture
async def client(tools: Tools, data: Path) -> AsyncIterator[Client]:
    async with Client(new_server(tools, "1.2.3", hidden=str(data))) as connected:
        yield connected


async def answer(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    (content,) = result.content
    assert isinstance(content, TextContent)
    assert json.loads(content.text) == result.structured_content
    found: dict[str, Any] = result.structured_content
    return found


async def error(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def test_tools_say_that_they_only_read_and_describe_units(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert sorted(tools) == ["context", "describe_tables", "diagnose", "query", "stream"]
    for tool in tools.values():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
        assert tool.output_schema is not None
        assert 100 < len(tool.description or "") < 2000
        assert all(part["description"] for part in tool.input_schema["properties"].values())
    assert "nanoseconds" in str(client.instructions)


async def test_tables_are_listed_and_described(client: Client) -> None:
    every = {table["name"]: table for table in (await answer(client, "describe_tables"))["tables"]}
    assert {"streams", "open_streams", "stalls", "latency_by_minute"} <= every.keys()
    assert (every["streams"]["kind"], every["stalls"]["kind"]) == ("table", "view")
    assert all(table["comment"] for table in every.values())
    assert "ttft_ns" in every["streams"]["columns"]
    (one,) = (await answer(client, "describe_tables", tables=["Stalls"]))["tables"]
    assert one["columns"][-1] == {"name": "cause", "type": "VARCHAR", "comment": ""}
    (one,) = (await answer(client, "describe_tables", tables=["streams"]))["tables"]
    assert all(column["comment"] for column in one["columns"])
    assert await error(client, "describe_tables", tables=["internal.counter_parts"]) == (
        "cannot describe 'internal.counter_parts': no such table. Call describe_tables without names to list all."
    )


async def test_query_has_rows_in_the_order_of_columns(client: Client) -> None:
    sql = "SELECT 1 AS n, NULL AS nothing, 'ü' AS text, TIMESTAMPTZ '2026-11-23 02:00:00+00' AS at, [1.5, 'nan'::DOUBLE] AS list;"
    assert await answer(client, "query", sql=sql) == {
        "columns": ["n", "nothing", "text", "at", "list"],
        "rows": [[1, None, "ü", "2026-11-23T02:00:00Z", [1.5, None]]],
        "truncated": False,
        "note": None,
    }


@pytest.mark.parametrize(
    ("sql", "rows", "note"),
    [
        ("FROM range(150)", 100, "Only the first 100 of more than 100 rows are shown, because the limit is 100 rows"),
        ("SELECT repeat('é', 1000) FROM range(50)", 24, f"of 50 rows are shown, because the limit is {MAX_ANSWER_BYTES // 1024} KiB"),
        ("SELECT range(20000) AS a", 1, f"Values of more than {MAX_CELL_CHARS:,} characters end with …"),
        ("SELECT " + ", ".join(f"repeat('x', 1900) AS c{n}" for n in range(30)), 0, "Only the first 0 of 1 rows"),
    ],
    ids=["rows", "bytes", "long value", "wide row"],
)  # fmt: skip
async def test_large_answers_are_cut_with_a_note(client: Client, sql: str, rows: int, note: str) -> None:
    found = await answer(client, "query", sql=sql)
    assert len(found["rows"]) == rows
    assert note in found["note"]
    assert found["truncated"] is ("first" in note or "of 50" in note)
    assert len(json.dumps(found).encode()) < 3 * MAX_ANSWER_BYTES


async def test_number_of_rows_is_bounded(client: Client) -> None:
    assert len((await answer(client, "query", sql="FROM range(9000)", max_rows=MAX_ROWS))["rows"]) == MAX_ROWS
    assert "max_rows" in await error(client, "query", sql="FROM range(9000)", max_rows=MAX_ROWS + 1)


async def test_rejected_statements_have_one_line_and_a_position(client: Client) -> None:
    assert await error(client, "query", sql="SELECT ttft FROM streems") == (
        "cannot run the statement: there is no public table 'streems'. Did you mean 'streams'? Position: character 18."
    )
    assert "Cast the column to VARCHAR" in await error(client, "query", sql="SELECT DATE '290000-01-01' AS d")


async def test_hostile_statements_are_refused_as_on_the_sql_page(
    client: Client, data: Path, tmp_path: Path
) -> None:
    refused = [sql for sql in REFUSED if sql.strip("; ")]
    for sql in [
        *refused[:: max(1, len(refused) // 40)],
        f"FROM '{data}/run/open_streams.parquet'",
        f"COPY streams TO '{tmp_path}/x'",
    ]:
        message = await error(client, "query", sql=sql)
        assert verdict.problem_of_error(sql, message) is None, (sql, message)
    assert not list(tmp_path.iterdir())  # noqa: ASYNC240 - a test


async def test_generated_hostile_statements_reveal_nothing(client: Client, tools: Tools, data: Path) -> None:
    known = catalog(tools._untrusted(COLUMNS).rows())
    statements = [statement(known, "mcp", number) for number in range(200)]
    for one in [one for one in statements if one.kind == "escapes"][:20]:
        try:
            result = await client.call_tool("query", {"sql": one.sql})
        except UnicodeError:  # half of a surrogate pair
            continue
        assert isinstance(result.content[0], TextContent)
        text = result.content[0].text
        problem = (
            verdict.problem_of_error(one.sql, text)
            if result.is_error
            else verdict.problem_of_answer(one.sql, text, [str(data)])
        )
        assert problem is None, (one.sql, text)


async def test_diagnosis_names_the_incident_and_a_stream_of_it(client: Client) -> None:
    found = await answer(client, "diagnose", range="15m")
    assert found["state"] == "incident"
    assert MODEL in found["headline"]
    cause = found["causes"][0]
    assert cause["where"] == {"model": MODEL, "gateway": GATEWAY}
    assert any(group["model"] == MODEL and group["error_rate"] > 0.3 for group in found["groups"])
    of = await answer(client, "stream", stream_id=cause["example_stream_id"])
    assert (of["row"]["http_status"], of["row"]["outcome"]) == (429, "http_error")


async def test_diagnosis_of_a_past_range_and_of_some_streams(
    client: Client, incident: tuple[Path, datetime]
) -> None:
    until = incident[1] - timedelta(minutes=1)
    found = await answer(
        client, "diagnose", until=until.isoformat(), since=(until - timedelta(minutes=10)).isoformat()
    )
    assert found["until"] == until.isoformat().replace("+00:00", "Z")
    assert "HTTP 429" not in json.dumps(found["causes"])
    only = await answer(client, "diagnose", range="1h", gateways=[GATEWAY], models=["nowhere"])
    assert (only["state"], only["groups"]) == ("no_data", [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"range": "soon"}, "cannot diagnose the range 'soon': it is not a duration. Pass one such as 15m, 2h or 7d."),
        ({"range": "90d"}, "cannot diagnose the range '90d': it is longer than 30 days. Pass a shorter one."),
        ({"since": "x"}, "cannot read since 'x': it is not ISO 8601. Pass a time such as 2026-11-23T02:10:00Z."),
        ({"since": "9999-12-31T23:59:59-12:00"}, "cannot read since "),
        ({"since": "2026-01-01", "until": "2025-01-01"}, "the range is not between one minute and 30 days. Pass another."),
    ],
)  # fmt: skip
async def test_invalid_ranges_are_one_line(client: Client, arguments: dict[str, str], message: str) -> None:
    found = await error(client, "diagnose", **arguments)
    assert message in found
    assert "\n" not in found


async def test_stream_has_its_row_phases_and_stalls(client: Client) -> None:
    sql = "SELECT stream_id FROM stalls JOIN streams USING (stream_id) WHERE ttft_ns IS NOT NULL LIMIT 1"
    (((stream_id,),),) = [(await answer(client, "query", sql=sql))["rows"]]
    found = await answer(client, "stream", stream_id=f" {stream_id} ")
    assert (found["state"], found["row"]["stream_id"]) == ("finished", stream_id)
    assert None not in found["row"].values()
    assert {"connect", "first token", "answer"} <= {phase["name"] for phase in found["phases"]}
    assert found["stalls"][0]["gap_ns"] > 0
    assert found["waited_for"]["whole_stream_ns"]["upstream"] > 0


async def test_stream_in_flight_is_shown_as_such(client: Client) -> None:
    ((stream_id,),) = (await answer(client, "query", sql="SELECT stream_id FROM open_streams LIMIT 1"))[
        "rows"
    ]
    found = await answer(client, "stream", stream_id=stream_id)
    assert (found["state"], found["phases"]) == ("in_flight", [])


async def test_generated_text_is_left_out_of_a_stream(tools: Tools) -> None:
    row = {
        "stream_id": "0198b2d0-0000-7000-8000-000000000000",
        "output_text": "a secret plan",
        "ttft_ns": None,
    }
    blank = dict.fromkeys(("waited_upstream_ns", "waited_client_ns", "tap_delay_ns", "request_sent_ns"))
    found = tools._finished(UUID(row["stream_id"]), blank | row)
    assert found["row"] == {"stream_id": row["stream_id"]}
    assert "SELECT output_text, reasoning_text FROM streams WHERE" in str(found["note"])


@pytest.mark.parametrize("stream_id", ["x' OR 1=1 --", "0198b2d0-0000-7000-8000-0000000000ff"])
async def test_unknown_stream_is_one_line(client: Client, stream_id: str) -> None:
    message = await error(client, "stream", stream_id=stream_id)
    assert message.startswith("cannot find the stream ")
    assert "\n" not in message


async def test_missing_store_and_silent_analytics_are_reported(tmp_path: Path, tools: Tools) -> None:
    missing = Tools(locate("sqlite", tmp_path))
    async with Client(new_server(missing, "1", hidden=str(tmp_path))) as client:
        message = await error(client, "query", sql="SELECT 1")
        assert "has no tables yet" in message
        assert str(tmp_path) not in message
    missing.close()
    silent = Tools(tools._location, lambda: SILENT)
    silent._pools = tools._pools
    assert silent.query("SELECT 1")["note"] == f"Analyze{SILENT[7:]}: newer rows are missing."


# -- Transports --------------------------------------------------------------------------------------------------------

TOKEN = "a-token-for-tests-only"
ROOT = Path(__file__).resolve().parents[3]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "streamgauge", "mcp", *arguments]


async def call_every_tool(client: Client) -> None:
    ((stream_id,),) = (await answer(client, "query", sql="SELECT stream_id FROM streams LIMIT 1"))["rows"]
    assert (await answer(client, "stream", stream_id=stream_id))["row"]["stream_id"] == stream_id
    assert len((await answer(client, "describe_tables"))["tables"]) > 30
    assert (await answer(client, "diagnose"))["state"] in ("incident", "unclear")
    assert await error(client, "query", sql="DROP TABLE streams") == READ_ONLY


async def test_an_exception_in_a_tool_is_an_error_of_this_call(
    client: Client, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("injected")

    stream_id = "0198f000-0000-7000-8000-000000000000"
    with monkeypatch.context() as patch:
        patch.setattr(Tools, "_pool", broken)
        for tool, arguments in (
            ("describe_tables", {}), ("query", {"sql": "SELECT 1"}), ("diagnose", {}), ("stream", {"stream_id": stream_id}),
        ):  # fmt: skip
            assert await error(client, tool, **arguments) == f"Error executing tool {tool}"
    await call_every_tool(client)


async def test_stdio_serves_every_tool_and_ends_with_its_input(data: Path, tmp_path: Path) -> None:
    argv = command("--data", str(data))
    (folder := tmp_path / "tmp").mkdir()
    server = StdioServerParameters(command=argv[0], args=argv[1:], env={"TMPDIR": str(folder)}, cwd=ROOT)
    with (tmp_path / "stderr").open("w+") as stderr:
        async with Client(stdio_client(server, errlog=stderr)) as client:
            assert (await answer(client, "query", sql="SELECT count(*) FROM streams"))["rows"] == [[500]]
            assert len((await answer(client, "describe_tables"))["tables"]) > 30
            assert "is not a duration" in await error(client, "diagnose", range="soon")
            assert "is not a UUID" in await error(client, "stream", stream_id="x")
        stderr.seek(0)
        assert stderr.read() == ""
    assert os.listdir(folder) == []


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_http_serves_every_tool(tools: Tools, mode: Any) -> None:
    app: Any = gated(new_server(tools, "1"), TOKEN, AllowedHosts())
    service = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(service.serve())
    while not service.started:  # noqa: ASYNC110 - uvicorn has no event
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{service.servers[0].sockets[0].getsockname()[1]}/mcp"
    try:
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {TOKEN}"}, timeout=DEADLINE_S) as web,
            Client(streamable_http_client(url, http_client=web), mode=mode) as client,
        ):
            await call_every_tool(client)
    finally:
        service.should_exit = True
        await serving


def test_http_requires_a_token_and_an_allowed_host_and_ends_at_sigterm(tools: Tools, tmp_path: Path) -> None:
    ready_file = tmp_path / "run" / "mcp.json"
    answered: list[tuple[int, int]] = []

    def ask(url: str) -> None:
        found = read_ready_file(ready_file)
        assert found is not None
        assert (found["url"], stat.S_IMODE(ready_file.stat().st_mode)) == (url, 0o600)
        token = {"authorization": f"Bearer {found['token']}"}
        accept = {"accept": "application/json, text/event-stream"}
        for headers in (
            {}, {"authorization": "Bearer wrong"}, token | {"host": "evil.example"}, token | {"origin": "https://evil.example"}, token,
        ):  # fmt: skip
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            response = httpx.post(url, headers=headers | accept, json=ping, timeout=DEADLINE_S)
            answered.append((response.status_code, len(response.text.splitlines())))
        os.kill(os.getpid(), signal.SIGTERM)  # the server has answered, so it handles the signal

    assert threading.current_thread() is threading.main_thread()
    serve(
        new_server(tools, "1"), listen="127.0.0.1:0", token=None, allowed_hosts=(), data=tmp_path,
        ready=lambda url: threading.Thread(target=ask, args=(url,), daemon=True).start(),
    )  # fmt: skip
    assert answered == [(401, 1), (401, 1), (403, 1), (403, 1), (200, 1)]
    assert not ready_file.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--http", "--mcp-token", "short"), "cannot use the token: it must have at least 16 characters."),
        (("--http", "--mcp-listen", "192.0.2.1:9495"), "cannot listen on 192.0.2.1:9495: "),
        (("--data", "x", "--store", "duckdb"), "--store must be sqlite or postgres:DSN"),
    ],
)
def test_start_that_fails_is_one_line_and_creates_nothing(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["streamgauge", "mcp", *arguments])
    with pytest.raises((ValueError, OSError, click.UsageError), match=re.escape(message)):
        cli.main(standalone_mode=False)
    assert list(tmp_path.iterdir()) == []
