"""A process that sends hostile statements to a store, one at a time: `python -m tests.hostile_sql.client`.

Stdin: one line, the JSON of `Options`, then an empty line that starts the statements. Stdout: the line `{"ready": true}` after
a first ordinary answer. Then for each statement the line `{"started": N}` and a `Reply` as JSON. If the process itself
crashes, the last line shows the statement.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb

from streamgauge.analytics.query.child_process import UNTRUSTED
from streamgauge.analytics.query.quack_gate import directive
from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.storage.database import load
from streamgauge.analytics.storage.location import locate
from tests.deadline import until
from tests.hostile_sql import verdict
from tests.hostile_sql.draw import Catalog
from tests.hostile_sql.generator import statement

MAX_ROWS = 2000
MAX_TEXT_CHARS = 2_000_000
WARM_UP_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one client sends."""

    data: str
    catalog: str
    """File with the JSON of the `Catalog`."""
    by: str
    """`port`, or `page`: the query pool of the SQL page."""
    seed: str
    numbers: list[int]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of one statement."""

    number: int
    by: str
    kind: str
    outcome: str
    """`answered`, or as `verdict.outcome_of`."""
    took_s: float
    message: str
    problem: str | None


class Failed(Exception):
    """The statement has no answer; the text is the error that the reader sees."""


Text = Callable[[], str]
Send = Callable[[str, float], Text]
"""Statement and time limit → its answer, which is complete, as text. Raises Failed."""


def by_port(data: Path) -> Send:
    """Send over the SQL port with a stock DuckDB client."""
    connection = duckdb.connect(config={"threads": 1, "memory_limit": "512MB"})
    load(connection, "httpfs", "quack")
    connection.execute("SET http_retries = 0")
    here = json.loads((data / "run" / "serve.json").read_text())

    def send(sql: str, timeout_s: float) -> Text:
        try:
            connection.execute(  # a table, because the result of a SELECT would arrive with the first fetch
                "CREATE OR REPLACE TEMP TABLE answer AS FROM quack_query(?, ?, token = ?)",
                [here["quack"], directive(MAX_ROWS, timeout_s) + sql, here["token"]],
            )
            return lambda: _text(lambda: connection.execute("FROM answer").fetchmany(MAX_ROWS))
        except RuntimeError as e:
            if "Unable to cast Python instance" in str(e):  # half of a surrogate pair
                raise UnicodeError from None
            raise
        except duckdb.Error as e:
            raise Failed(verdict.without_client_text(str(e))) from None

    return send


def by_page(data: Path) -> Send:
    """Send through the query pool of the SQL page."""
    pool = QueryPool(locate("sqlite", data), untrusted=True, limits=UNTRUSTED)

    def send(sql: str, timeout_s: float) -> Text:
        try:
            answer = pool.query(sql, max_rows=MAX_ROWS, timeout_s=timeout_s)
        except QueryError as e:
            raise Failed(str(e)) from None
        return lambda: _text(answer.rows)

    return send


def _text(rows: Callable[[], object]) -> str:
    """The rows as text, empty if a value has no Python equivalent."""
    try:
        return str(rows())[:MAX_TEXT_CHARS]
    except (ArithmeticError, ValueError, TypeError, RecursionError, duckdb.NotImplementedException):
        return ""
    except duckdb.InvalidInputException as e:
        if "Required module" in str(e):
            return ""
        raise
    except BaseException as e:
        if type(e).__name__ == "PanicException":  # of polars, for instants that Python does not have
            return ""
        raise


def reply(send: Send, sql: str, timeout_s: float, secrets: list[str]) -> tuple[str, float, str, str | None]:
    """Outcome, duration, message and problem of one statement."""
    began_s = time.monotonic()
    try:
        answer = send(sql, timeout_s)
        took_s = time.monotonic() - began_s
        text = answer()
    except Failed as e:
        took_s, message = time.monotonic() - began_s, str(e)
        outcome, problem = verdict.outcome_of(message), verdict.problem_of_error(sql, message)
    except UnicodeError:
        return "rejected", 0.0, "the client cannot send it", None
    except BaseException as e:  # a panic of polars is not an Exception
        if isinstance(e, KeyboardInterrupt):
            raise
        return "crash", time.monotonic() - began_s, repr(e)[:1000], f"raises {type(e).__name__}"
    else:
        message = ""
        outcome, problem = "answered", verdict.problem_of_answer(sql, text, secrets)
    return outcome, took_s, message[:1000], problem


def _answers(send: Send) -> bool:
    """Whether an ordinary query is answered. On a busy machine a pool may say that it starts too slowly."""
    try:
        send("SELECT 1", WARM_UP_S)
    except Failed:
        return False
    return True


def main() -> int:
    """Send all statements."""
    options = Options(**json.loads(sys.stdin.readline()))
    data = Path(options.data)
    catalog = Catalog.from_json(json.loads(Path(options.catalog).read_text()))
    secrets = [json.loads((data / "run" / "serve.json").read_text())["token"], str(data)]
    send = by_port(data) if options.by == "port" else by_page(data)
    until(
        lambda: _answers(send), "the first answer"
    )  # the pool starts: its own limits do not bound queries yet
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    for number in options.numbers:
        one = statement(catalog, options.seed, number)
        print(json.dumps({"started": number}), flush=True)
        outcome, took_s, message, problem = reply(send, one.sql, options.timeout_s, secrets)
        print(
            json.dumps(asdict(Reply(number, options.by, one.kind, outcome, took_s, message, problem))),
            flush=True,
        )
        if outcome == "unavailable":
            time.sleep(0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
